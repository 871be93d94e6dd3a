"""The model's options in flat and nested form, their checks, and the named architectures.

The command line and the YAML files use a flat dataclass (:class:`LasformerConfig`); the modules use fairseq's nested
``TransformerConfig`` with our options added (:class:`ModuleConfig`). :func:`module_config` is the only conversion
between them. fairseq reads the annotations at run time, hence no ``from __future__ import annotations`` here, and
``Optional[int]`` instead of ``int | None``.
"""

import logging
import math
from argparse import Namespace
from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, NamedTuple, Tuple

from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
    TransformerConfig,
)
from omegaconf import II, DictConfig

from fairseq_lasformer.base.cannot import DELIGHT, MIXTURES, refuse
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.patterns.positional import OwnLine
from fairseq_lasformer.plugin.options import (
    CompactOptions,
    ImportOptions,
    LengthOptions,
    MoeOptions,
    SelectionOptions,
    StudentOptions,
    TransformerOptions,
)
from fairseq_lasformer.plugin.placement import MODULES, group_starts, heads_of, mixture_layers

logger = logging.getLogger(__name__)


@dataclass
class LasformerConfig(
    ImportOptions, LengthOptions, StudentOptions, CompactOptions, MoeOptions, SelectionOptions, TransformerOptions
):
    """The flat form: options of fairseq's Transformer and our own."""

    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@dataclass
class ModuleConfig(
    ImportOptions, LengthOptions, StudentOptions, CompactOptions, MoeOptions, SelectionOptions, TransformerConfig
):
    """The nested form, from which encoder, decoder and layers are built."""


def module_config(cfg: DictConfig | Namespace) -> ModuleConfig:
    """Convert a flat configuration to the nested form.

    Args:
        cfg: a :class:`LasformerConfig`, or any object with its attributes (argparse namespace, ``DictConfig``).

    Raises:
        InputError: an option has an invalid value.
    """
    config = ModuleConfig()
    config.encoder, config.decoder, config.quant_noise = EncDecBaseConfig(), DecoderConfig(), QuantNoiseConfig()
    defaults = LasformerConfig()
    for f in fields(LasformerConfig):
        if f.name.startswith("_"):
            continue
        value = getattr(cfg, f.name, getattr(defaults, f.name))
        for part in ("encoder", "decoder"):
            if f.name.startswith(part + "_"):
                setattr(getattr(config, part), f.name[len(part) + 1 :], value)
                break
        else:
            setattr(config, f.name, value)
    config.decoder.input_dim = config.decoder.output_dim = config.decoder.embed_dim
    if config.embedding != "lookup":
        config.no_scale_embedding = True  # a unit's embeddings already have a standard deviation of about 1
    if config.delight != "none":
        for side in (config.encoder, config.decoder):
            side.attention_heads, side.ffn_embed_dim = 1, side.embed_dim // 4
    _check(config)
    return config


def selected_modules(cfg: SelectionOptions) -> Tuple[str, ...]:
    """Return the attention modules that select keys, in the order of :data:`MODULES`; empty for a dense model.

    Raises:
        InputError: ``--select-modules`` names an unknown module.
    """
    names = [n.strip() for n in cfg.select_modules.split(",") if n.strip()]
    if names == ["none"]:
        return ()
    unknown = [n for n in names if n not in MODULES]
    if unknown or not names:
        raise InputError(f"--select-modules {cfg.select_modules}: expected any of {','.join(MODULES)}, or none")
    return tuple(m for m in MODULES if m in names)


def pattern_spec(cfg: SelectionOptions, module: str) -> str:
    """Return the pattern of an attention module, as ``NAME[:ARGUMENT]``."""
    if module == "decoder" and getattr(cfg, "source_context_only", False):
        return OwnLine.name
    return str(cfg.select_pattern) if module in selected_modules(cfg) else "full"


class AttentionWidths(NamedTuple):
    """Widths of an attention module."""

    query: int  # width of the states that queries are projected from
    key: int  # width of the states that keys are projected from
    attention: int  # width of the attention, all heads together
    out: int


