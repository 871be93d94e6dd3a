"""Encoder, decoder and model, and their registration with fairseq.

The supervision of every selector leaves the model in ``net_output[1]["supervision"]``, by name (``encoder.0``,
``decoder.0``, ``cross.0``, …: module and group), and the balance of every mixture of experts in
``net_output[1]["balance"]`` (``encoder.1``, …: side and layer), where the criterion reads them.
"""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import Any, Callable, Dict, Iterator, Optional

import torch
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase, TransformerModelBase
from fairseq.modules import LearnedPositionalEmbedding
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_lasformer import hub, ops
from fairseq_lasformer.attention import Decoding
from fairseq_lasformer.cache import STATE, DecodingCache, IncrementalState, regroup
from fairseq_lasformer.config import PRESETS, LasformerConfig, module_config
from fairseq_lasformer.embedding import ExpandedEmbedding, TableProjection, build_embedding
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.hub import DocumentHubInterface
from fairseq_lasformer.layers import (
    LasformerDecoderLayer,
    LasformerEncoderLayer,
    decoder_group,
    decoder_group_step,
    encoder_group,
    groups,
)
from fairseq_lasformer.moe import Balance
from fairseq_lasformer.ops import Allowed, Supervision
from fairseq_lasformer.replay import ReplayedStep
from fairseq_lasformer.selection import Selector

logger = logging.getLogger(__name__)

EncoderOut = Dict[str, Any]


def _padding(tokens: Tensor, pad: int) -> Tensor | None:
    mask = tokens.eq(pad)
    return mask if bool(mask.any()) else None


def _run(enabled: bool, function: Callable, *args: Any) -> Any:
    """``function(*args)``, its activations recomputed in the backward pass where ``enabled``."""
    return checkpoint(function, *args, use_reentrant=False) if enabled else function(*args)


def _max_positions(embed_positions: Any, limit: int) -> int:
    if isinstance(embed_positions, LearnedPositionalEmbedding):
        return min(limit, embed_positions.max_positions)
    return limit if embed_positions is None else int(embed_positions.max_positions)


class LasformerEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder, running its layers in groups that share a selection."""

    def build_encoder_layer(self, cfg: Any) -> LasformerEncoderLayer:
        self.n_built = getattr(self, "n_built", 0) + 1
        return LasformerEncoderLayer(cfg, self.n_built - 1)

    def max_positions(self) -> int:
        """Longest source; sinusoidal positions have no limit of their own, so the task's alone counts."""
        return _max_positions(self.embed_positions, self.cfg.max_source_positions)

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor] = None,
        return_all_hiddens: bool = False,
        token_embeddings: Optional[Tensor] = None,
    ) -> EncoderOut:
        """fairseq's encoder output, in training with ``supervision`` and ``balance`` by name.

        Args:
            src_tokens: int64 [B, K], padded on either side.
        """
        padding = _padding(src_tokens, self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        if padding is not None:
            x = x.masked_fill(padding[..., None], 0.0)
        supervision: dict[str, Supervision] = {}
        balance: dict[str, Balance] = {}
        states = []
        for i, group in enumerate(groups(self.layers, self.cfg.select_share)):
            recompute = self.training and self.cfg.checkpoint_activations
            x, given, mixed = _run(recompute, encoder_group, group, self.cfg, x, Allowed(padding, False), self.training)
            balance.update(mixed)
            if given is not None:
                supervision[f"encoder.{i}"] = given
            if return_all_hiddens:
                states.append(x.transpose(0, 1))
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x.transpose(0, 1)],
            "encoder_padding_mask": [src_tokens.eq(self.padding_idx)],
            "encoder_embedding": [embedding],
            "encoder_states": states,
            "src_tokens": [],
            "src_lengths": [src_tokens.ne(self.padding_idx).sum(1, keepdim=True, dtype=torch.int32)],
            "supervision": supervision,
            "balance": balance,
        }

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:  # type: ignore[override]
        """The source for hypotheses in a new order (one a sentence at first).

        Only ``rows`` changes, each hypothesis' sentence: the source itself is held once a sentence.
        """
        n_sentences = encoder_out["encoder_padding_mask"][0].size(0)
        rows = encoder_out.get("rows", torch.arange(n_sentences, device=new_order.device))[new_order]
        if new_order.is_cuda and rows.numel() == encoder_out.get("rows", rows[:0]).numel():
            return encoder_out
        keep, beam = regroup(rows, n_sentences)
        encoder_out = encoder_out | {"rows": torch.arange(rows.numel(), device=rows.device) // beam}
        if keep is None:
            return encoder_out
        for name in ("encoder_out", "encoder_states"):
            encoder_out[name] = [t.index_select(1, keep) for t in encoder_out[name]]
        for name in ("encoder_padding_mask", "encoder_embedding", "src_tokens", "src_lengths"):
            encoder_out[name] = [t.index_select(0, keep) for t in encoder_out[name]]
        return encoder_out


class LasformerDecoder(TransformerDecoderBase):
    """fairseq's Transformer decoder, running its layers in groups that share their selections."""

    def build_decoder_layer(self, cfg: Any, no_encoder_attn: bool = False) -> LasformerDecoderLayer:
        self.n_built = getattr(self, "n_built", 0) + 1
        return LasformerDecoderLayer(cfg, self.n_built - 1)

    def build_output_projection(self, cfg: Any, dictionary: Any, embed_tokens: Any) -> None:
        """The scores of all words: fairseq's, or through a narrow table where the embedding has one."""
        if not isinstance(embed_tokens, ExpandedEmbedding):
            super().build_output_projection(cfg, dictionary, embed_tokens)
            return
        table = embed_tokens.weight
        if not self.share_input_output_embed:
            table = nn.Parameter(torch.randn_like(table) * table.size(1) ** -0.5)
        self.output_projection = TableProjection(self.output_embed_dim, table)

    def max_positions(self) -> int:
        """Longest target; sinusoidal positions have no limit of their own, so the task's alone counts."""
        return _max_positions(self.embed_positions, self.cfg.max_target_positions)

    def extract_features(  # type: ignore[override]
        self,
        prev_output_tokens: Tensor,
        encoder_out: EncoderOut,
        incremental_state: Optional[IncrementalState] = None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features [B, N, d] and the extras; with ``incremental_state``, of the newest position alone.

        Attention weights are not returned (``attn`` is ``[None]``): they would be [B, Q, K] a document.
        """
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(prev_output_tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            return self._step(prev_output_tokens[:, -1], positions, encoder_out, incremental_state)
        x = self._embed(prev_output_tokens, positions)
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        memory_padding = encoder_out["encoder_padding_mask"][0]
        memory_allowed = Allowed(memory_padding if bool(memory_padding.any()) else None, False)
        padding = _padding(prev_output_tokens, self.padding_idx)
        allowed = Allowed(padding, causal=not full_context_alignment)
        supervision: dict[str, Supervision] = dict(encoder_out.get("supervision", {}))
        balance: dict[str, Balance] = dict(encoder_out.get("balance", {}))
        for i, group in enumerate(groups(self.layers, self.cfg.select_share)):
            x, own, cross, mixed = _run(
                self.training and self.cfg.checkpoint_activations,
                decoder_group,
                group,
                self.cfg,
                x,
                memory,
                allowed,
                memory_allowed,
                self.training,
            )
            named = {f"decoder.{i}": own, f"cross.{i}": cross}
            supervision.update({name: given for name, given in named.items() if given is not None})
            balance.update(mixed)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x, {"attn": [None], "inner_states": [], "supervision": supervision, "balance": balance}

    def _embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        x = self.embed_scale * self.embed_tokens(tokens)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x)

    def _step(
        self, tokens: Tensor, positions: Tensor | None, encoder_out: EncoderOut, incremental_state: IncrementalState
    ) -> tuple[Tensor, dict[str, Any]]:
        """Features [R, 1, d] of the newest tokens [R], from what the cache holds of those before."""
        x = self._embed(tokens, None if positions is None else positions[:, -1])
        memory = encoder_out["encoder_out"][0].transpose(0, 1)
        replayed = self.cfg.cuda_graph
        cache = DecodingCache.of(incremental_state, x.size(0), memory.size(0), x.device, replayed)
        decoding = Decoding(cache, cache.advance(), cache.source_paths(encoder_out["encoder_padding_mask"][0]))

        def layers(x: Tensor) -> Tensor:
            for group in groups(self.layers, self.cfg.select_share):
                x = decoder_group_step(group, x, memory, decoding)
            return x

        if replayed:
            state = incremental_state[STATE]
            state["step"] = step = state.get("step") or ReplayedStep()
            x = step(layers, x, cache.version, cache.table.size(0))
        else:
            x = layers(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return x[:, None], {"attn": [None], "inner_states": []}

    def reorder_incremental_state_scripting(self, incremental_state: IncrementalState, new_order: Tensor) -> None:
        """Hypotheses in a new order; no key or value is moved, see :class:`DecodingCache`."""
        if STATE in incremental_state:
            incremental_state[STATE]["cache"].reorder(new_order)


@register_model("lasformer", dataclass=LasformerConfig)
class LasformerModel(TransformerModelBase):
    """Document-level Transformer whose attention reads only the keys a learned selector keeps (arXiv 2309.14174).

    Attributes:
        adapted: whether the task moves kappa (eq 7). windowed: whether a fixed window stands in the selectors' place.
    """

    adapted = False
    windowed = False

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Flags of the flat configuration.

        TransformerModelBase's own would give every option a value, and presets would never apply.
        """
        super(TransformerModelBase, cls).add_args(parser)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> LasformerModel:
        """The model for a task's dictionaries.

        Raises:
            InputError: an option's value makes no sense, or the dictionaries cannot be shared as asked.
        """
        config = module_config(cfg)
        run = getattr(task, "cfg", None)
        config.attention_backend = backend = str(getattr(run, "attention_backend", "auto"))
        config.cuda_graph = bool(getattr(run, "cuda_graph", False))
        config.expert_workers = getattr(task, "expert_workers", None)
        if config.cuda_graph and (not torch.cuda.is_available() or backend in ("reference", "cpu")):
            raise InputError("--cuda-graph needs a GPU and the Triton kernels: leave it, or --attention-backend, out")
        if config.cuda_graph and config.moe_experts:
            raise InputError("--cuda-graph cannot record a mixture of experts, whose sizes the host must know")
        if backend in ("cpu", "triton"):  # asked for by name: missing kernels are an error, at start
            try:
                ops.backend_for(torch.device("cpu" if backend == "cpu" else "cuda"), backend)
            except RuntimeError as e:
                raise InputError(f"--attention-backend {backend}: {e}") from e
        if config.share_all_embeddings and task.source_dictionary != task.target_dictionary:
            raise InputError(
                "--share-all-embeddings (part of --arch lasformer_delight and delight_transformer): the two "
                "dictionaries differ; preprocess with a joined one, or give --arch lasformer the preset's options"
            )
        model = super().build_model(config, task)
        model.adapted = bool(getattr(task, "adapts_sparsity", False))
        model.windowed = bool(config.select_window)
        return model

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> DocumentHubInterface:
        """A trained model for raw text: see :func:`hub.from_pretrained`."""
        return hub.from_pretrained(*args, **kwargs)

    @classmethod
    def build_embedding(cls, cfg: Any, dictionary: Any, embed_dim: int, path: Optional[str] = None) -> Any:
        """A side's word embeddings (``--embedding``)."""
        if cfg.embedding == "lookup":
            return super().build_embedding(cfg, dictionary, embed_dim, path)
        if path:
            raise InputError(f"--embedding {cfg.embedding} cannot start from pretrained embeddings ({path})")
        return build_embedding(cfg, len(dictionary), embed_dim, dictionary.pad())

    @classmethod
    def build_encoder(cls, cfg: Any, src_dict: Any, embed_tokens: Any) -> LasformerEncoder:
        return LasformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: Any) -> LasformerDecoder:
        if cfg.embedding == "delight" and (cfg.share_all_embeddings or cfg.merge_src_tgt_embed):
            embed_tokens = embed_tokens.twin()
        return LasformerDecoder(cfg, tgt_dict, embed_tokens)

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        return_all_hiddens: bool = False,
        features_only: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Logits [B, N, vocabulary] and the extras: ``kappa`` and, in training, ``supervision`` and ``balance``."""
        if self.training and not self.adapted:
            self.adapted = True  # to be said once
            if next(self.selectors(), None) is not None:
                logger.warning(
                    "this task does not move kappa: every selector keeps the share of keys it starts with, all of them "
                    "unless a checkpoint says otherwise; train with --task document_translation"
                )
        encoder_out = self.encoder(src_tokens, src_lengths, return_all_hiddens)
        out, extra = self.decoder(prev_output_tokens, encoder_out=encoder_out, features_only=features_only)
        return out, extra | {"kappa": {name: selector.kappa for name, selector in self.selectors()}}

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Lets a dense checkpoint of the same sizes start a selecting model: its selectors begin as initialised."""
        super().upgrade_state_dict_named(state_dict, name)
        own = {key: value for key, value in self.state_dict().items() if ".selector." in key}
        if not own:  # a window's, from before it went without
            for key in [key for key in state_dict if ".selector." in key and self.windowed]:
                del state_dict[key]
        if own and not any(key in state_dict for key in own):
            logger.warning("the checkpoint has no selectors; they start from their initialisation, kappa from 1")
            state_dict.update(own)

    def selectors(self) -> Iterator[tuple[str, Selector]]:
        """Every learned selector with its name, in a fixed order."""
        stacks = (
            ("encoder", self.encoder.layers, "self_attn"),
            ("decoder", self.decoder.layers, "self_attn"),
            ("cross", self.decoder.layers, "encoder_attn"),
        )
        for module, layers, attention in stacks:
            found = (getattr(layer, attention).selector for layer in layers)
            for i, selector in enumerate(s for s in found if isinstance(s, Selector)):
                yield f"{module}.{i}", selector


def _register_preset(name: str) -> None:
    preset = PRESETS[name]

    @register_model_architecture("lasformer", name)
    def architecture(args: Namespace) -> None:
        for option, value in preset.items():
            setattr(args, option, getattr(args, option, value))


for _name in PRESETS:
    _register_preset(_name)
