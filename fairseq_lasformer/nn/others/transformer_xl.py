"""Segments with a memory of the previous one: Transformer-XL (Dai et al. 2019, arXiv 1901.02860, section 3.2).

The paper reads a text segment by segment, and keeps the states of the previous segment in a memory. Here, a document is
read in one pass. Its keys and values are those that the memory would contain, as a segment's states do not depend on
later ones. The only effect left is that no gradient flows into the memory. It contains keys and values, so the gradient
does not reach their projections through it either; in the paper it contains states, and the projections learn.
Positions are those of the model: the paper's relative ones are needed because all of its segments start at 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_lasformer import ops
from fairseq_lasformer.nn.forms import MaskSelection
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns.positional import Numbered
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import AttentionMask


@dataclass(frozen=True)
class Segment:
    """Parameters of ``transformer_xl``."""

    segment: int  # number of tokens of a segment, and of the memory


@dataclass(frozen=True)
class RememberedSelection(MaskSelection):
    """Kept keys, some of which receive no gradient."""

    memory: Tensor | None = None  # bool [B or 1, Q, K], the keys without gradient

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, dropout_p: float, backend: str, bias: Tensor | None = None
    ) -> Tensor:
        assert self.memory is not None and bias is None
        kept = torch.cat([self.keep_mask & ~self.memory, self.keep_mask & self.memory], -1)
        keys, values = (torch.cat([t, t.detach()], 2) for t in (k, v))
        attention = ops.reference.selected_attention if backend == "reference" else ops.selected_attention
        return attention(q, keys, values, kept, AttentionMask(None, False), None, dropout_p)


class TransformerXL(Numbered[Segment]):
    """The query's segment, and the previous one (``--select-pattern transformer_xl:segment=64``).

    In self-attention, no gradient reaches the previous segment. The encoder's segments are bidirectional.
    """

    name = "transformer_xl"
    usage = "transformer_xl:segment=N"
    kind = Segment
    example = "transformer_xl:segment=64"

    def positions(self, query: Tensor, n_keys: Tensor, longest: int) -> Tensor:
        segment = self.numbers.segment
        first = (query // segment - 1) * segment
        return first[..., None] + torch.arange(2 * segment, device=query.device)

    def forward(self, full: Pass) -> Selection:
        query, key, mask = full[:3]
        if query is not key or not torch.is_grad_enabled():
            return super().forward(full)
        n_batch, n, device = query.size(0), query.size(1), query.device
        of = mask.positions(n, device) // self.numbers.segment
        memory = of[:, :, None] - 1 == of[:, None]
        kept = (memory | (of[:, :, None] == of[:, None])) & mask.full(n_batch, n, n, device)
        return RememberedSelection(kept, mask, None, memory)
