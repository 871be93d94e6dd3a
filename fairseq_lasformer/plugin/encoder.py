"""fairseq's Transformer encoder with a stack of layers that share selections."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from fairseq.models import FairseqEncoder
from torch import Tensor, nn

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import EncoderOut
from fairseq_lasformer.nn.decoding.cache import regroup
from fairseq_lasformer.nn.decoding.packed_modules import Unsupported, fix_encoder, quantise
from fairseq_lasformer.nn.layers import FullPass
from fairseq_lasformer.nn.lines import SourceLines, numbered
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.nn.stack import Observer
from fairseq_lasformer.ops import AttentionMask
from fairseq_lasformer.plugin.build import encoder_stack, sampling, supervision
from fairseq_lasformer.plugin.config import ModuleConfig
from fairseq_lasformer.plugin.frontend import Frontend, some_padding

if TYPE_CHECKING:
    from fairseq.data import Dictionary


class LasformerEncoder(Frontend, FairseqEncoder):
    """Embeddings, layers in groups that share a selection, and a final layer norm if pre-norm.

    Args:
        embed_tokens: word embeddings, [B, N] -> [B, N, d].
        run: backend, CUDA graph, expert group.
        separator: index of the separator between lines, if the data has one.
    """

    def __init__(
        self,
        cfg: ModuleConfig,
        dictionary: Dictionary,
        embed_tokens: Any,
        run: RunOptions,
        separator: int | None = None,
    ) -> None:
        FairseqEncoder.__init__(self, dictionary)
        self._add_embeddings(cfg, run, embed_tokens, cfg.max_source_positions, cfg.encoder.learned_pos)
        self.layers = encoder_stack(cfg, run)
        self._add_ends(dictionary.eos(), separator)
        self.layer_norm = nn.LayerNorm(embed_tokens.embedding_dim) if cfg.encoder.normalize_before else None

    def make_generation_fast_(self, retain_dropout: bool = False, **_: object) -> None:
        """Pack the layers for a CPU; called by fairseq before generation. On a GPU, they are unchanged.

        Raises:
            InputError: reproducible translations are requested but not possible.
        """
        run = self.run_options
        try:
            self.check_kernels(retain_dropout)
            fix_encoder(self.layers)
            self.fix()
        except Unsupported as e:
            if run.reproducible:
                raise InputError(f"--reproducible: not with {e}") from None
        if run.int8 and next(self.layers.parameters()).device.type == "cpu":  # the decoder refuses others
            quantise(self.layers)

    def embed(
        self,
        tokens: Tensor,
        embeddings: Tensor | None = None,
        lines: SourceLines | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Embed tokens int64 [B, N]; return the input of the layers [B, N, d], and the scaled word embeddings alone."""
        places = None if lines is None else lines.places()
        words = self.embed_scale * (self.embed_tokens(tokens) if embeddings is None else embeddings)
        return self.embed_words(words, self.position_embeddings(tokens, places)), words

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        observe: Observer | None = None,
        update: int = 0,
        line_numbers: Tensor | None = None,
    ) -> EncoderOut:
        """Compute fairseq's encoder output; in training also ``supervision`` and ``router_stats`` by name.

        Args:
            src_tokens: int64 [B, K], padded on either side.
            src_lengths: unused.
            return_all_hiddens: also return the states after each group.
            token_embeddings: [B, K, d], word embeddings that replace those of ``src_tokens``.
            observe: called with the output of every attention.
            update: number of the update, in training.
            line_numbers: int64 [B, L], the number of each line in its document, if some are left out.
        """
        padding = some_padding(src_tokens.eq(self.padding_idx))
        ends = self.line_ends.of(src_tokens)
        lines = SourceLines.of(ends, padding) if self.cfg.own_lines else None
        x, words = self.embed(src_tokens, token_embeddings, lines)
        if padding is not None:
            x = x.masked_fill(padding[..., None], 0.0)
        own, numbers = (None, None) if lines is None else (lines.own(lines.line), numbered(lines.line, line_numbers))
        rotation = None if numbers is None else self.rotations(numbers)
        mask = AttentionMask(padding, False, ends if self.line_ends.read else None, own)
        out = self.layers(
            x,
            FullPass(mask, sampling=sampling(self.cfg, update, src_tokens.device), rotations=(rotation, None)),
            supervision(self.cfg) if self.training else None,
            recompute=self.training and self.cfg.checkpoint_activations,
            keep_states=return_all_hiddens,
            observe=observe,
        )
        x = out.x if self.layer_norm is None else self.layer_norm(out.x)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [src_tokens.eq(self.padding_idx)],
            "ends": [ends],
            "lines": [] if numbers is None else [numbers],
            "line_numbers": line_numbers,
            "encoder_embedding": [words],
            "encoder_states": [state.transpose(0, 1) for state in out.states],
            "src_tokens": [],
            "src_lengths": [src_tokens.ne(self.padding_idx).sum(1, keepdim=True, dtype=torch.int32)],
            "supervision": out.supervision,
            "router_stats": {f"encoder.{i}": stats for i, stats in out.router_stats.items()},
        }

    def joined(self, outputs: Sequence[EncoderOut]) -> EncoderOut:
        """Return the output of several batches of documents as that of one text, without padding.

        Searches of lines add ``ranges``, what each line reads of it, and share its ``source_keys``. ``lines`` are the
        numbers of the tokens' lines in their documents: rounding must not depend on the other documents.
        """
        states: dict[str, list[Tensor]] = {}
        for out in outputs:
            words = ~out["encoder_padding_mask"][0]
            joined = out | {"encoder_out": [out["encoder_out"][0].transpose(0, 1)]}
            for name in ("encoder_out", "ends", "lines"):
                states.setdefault(name, []).append(joined[name][0][words])
        memory, ends, lines = (torch.cat(states[name])[None] for name in ("encoder_out", "ends", "lines"))
        none = torch.zeros_like(ends)
        return {
            "encoder_out": [memory.transpose(0, 1)],
            "encoder_padding_mask": [none],
            "ends": [ends],
            "lines": [lines],
            "source_keys": {},
        }

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        """Reorder the encoder output to follow the hypotheses.

        Only ``rows``, the batch item of each hypothesis, changes: the source itself is stored once per item.
        """
        before, ranges = encoder_out.get("rows"), encoder_out.get("ranges")
        n_items = encoder_out["encoder_padding_mask"][0].size(0) if ranges is None else ranges.start.numel()
        if before is not None and new_order.is_cuda and before.numel() == new_order.numel():
            return encoder_out  # as in DecodingCache.reorder
        rows = new_order if before is None else before[new_order]
        keep, beam = regroup(rows, n_items)
        encoder_out = encoder_out | {"rows": torch.arange(rows.numel(), device=rows.device) // beam}
        if keep is None:
            return encoder_out
        if ranges is not None:  # whose sources stay together
            return encoder_out | {"ranges": ranges.take(keep)}
        for name in ("encoder_out", "encoder_states"):
            encoder_out[name] = [t.index_select(1, keep) for t in encoder_out[name]]
        for name in ("encoder_padding_mask", "ends", "lines", "encoder_embedding", "src_tokens", "src_lengths"):
            encoder_out[name] = [t.index_select(0, keep) for t in encoder_out[name]]
        return encoder_out