def attention_widths(cfg: ModuleConfig, module: str) -> AttentionWidths:
    """Return the widths of one of :data:`MODULES`.

    DeLighT's attention has half the width of the embedding; its self-attention reads the output of the transformation,
    which has that width as well.
    """
    side = cfg.encoder if module == "encoder" else cfg.decoder
    query, key = side.embed_dim, cfg.encoder.embed_dim if module == "cross" else side.embed_dim
    if cfg.delight == "none":
        return AttentionWidths(query, key, heads_of(cfg, module) * (query // side.attention_heads), query)
    half = query // 2
    return AttentionWidths(query, key, half, query) if module == "cross" else AttentionWidths(half, half, half, query)


def _check(cfg: ModuleConfig) -> None:
    selected_modules(cfg)
    if not 0.0 <= cfg.group_drop < 1.0:
        raise InputError(f"--group-drop {cfg.group_drop}: expected a probability in [0, 1)")
    for module in MODULES:
        heads_of(cfg, module)
    if not cfg.own_lines and any(pattern_spec(cfg, module) == OwnLine.name for module in MODULES):
        raise InputError("--source-context-only and --select-pattern own-line: add --own-lines")
    _check_together(cfg)
    if cfg.select_dim < 1 or cfg.select_share < 1:
        raise InputError("--select-dim and --select-share must be at least 1")
    if cfg.sparsity_warmup < 0:
        raise InputError(f"--sparsity-warmup {cfg.sparsity_warmup}: expected a number of updates, or 0")
    rows = str(cfg.supervise_rows)
    if rows not in ("all", "auto") and (not rows.isdecimal() or int(rows) < 1):
        raise InputError(f"--supervise-rows {rows}: expected all, auto, or a number of at least 1")
    for name in ("sparsity_threshold", "sparsity_min", "sparsity_freeze_above"):
        if not 0.0 < getattr(cfg, name) <= 1.0:
            raise InputError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: expected a share in (0, 1]")
    if not 0.0 <= cfg.sparsity_fixed <= 1.0:
        raise InputError(f"--sparsity-fixed {cfg.sparsity_fixed}: expected a share in (0, 1], or 0 to adapt kappa")
    if not 0.0 < cfg.sparsity_step < 1.0:
        raise InputError(f"--sparsity-step {cfg.sparsity_step}: expected a value in (0, 1)")
    for name in ("dropout", "attention_dropout", "activation_dropout", "delight_dropout"):
        if not 0.0 <= getattr(cfg, name) < 1.0:
            raise InputError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: expected a probability in [0, 1)")
    for part, side in (("encoder", cfg.encoder), ("decoder", cfg.decoder)):
        for name in ("embed_dim", "ffn_embed_dim", "attention_heads", "layers"):
            if getattr(side, name) < 1:
                raise InputError(f"--{part}-{name.replace('_', '-')} {getattr(side, name)}: expected at least 1")
    for part, side in (("encoder", cfg.encoder), ("decoder", cfg.decoder)):
        if side.embed_dim % side.attention_heads:
            raise InputError(
                f"--{part}-embed-dim {side.embed_dim} is not a multiple of --{part}-attention-heads "
                f"{side.attention_heads}"
            )
    shared = cfg.share_all_embeddings or cfg.merge_src_tgt_embed
    if shared and cfg.encoder.embed_dim != cfg.decoder.embed_dim:
        raise InputError("shared embeddings need the same --encoder-embed-dim and --decoder-embed-dim")
    if min(cfg.define_dim, cfg.define_depth, cfg.define_groups) < 1:
        raise InputError("--define-dim, --define-depth and --define-groups must be at least 1")
    if cfg.embedding == "define" and cfg.define_expand < cfg.define_dim:
        raise InputError(
            f"--define-expand {cfg.define_expand}: the unit expands, so this must be at least --define-dim "
            f"{cfg.define_dim}"
        )
    if not (1 <= cfg.delight_min_depth <= cfg.delight_max_depth and 1 <= cfg.delight_width < math.inf):
        raise InputError("--delight-min-depth must be 1 to --delight-max-depth, and --delight-width at least 1")
    group_starts(cfg, "encoder")
    if cfg.moe_experts:
        _check_mixtures(cfg)
    if cfg.delight != "none":
        _check_delight(cfg)


def _check_together(cfg: ModuleConfig) -> None:
    """Refuse options that exclude each other, see :data:`cannot.CANNOT`."""
    delight, mixtures = cfg.delight != "none", bool(cfg.moe_experts)
    learned_positions = {
        "--encoder-learned-pos": cfg.encoder.learned_pos,
        "--decoder-learned-pos": cfg.decoder.learned_pos,
    }
    if cfg.fewer_heads:
        refuse("--fewer-heads", {DELIGHT: delight})
    if cfg.tie_groups:
        refuse("--tie-groups", {MIXTURES: mixtures, DELIGHT: delight})
    if cfg.position_table != "fairseq":
        refuse("--position-table", learned_positions)
    if cfg.output_bias:
        refuse("--output-bias", {"another --embedding than lookup": cfg.embedding != "lookup"})


def _check_delight(cfg: ModuleConfig) -> None:
    widths = [attention_widths(cfg, module).attention for module in selected_modules(cfg)]
    if cfg.encoder.embed_dim % 8 or cfg.decoder.embed_dim % 8:
        raise InputError("--delight: --encoder-embed-dim and --decoder-embed-dim must be multiples of 8")
    learned = any(pattern_spec(cfg, module).startswith("learned") for module in MODULES)
    if learned and cfg.select_dim >= min(widths):
        narrow = min(widths)
        raise InputError(
            f"--select-dim {cfg.select_dim}: DeLighT's attention is {narrow} wide (half of the embedding), so a "
            f"selector this wide saves nothing; use at most {narrow // 2}, or --select-modules none"
        )
    if cfg.moe_experts:
        logger.warning(
            "--delight with --moe-experts: DeLighT's feed-forward networks are a quarter of the embedding wide; "
            "mixtures of such experts add little"
        )


def _check_mixtures(cfg: ModuleConfig) -> None:
    n, k, a, gating = cfg.moe_experts, cfg.moe_top_k, cfg.moe_groups, str(cfg.moe_gating)
    if gating == "gshard-top2" and k != 2:
        raise InputError(f"--moe-gating gshard-top2 uses two experts per token: --moe-top-k {k} must be 2")
    if gating == "noisy-topk" and k < 2:
        raise InputError(f"--moe-top-k {k}: with one expert, its weight is always 1 and the gate learns nothing; use 2")
    if not 1 <= k <= n:
        raise InputError(f"--moe-top-k {k}: a mixture of {n} experts (--moe-experts) can use 1 to {n} of them")
    if a:
        if gating != "noisy-topk":
            raise InputError(f"--moe-groups {a}: a hierarchical mixture needs --moe-gating noisy-topk")
        if n % a or not k <= min(a, n // a):
            raise InputError(
                f"--moe-groups {a}: {n} experts must split evenly into at least --moe-top-k {k} groups of at least {k}"
            )
    for name in ("moe_importance_weight", "moe_load_weight", "moe_noise_floor", "moe_ffn_embed_dim"):
        if not 0 <= getattr(cfg, name) < math.inf:
            raise InputError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: expected a number, 0 or larger")
    places = mixture_layers(cfg)
    if not any(places.values()):
        raise InputError(f"--moe-experts {n}: no layer is a mixture; see --moe-layers")
    if gating == "batchwise" and places["decoder"] and not cfg.moe_batchwise_decoder:
        raise InputError(
            "--moe-gating batchwise lets a decoder's tokens depend on later ones; keep it to the encoder (--moe-layers "
            "2,0, without --moe-placement shazeer) or add --moe-batchwise-decoder"
        )


def _sizes(dim: int, ffn: int, heads: int, layers: int, **more: Any) -> Dict[str, Any]:
    both = {"embed_dim": dim, "ffn_embed_dim": ffn, "attention_heads": heads, "layers": layers}
    return {f"{part}_{k}": v for part in ("encoder", "decoder") for k, v in both.items()} | more


# Named architectures. A preset lists only differences from LasformerConfig's defaults (Transformer base).
_DELIGHT = {"delight": "official", "embedding": "delight", "encoder_layers": 8, "decoder_layers": 8}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "lasformer_delight": {**_DELIGHT, "select_share": 4, "share_all_embeddings": True},
    "delight_transformer": {**_DELIGHT, "select_modules": "none", "share_all_embeddings": True},
    "lasformer_moe": {"moe_experts": 8},
    "transformer_moe": {"moe_experts": 8, "select_modules": "none"},
    "lasformer_small": _sizes(256, 1024, 4, 4, select_share=2, select_dim=32),
    "lasformer_tiny": _sizes(128, 256, 2, 2, select_share=2, select_dim=32),
    "lasformer_6_2": {"decoder_layers": 2},
    "lasformer_tiny_3_1": _sizes(128, 256, 2, 3, decoder_layers=1, select_share=3, select_dim=32),
    "lasformer_dense": {"select_modules": "none"},
    "lasformer_dense_small": _sizes(256, 1024, 4, 4, select_modules="none"),
    "lasformer_dense_tiny": _sizes(128, 256, 2, 2, select_modules="none"),
}
