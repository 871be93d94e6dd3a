"""Model options grouped by feature. :mod:`config` derives the flat form (command line, YAML) and the nested one.

fairseq reads the annotations at run time, hence no ``from __future__ import annotations`` here.
"""

from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
    TransformerConfig,
)

from fairseq_lasformer.base.options import fairseq_option
from fairseq_lasformer.nn.others import usage

# Options of fairseq's Transformer that do not apply here, or are incompatible with shared selections.
_LEFT_OUT = {
    "decoder_input_dim",
    "decoder_output_dim",
    "encoder_layers_to_keep",
    "decoder_layers_to_keep",
    "encoder_layerdrop",
    "decoder_layerdrop",
    "encoder_xformers_att_config",
    "decoder_xformers_att_config",
    "adaptive_softmax_cutoff",
    "adaptive_softmax_dropout",
    "adaptive_softmax_factor",
    "adaptive_input",
    "tie_adaptive_weights",
    "tie_adaptive_proj",
    "no_cross_attention",
    "cross_self_attention",
    "offload_activations",
    "min_params_to_wrap",
    "char_inputs",
    "relu_dropout",
    "base_layers",
    "base_sublayers",
    "base_shuffle",
    "export",
    "max_source_positions",
    "max_target_positions",
}


def _transformer_flags() -> list[tuple[str, Any, Any]]:
    """Return fairseq's nested Transformer options as flat ``(name, type, field)`` triples."""
    nested = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}
    flags = []
    for outer in fields(TransformerConfig):
        inner = fields(nested[outer.name]) if outer.name in nested else [outer]
        prefix = f"{outer.name}_" if outer.name in nested else ""
        for f in inner:
            name = prefix + f.name
            if f.name.startswith("_") or name in _LEFT_OUT or name.startswith("quant_noise"):
                continue
            kind = ChoiceEnum([*utils.get_available_activation_fns(), "swish"]) if name == "activation_fn" else f.type
            default = {"default": f.default} if f.default is not MISSING else {"default_factory": f.default_factory}
            flags.append((name, kind, field(metadata=dict(f.metadata), **default)))
    return flags


TransformerOptions: Any = make_dataclass("TransformerOptions", _transformer_flags(), bases=(FairseqDataclass,))


@dataclass
class SelectionOptions(FairseqDataclass):
    """Options of the selection (eq 1-8 of arXiv 2309.14174)."""

    select_modules: str = fairseq_option(
        "encoder,decoder,cross",
        "attention modules that select their keys: any of encoder,decoder,cross, or none (dense)",
    )
    select_dim: int = fairseq_option(64, "width of the selector's single head (d_s)")
    select_share: int = fairseq_option(3, "layers that share one selection (r, eq 8)")
    select_groups: str = fairseq_option(
        "",
        "instead of --select-share: the lowest layer of each group that shares a selection, such as "
        "encoder.0,encoder.2,decoder.0 (from 0)",
    )
    select_only: bool = fairseq_option(False, "train only the selectors; all other weights stay fixed")
    select_pattern: str = fairseq_option(
        "learned", f"pattern of the keys that these modules attend to: one of {usage()}"
    )
    select_gradient: ChoiceEnum(["straight-through", "bounded", "none"]) = fairseq_option(  # type: ignore[valid-type]
        "bounded",
        "gradient of the translation loss through the selection: eq 3's, the same with weights of keys "
        "outside the selection bounded by 1, or none",
    )
    select_kl: ChoiceEnum(["forward", "reverse"]) = fairseq_option(  # type: ignore[valid-type]
        "forward", "supervision: forward KL(attention || selector) or reverse KL(selector || attention) (eq 5)"
    )
    select_target: ChoiceEnum(["live", "detached"]) = fairseq_option(  # type: ignore[valid-type]
        "live", "whether the supervision also trains the attention that teaches the selector"
    )
    select_input: ChoiceEnum(["live", "detached"]) = fairseq_option(  # type: ignore[valid-type]
        "live", "whether selectors also train the layers below, whose states they read"
    )
    supervise_rows: str = fairseq_option(
        "auto",
        "queries of a batch that train a selector, resampled every update: at least this many (and "
        "at least 1 in 32; all if examples are short), all, or auto: 512; on a CPU, all while kappa is above 0.35",
    )
    sparsity_threshold: float = fairseq_option(
        0.95, "attention mass that the kept keys must exceed before fewer are kept (t, eq 7)"
    )
    sparsity_step: float = fairseq_option(0.001, "change of kappa per update (eq 7)")
    sparsity_min: float = fairseq_option(0.01, "smallest kappa")
    sparsity_warmup: int = fairseq_option(
        0, "initial updates that train selectors, which select nothing yet: kappa is fixed"
    )
    sparsity_freeze_above: float = fairseq_option(0.5, "kappa does not grow while it is above this")
    sparsity_fixed: float = fairseq_option(
        0.0, "set kappa to this value, such as 0.05, instead of adapting it after an update"
    )
    sparsity_mass: ChoiceEnum(["selection", "attention"]) = fairseq_option(  # type: ignore[valid-type]
        "selection", "mass on the kept keys that drives kappa: the selector's or the attention's own"
    )


