"""Multi-head attention over the keys selected by a pattern."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.nn.attentions.base import AttentionOptions, AttentionOutput
from fairseq_lasformer.nn.attentions.projected import ProjectedAttention
from fairseq_lasformer.nn.decoding.layer_cache import LayerCache
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns import Pattern
from fairseq_lasformer.nn.rotary import start_near
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import KeptKeys, OwnShift, rotate_heads

LINE_BIAS_START = 5.0
"""b_h at the start: the other lines together weigh as much as e^5 = 148 tokens of the own line. From less, a small
model learns later or never what only other lines decide (docs/results/demo.md)."""
LINE_BIAS_ALONE = -2.0
"""The same for a model that has learned single lines: a query reads its own line, and little else."""
LINE_BIAS_UNIT = 10.0
"""b_h is this times the parameter, so that it learns as much faster than one number among vectors of weights would."""


class SelectedAttention(ProjectedAttention):
    """Multi-head attention that reads only the keys kept by its group's pattern (eq 3 of arXiv 2309.14174).

    With ``--own-lines``, a query reads its own line besides, in the same softmax, in which a learned number per head
    weighs what was selected elsewhere (``ops.reference.line_bias``); queries and keys are rotated by the numbers of
    their lines (``nn.rotary``).

    Args:
        options: widths, heads and dropout.
        pattern: the group's pattern in the lowest layer of the group; None in the layers above.
    """

    packable = True
    line_bias: nn.Parameter | None
    narrow_results = ("q_proj", "k_proj", "v_proj")

    def __init__(self, options: AttentionOptions, pattern: Pattern | None = None) -> None:
        super().__init__(options)
        self.selector = pattern  # checkpoints store the selector's weights under this name
        self.own_lines = options.own_lines
        start = torch.full((self.num_heads,), LINE_BIAS_START / LINE_BIAS_UNIT)
        self.line_bias = nn.Parameter(start) if self.own_lines else None
        if self.own_lines:
            start_near(self.q_proj, self.k_proj, self.num_heads)

    def forward(self, full: Pass, selection: Selection | None = None) -> AttentionOutput:
        x, dropout_p = full.query, self.dropout_module.active_p
        if self.selector is not None:
            selection = self.selector(full._replace(as_mask=dropout_p > 0))
        if selection is None:
            raise ValueError("an attention without a pattern needs its group's selection")
        q, k, v = self.projected(x, full.memory)
        q, k = full.rotated(q.to(x.dtype), k.to(x.dtype))
        q, k, v = (self._as(x, heads, selection.contiguous) for heads in (q, k, v))
        bias = self.bias
        out = self.joined(selection.attend(q, k, v, dropout_p, self.backend, bias))
        return AttentionOutput(out, selection, q, k, bias) if selection.explicit else AttentionOutput(out, selection)

    @property
    def bias(self) -> Tensor | None:
        """b_h of ``ops.reference.line_bias``, [H]; None without own lines."""
        return None if self.line_bias is None else LINE_BIAS_UNIT * self.line_bias

    @staticmethod
    def _as(x: Tensor, heads: Tensor, contiguous: bool) -> Tensor:
        """Return heads [B, H, N, D] in the type of x; with each head contiguous, if requested."""
        if not contiguous:
            return heads.to(x.dtype)
        return heads.to(x.dtype, memory_format=torch.contiguous_format).contiguous()

    def step(self, x: Tensor, keys: LayerCache, kept: KeptKeys | None = None) -> AttentionOutput:
        of_query, of_key = keys.rotations
        q = keys.newest_of("query", lambda x: rotate_heads(self.q_proj(x), self.num_heads, of_query, self.backend))
        k = keys.project("key", lambda x: rotate_heads(self.k_proj(x), self.num_heads, of_key, self.backend))
        v = keys.project("value", self.v_proj)
        if self.selector is not None:
            kept = self.selector.step_keys(x, keys)
        dropout_p, shift, bias = self.dropout_module.active_p, None, self.bias
        if bias is not None and keys.own is not None:
            shift = OwnShift.of(keys.own, bias, keys.key_index, kept is not None)
        out = ops.attend_kept(q, k, v, keys.key_index, kept, self.num_heads, self.backend, dropout_p, shift)
        return AttentionOutput(self.out_proj(out), kept)

    def step_layers(self, of_itself: bool) -> dict[str, nn.Module]:
        scorers = self.selector.scorers() if self.selector is not None and self.selector.packable else ()
        names = ("query", "key", "value") if of_itself else ("query",)
        layers: dict[str, nn.Module] = dict(zip(names, (self.q_proj, self.k_proj, self.v_proj)))
        return layers | dict(zip((f"selector_{name}" for name in names), scorers))
