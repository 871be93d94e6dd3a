"""fairseq's Transformer decoder with a stack of layers that share selections, and its decoding steps."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import EncoderOut, Sample
from fairseq_lasformer.nn.compact.embedding import TableProjection
from fairseq_lasformer.nn.decoding.cache import ENDS, STATE, DecodingCache, IncrementalState, LineCache
from fairseq_lasformer.nn.decoding.fixed_cache import BufferPool, FixedCache, Size
from fairseq_lasformer.nn.decoding.packed_modules import Unsupported
from fairseq_lasformer.nn.decoding.packed_stack import PackedDecoder, PackedStack
from fairseq_lasformer.nn.decoding.step_products import Products, step_products
from fairseq_lasformer.nn.layers import BothLines, BothRotations, DecodeContext, FullPass
from fairseq_lasformer.nn.lines import SourceLines, TargetLines, numbered
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.nn.patterns.learned import learned
from fairseq_lasformer.nn.stack import Observer
from fairseq_lasformer.ops import (
    AttentionMask,
    backend_for,
    log_probabilities,
    log_softmax,
    pack_linear,
)
from fairseq_lasformer.plugin.build import decoder_stack, output_projection, sampling, supervision
from fairseq_lasformer.plugin.config import ModuleConfig
from fairseq_lasformer.plugin.frontend import Frontend, some_padding

if TYPE_CHECKING:
    from fairseq.data import Dictionary


class LasformerDecoder(Frontend, FairseqIncrementalDecoder):
    """Embeddings, layers in groups that share their selections, and the projection to the vocabulary.

    Args:
        embed_tokens: word embeddings, [B, N] -> [B, N, d].
        run: backend, CUDA graph, expert group.
        separator: index of the separator between lines, if the data has one.
    """

    reads_newest_word = True
    """A step reads only the newest word of each hypothesis and the number of words so far."""

    @property
    def reads_newest_line(self) -> bool:
        """Return whether a step reads nothing of the lines before the newest one."""
        return bool(self.cfg.source_context_only and self.cfg.own_lines)

    def __init__(
        self,
        cfg: ModuleConfig,
        dictionary: Dictionary,
        embed_tokens: Any,
        run: RunOptions,
        separator: int | None = None,
    ) -> None:
        FairseqIncrementalDecoder.__init__(self, dictionary)
        self._add_embeddings(cfg, run, embed_tokens, cfg.max_target_positions, cfg.decoder.learned_pos)
        dim = embed_tokens.embedding_dim
        self.layers = decoder_stack(cfg, run)
        self._add_ends(dictionary.eos(), separator)
        last = cfg.decoder.normalize_before and not cfg.no_decoder_final_norm
        self.layer_norm = nn.LayerNorm(dim) if last else None
        self.output_projection = output_projection(dim, len(dictionary), embed_tokens, cfg)
        self.packed: PackedDecoder | None = None
        self.products: Products | None = None
        self.pool = BufferPool()

    def _apply(self, fn: Any, recurse: bool = True) -> LasformerDecoder:
        self.pool = BufferPool()  # captured steps, also of a batch in progress, read the parameters at old addresses
        return super()._apply(fn, recurse)

    def _join_products(self) -> bool:
        """Make one product of several where Triton's kernels take the steps; return whether they do."""
        one, self.products = next(self.layers.parameters()), None
        if one.dtype == torch.float64 or backend_for(one.device, self.run_options.backend) != "triton":
            return False
        self.pool = BufferPool()  # captured steps, also of a batch in progress, read the products at old addresses
        self.products = Products(step_products(self.layers), self._weights())
        return True

    def _weights(self) -> tuple[tuple[int, int], ...]:
        """Return the address of every weight and its number of in-place changes (except writes to ``weight.data``)."""
        return tuple((p.data_ptr(), p._version) for m in (self.layers, self.output_projection) for p in m.parameters())

    def make_generation_fast_(self, retain_dropout: bool = False, **_: object) -> None:
        """Pack the weights for decoding on a CPU, or join them on a GPU; called by fairseq before generation.

        Weights that change or move afterwards are packed again when the next batch begins.

        Raises:
            InputError: 8 bits or reproducible translations are requested but not possible.
        """
        int8, int8_cache, self.packed = self.run_options.int8, self.run_options.int8_cache, None
        try:
            if (int8 or int8_cache) and next(self.parameters()).device.type != "cpu":
                raise Unsupported("a GPU")
            if not (self.run_options.reproducible or int8 or int8_cache) and self._join_products():
                return
            self.check_kernels(retain_dropout)
            if self.run_options.cuda_graph:
                raise Unsupported("--cuda-graph")
            if not isinstance(self.output_projection, nn.Linear):
                raise Unsupported("an expanded table of words")
            stack = PackedStack(self.layers, int8, int8_cache)
        except Unsupported as e:
            if int8 or int8_cache:
                option = "--decode-dtype" if int8 else "--cache-dtype"
                raise InputError(f"{option} int8: not with {e}; use float32") from None
            if self.run_options.reproducible:
                raise InputError(f"--reproducible: not with {e}") from None
            return
        self.fix()
        output = pack_linear(self.output_projection.weight, self.output_projection.bias, int8)
        self.packed = PackedDecoder(stack, output, self._weights())

    def _renew(self) -> None:
        """Pack or join the weights again if they have changed or moved."""
        if self.packed is not None and self.packed.of != self._weights():
            self.make_generation_fast_()
        if self.products is not None and self.products.of != self._weights():
            self._join_products()

    def forward(  # type: ignore[override]
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: IncrementalState | None = None,
        features_only: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute scores of all words [B, N, vocabulary], or features [B, N, d], and extra outputs.

        Args:
            prev_output_tokens: int64 [B, N].
            incremental_state: decoding state; None for a full pass.
            features_only: return features instead of scores.
            kwargs: see :meth:`extract_features`.
        """
        x, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state, **kwargs)
        if features_only:
            return x, extra
        return self.output_layer(x, packed=incremental_state is not None), extra

    def read(self, tokens: Tensor, encoder_out: EncoderOut) -> Tensor | None:
        """Compute features exactly as steps over these tokens would; :meth:`output_layer` makes scores of them.

        Args:
            tokens: int64 [N, P], the start symbol and words, padded on the right.

        Returns:
            [N, P, d]; None if steps do not use the packed layers.
        """
        if self._packed_for(tokens) is None or torch.is_grad_enabled():
            return None
        cache = self.new_cache(tokens.size(0), encoder_out["encoder_out"][0].transpose(0, 1))
        if self.packed is None:  # the weights have changed to another type
            return None
        return self._read(tokens, encoder_out, cache)

    def output_layer(self, features: Tensor, packed: bool = False, **kwargs: Any) -> Tensor:
        """Project [..., d] to scores [..., vocabulary]; ``packed``: as in a decoding step."""
        kernels = self._packed_for(features) if packed else None
        return self.output_projection(features) if kernels is None else kernels.output(features)

    def _packed_for(self, x: Tensor) -> PackedDecoder | None:
        """Return the packed weights for steps on tensors like this one; None if there are none."""
        return self.packed if x.device.type == "cpu" else None

    def get_normalized_probs(self, net_output: Any, log_probs: bool, sample: Sample | None = None) -> Tensor:
        """Compute probabilities, see fairseq's ``FairseqDecoder``."""
        scores = net_output[0]
        if scores.dtype == torch.float64:  # fairseq's are float32
            return scores.log_softmax(-1) if log_probs else scores.softmax(-1)
        if log_probs and self._packed_for(scores) is not None and not torch.is_grad_enabled():
            return log_softmax(scores.float())
        if log_probs and self.products is not None and not torch.is_grad_enabled():
            return log_probabilities(scores, self.run_options.backend)
        return super().get_normalized_probs(net_output, log_probs, sample)

    def output_of(self, words: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the projection to scores of some words, int64 [U]: features [R, d] -> [R, U]."""
        self._renew()
        if (kernels := self._packed_for(words)) is not None:
            return kernels.output.outputs_of(words)
        weight: Tensor = self.output_projection.weight[words]  # type: ignore[index]
        reduce = self.output_projection.reduce if isinstance(self.output_projection, TableProjection) else None
        bias = getattr(self.output_projection, "bias", None)
        chosen = None if bias is None else bias[words]
        return lambda features: F.linear(features if reduce is None else reduce(features), weight, chosen)

    def extract_features(  # type: ignore[override]
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        observe: Observer | None = None,
        update: int = 0,
        **_: object,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute features [B, N, d] and extra outputs; with ``incremental_state``, only of the newest position.

        Attention weights are not returned (``attn`` is ``[None]``): they would be [B, Q, K] per document.

        Args:
            prev_output_tokens: int64 [B, N].
            incremental_state: decoding state; None for a full pass.
            full_context_alignment: no causal mask.
            observe: called with the output of every attention of a full pass.
            update: number of the update, in training.
        """
        if incremental_state is not None:
            return self._newest(prev_output_tokens, encoder_out, incremental_state)
        memory_padding = encoder_out["encoder_padding_mask"][0]
        ends = self.line_ends.asked(prev_output_tokens)
        source_ends = None if ends is None else encoder_out["ends"][0]
        padding, source_padding = map(some_padding, (prev_output_tokens.eq(self.padding_idx), memory_padding))
        lines = self._lines(ends)
        own, rotations = self._own_lines(lines, padding, encoder_out, source_padding)
        full = FullPass(
            AttentionMask(padding, not full_context_alignment, ends, own[0]),
            encoder_out["encoder_out"][0].transpose(0, 1),
            AttentionMask(source_padding, False, source_ends, own[1]),
            sampling(self.cfg, update, prev_output_tokens.device),
            rotations,
        )
        out = self.layers(
            self._embed(prev_output_tokens, lines),
            full,
            supervision(self.cfg) if self.training else None,
            recompute=self.training and self.cfg.checkpoint_activations,
            observe=observe,
        )
        x = out.x if self.layer_norm is None else self.layer_norm(out.x)
        router_stats = {f"decoder.{i}": stats for i, stats in out.router_stats.items()}
        return x, {
            "attn": [None],
            "inner_states": [],
            "supervision": {**encoder_out.get("supervision", {}), **out.supervision},
            "router_stats": {**encoder_out.get("router_stats", {}), **router_stats},
        }

    def _newest(
        self, prev_output_tokens: Tensor, encoder_out: EncoderOut, incremental_state: IncrementalState
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute features [R, 1, d] of the newest tokens in a decoding step."""
        newest, positions = prev_output_tokens[:, -1], None
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        cache = incremental_state.get(STATE) or DecodingCache.of(
            incremental_state, functools.partial(self.new_cache, newest.size(0), memory, encoder_out)
        )
        ends = self.line_ends.of(newest) if self.line_ends.read else None
        place = cache.next_place(ends) if ends is not None and self.cfg.own_lines else None
        if place is not None and self.embed_positions is not None:
            positions = self.positions_at(place + self.padding_idx + 1, cache.length + 1)
        elif self.embed_positions is not None:
            positions = self.embed_positions(prev_output_tokens, incremental_state=incremental_state)[:, -1]
        words = self.embed_scale * self.embed_tokens(newest)
        if self.cfg.zero_first_embedding and prev_output_tokens.size(1) == 1:
            words = torch.zeros_like(words)
        return self._step(self.embed_words(words, positions), ends, encoder_out, memory, cache)

    def _read(self, tokens: Tensor, encoder_out: EncoderOut, cache: DecodingCache) -> Tensor:
        """Read tokens with the packed layers; return features [N, P, d].

        Padding may only follow the tokens of an item.
        """
        assert self.packed is not None
        memory, padding = encoder_out["encoder_out"][0].transpose(0, 1), encoder_out["encoder_padding_mask"][0]
        lines = self._begin(cache, tokens, encoder_out)
        own, rotations = self._own_lines(lines, None, encoder_out, some_padding(padding))
        x = self._embed(tokens, lines)
        x = self.packed.stack.read(x, cache, memory, cache.index_source(padding), own, rotations)
        return x if self.layer_norm is None else self.layer_norm(x)

    def _lines(self, ends: Tensor | None) -> TargetLines | None:
        """Return the lines of inputs, bool [B, N] where they start, if positions or attentions depend on them."""
        return TargetLines.of(ends) if ends is not None and self.cfg.own_lines else None

    def _own_lines(
        self, lines: TargetLines | None, padding: Tensor | None, encoder_out: EncoderOut, source_padding: Tensor | None
    ) -> tuple[BothLines, BothRotations]:
        """Return the own lines of inputs, in the translation and in the source, and the rotations of all lines."""
        if lines is None:
            return (None, None), (None, None)
        source = SourceLines.of(encoder_out["ends"][0], source_padding)
        numbers = numbered(lines.line, encoder_out["line_numbers"]), encoder_out["lines"][0]
        rotations = self.rotations(numbers[0]), self.rotations(numbers[1])
        return (lines.own(padding), source.own(lines.line)), rotations

    def _begin(self, cache: DecodingCache, tokens: Tensor, encoder_out: EncoderOut) -> TargetLines | None:
        """Start a cache with tokens [N, P]; return their lines, see :meth:`_lines`."""
        cache.begin_with(tokens.size(1))
        ends = self.line_ends.asked(tokens)
        if ends is not None and self.line_ends.by_patterns:
            memory = encoder_out["encoder_out"][0].transpose(0, 1)
            cache.fill(ENDS, ends[..., None].to(memory.dtype))
            cache.mark_source(encoder_out["ends"][0], memory)
        return self._lines(ends)

    def _embed(self, tokens: Tensor, lines: TargetLines | None = None) -> Tensor:
        """Compute the input of the layers in a full pass: int64 [N, P] -> [N, P, d]."""
        places = None if lines is None else lines.place
        words = self.embed_scale * self.embed_tokens(tokens)
        if self.cfg.zero_first_embedding:
            words = torch.cat([torch.zeros_like(words[:, :1]), words[:, 1:]], 1)
        return self.embed_words(words, self.position_embeddings(tokens, places))

    def _step(
        self, x: Tensor, ends: Tensor | None, encoder_out: EncoderOut, memory: Tensor, cache: DecodingCache
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute features [R, 1, d] of the newest tokens, embedded [R, d], from the cache of earlier ones.

        Args:
            ends: bool [R], whether they end a line; None if nothing depends on it.
            memory: [N, K, d], the encoder's output.
        """
        padding = encoder_out["encoder_padding_mask"][0]
        source_index = cache.source_index or cache.index_source(padding)
        products = () if self.products is None else self.products.of_layers
        context = DecodeContext(cache, memory, cache.advance(), source_index, products=products)
        if self.cfg.own_lines:
            context = context._replace(own=cache.own_lines(encoder_out["ends"][0], padding))
        if self.tells_lines:
            of_rows = cache.rotation(self.line_frequency)
            of_source = cache.source_rotation(encoder_out["lines"][0], self.line_frequency, memory)
            context = context._replace(rotations=(of_rows, of_source))
        if ends is not None and self.line_ends.by_patterns:
            cache.mark(ends, encoder_out["ends"][0], memory)
        if isinstance(cache, FixedCache):
            function = functools.partial(self.layers.step, context=context)
            x = cache.buffers.step(function, x, cache.table.size(0), eager=cache.length == 1)
        else:
            packed = self._packed_for(x)
            x = (self.layers if packed is None else packed.stack).step(x, context)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x[:, None], {"attn": [None], "inner_states": []}

    def new_cache(self, n_rows: int, memory: Tensor, encoder_out: EncoderOut | None = None) -> DecodingCache:
        """Make the cache of a batch of ``n_rows`` hypotheses over the encoder's output, [N, K, d].

        Args:
            encoder_out: that output, which may be of lines that are searched side by side.
        """
        self._renew()
        if encoder_out is not None and "ranges" in encoder_out:
            return LineCache(n_rows, encoder_out["ranges"], memory.size(1), encoder_out["source_keys"])
        if not self.run_options.cuda_graph:
            return DecodingCache(n_rows, memory.size(0), memory.device)
        kappas = tuple(p.millionths for _, p in learned(self.layers.patterns()))
        return FixedCache(Size.first(n_rows, memory.size(0), memory.size(1), memory, kappas), self.pool)

    def reorder_incremental_state_scripting(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Reorder the hypotheses without moving keys or values; see :class:`DecodingCache`."""
        if STATE in incremental_state:
            incremental_state[STATE].reorder(new_order)