@dataclass
class MoeOptions(FairseqDataclass):
    """Options of the mixtures of experts (arXiv 1701.06538)."""

    moe_experts: int = fairseq_option(0, "experts per mixture (n); 0: no mixtures")
    moe_top_k: int = fairseq_option(2, "experts per token (k); at each level, if hierarchical")
    moe_gating: ChoiceEnum(["noisy-topk", "softmax", "batchwise", "gshard-top2"]) = fairseq_option(  # type: ignore[valid-type]
        "noisy-topk", "how tokens are assigned to experts: eq 3-5, eq 2 (all of them), eq 15-20, or GShard's top-2"
    )
    moe_groups: int = fairseq_option(0, "groups of a hierarchical mixture (a, eq 12; needs noisy-topk); 0: a flat one")
    moe_ffn_embed_dim: int = fairseq_option(0, "hidden width of one expert (h); 0: the feed-forward width of its side")
    moe_layers: str = fairseq_option(
        "2",
        "layers with a mixture: every N-th; N,M for encoder and decoder, 0 for none; or by name, such as "
        "encoder.1,decoder.3 (from 0)",
    )
    moe_placement: ChoiceEnum(["feed-forward", "shazeer"]) = fairseq_option(  # type: ignore[valid-type]
        "feed-forward",
        "mixtures in place of feed-forward networks, or as in the paper's appendix E: an additional "
        "residual sub-layer before the encoder's last layer and after the decoder's first",
    )
    moe_importance_weight: float = fairseq_option(0.01, "w_importance (eq 7)")
    moe_load_weight: float = fairseq_option(0.01, "w_load (eq 11), or the weight of GShard's loss")
    moe_noise_floor: float = fairseq_option(
        0.0, "added to the standard deviation of the gate's noise (eq 4); 0 in the paper"
    )
    moe_sigmoid: bool = fairseq_option(False, "apply a sigmoid to a mixture's output (the paper's)")
    moe_recompute: bool = fairseq_option(False, "recompute the experts' hidden activations in the backward pass")
    moe_batchwise_decoder: bool = fairseq_option(
        False, "allow batchwise gating in the decoder, where a token's experts depend on later tokens"
    )


@dataclass
class StudentOptions(FairseqDataclass):
    """Options of smaller models, besides widths and numbers of layers."""

    group_drop: float = fairseq_option(
        0.0,
        "training: probability that a group of layers that share a selection is skipped in an update "
        "(LayerDrop), so that some can be removed afterwards",
    )
    fewer_heads: str = fairseq_option(
        "",
        "attention modules with fewer heads of the same width, such as encoder=6,cross=4; lasformer prune makes them",
    )
    tie_groups: bool = fairseq_option(
        False, "the groups of a stack share the weights of their layers (ALBERT), but not the selectors"
    )


@dataclass
class CompactOptions(FairseqDataclass):
    """Options of DeFINE embeddings (arXiv 1911.12385) and DeLighT blocks (arXiv 2008.00623)."""

    embedding: ChoiceEnum(["lookup", "define", "delight"]) = fairseq_option(  # type: ignore[valid-type]
        "lookup",
        "word embeddings: a table; DeFINE's narrow table, expanded and reduced; or the unit of DeLighT's "
        "official code (encoder and decoder share only its table)",
    )
    define_dim: int = fairseq_option(128, "width of the narrow table (n)")
    define_expand: int = fairseq_option(1024, "widest layer of DeFINE's unit (k)")
    define_depth: int = fairseq_option(3, "group linear transformations in DeFINE's unit (N)")
    define_groups: int = fairseq_option(4, "groups of DeFINE's first layer, halved per layer (g_max)")
    delight: ChoiceEnum(["none", "official", "paper"]) = fairseq_option(  # type: ignore[valid-type]
        "none",
        "DeLighT blocks: a deep, light transformation, then single-head attention of half the width and "
        "a feed-forward network of a quarter of the width (--encoder-attention-heads, --encoder-ffn-embed-dim and "
        "the decoder's are ignored); as in the official code or as in the paper",
    )
    delight_min_depth: int = fairseq_option(4, "layers of the lowest block's transformation (N_min)")
    delight_max_depth: int = fairseq_option(8, "layers of the highest block's transformation (N_max)")
    delight_width: float = fairseq_option(2.0, "width multiplier of the lowest block (w_m)")
    delight_dropout: float = fairseq_option(0.0, "dropout in the transformations")


@dataclass
class ImportOptions(FairseqDataclass):
    """Features of other toolkits' models that fairseq lacks; ``lasformer import`` sets them."""

    position_table: ChoiceEnum(["fairseq", "vaswani"]) = fairseq_option(  # type: ignore[valid-type]
        "fairseq", "frequencies of sinusoidal positions: fairseq's, or those of Vaswani et al. 2017 and Marian"
    )
    zero_first_embedding: bool = fairseq_option(
        False, "start the decoder with a vector of zeros instead of a symbol, as Marian does"
    )
    output_bias: bool = fairseq_option(False, "add a bias to the scores of the words, as Marian does")


@dataclass
class LengthOptions(FairseqDataclass):
    """Options for documents that are longer than the training examples."""

    own_lines: bool = fairseq_option(
        False,
        "positions are counted from the beginning of each line, and every attention also reads the query's "
        "own line, in one softmax with the pattern's keys, which a learned bias per head weighs: a model of single "
        "sentences keeps its quality on documents",
    )
    source_context_only: bool = fairseq_option(
        False,
        "with --own-lines: the decoder's self-attention reads the newest line alone; context is of the "
        "source only, and its lines are translated side by side",
    )
