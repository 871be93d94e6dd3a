"""Every option of the model, once.

The command line and the YAML files see one flat dataclass (:class:`LasformerConfig`); the modules see fairseq's
nested ``TransformerConfig`` with the selection's options added (:class:`ModuleConfig`). :func:`module_config`
is the only way from one to the other. fairseq reads the annotations at run time, hence no
``from __future__ import annotations`` here, and ``Optional[int]`` instead of ``int | None``.
"""

from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Any, Dict, List, Mapping, Tuple

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
    TransformerConfig,
)
from omegaconf import II

from fairseq_lasformer.documents import InputError

MODULES = ("encoder", "decoder", "cross")

# Flags of fairseq's Transformer that have no meaning here, or break a shared selection.
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


def _transformer_flags() -> List[Tuple[str, Any, Any]]:
    """fairseq's nested Transformer options as flat ``(name, type, field)`` triples."""
    nested = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}
    flags = []
    for outer in fields(TransformerConfig):
        inner = fields(nested[outer.name]) if outer.name in nested else [outer]
        prefix = f"{outer.name}_" if outer.name in nested else ""
        for f in inner:
            name = prefix + f.name
            if name.startswith("_") or name in _LEFT_OUT or name.startswith("quant_noise"):
                continue
            default = {"default": f.default} if f.default is not MISSING else {"default_factory": f.default_factory}
            flags.append((name, f.type, field(metadata=dict(f.metadata), **default)))
    return flags


TransformerFlags: Any = make_dataclass("TransformerFlags", _transformer_flags(), bases=(FairseqDataclass,))


@dataclass
class SelectionFlags(FairseqDataclass):
    """The options of the selection (spec: eq 1-8), shared by both faces of the configuration."""

    select_modules: str = field(
        default="encoder,decoder,cross",
        metadata={"help": "attention modules that select their keys: any of encoder,decoder,cross, or none (dense)"},
    )
    select_dim: int = field(default=64, metadata={"help": "width of the selector's single head (d_s)"})
    select_share: int = field(default=3, metadata={"help": "layers that share one selection (r, eq 8)"})
    select_gradient: ChoiceEnum(["straight-through", "none"]) = field(  # type: ignore[valid-type]
        default="straight-through",
        metadata={"help": "gradient of the translation loss through the selection (eq 3)"},
    )
    select_kl: ChoiceEnum(["forward", "reverse"]) = field(  # type: ignore[valid-type]
        default="forward",
        metadata={"help": "supervision: forward KL(attention || selector) or reverse KL(selector || attention) (eq 5)"},
    )
    select_target: ChoiceEnum(["live", "detached"]) = field(  # type: ignore[valid-type]
        default="live",
        metadata={"help": "whether the supervision also trains the attention it is taught by"},
    )
    sparsity_threshold: float = field(
        default=0.95, metadata={"help": "attention mass the kept keys must hold before fewer are kept (t, eq 7)"}
    )
    sparsity_step: float = field(default=0.001, metadata={"help": "change of kappa per update (eq 7)"})
    sparsity_min: float = field(default=0.01, metadata={"help": "smallest kappa"})
    sparsity_freeze_above: float = field(default=0.5, metadata={"help": "kappa does not grow while it is above this"})
    sparsity_mass: ChoiceEnum(["selection", "attention"]) = field(  # type: ignore[valid-type]
        default="selection",
        metadata={"help": "whose mass over the kept keys steers kappa: the selector's or the attention's own"},
    )


@dataclass
class LasformerConfig(SelectionFlags, TransformerFlags):
    """The flat face: fairseq's Transformer flags and the selection's."""

    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@dataclass
class ModuleConfig(SelectionFlags, TransformerConfig):
    """The nested face that encoder, decoder and layers read.

    ``attention_backend`` and ``cuda_graph`` belong to the run, not to the model: they come from the task.
    """

    attention_backend: str = "auto"
    cuda_graph: bool = False


def module_config(cfg: Any) -> ModuleConfig:
    """Nested configuration of a flat one.

    Args:
        cfg: a :class:`LasformerConfig`, or anything with its attributes (argparse namespace, ``DictConfig``).

    Raises:
        InputError: an option's value makes no sense.
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
    _check(config)
    return config


def selected_modules(cfg: SelectionFlags) -> Tuple[str, ...]:
    """The attention modules that select, in the order of :data:`MODULES`; empty for a dense model."""
    names = [n.strip() for n in cfg.select_modules.split(",") if n.strip()]
    if names == ["none"]:
        return ()
    unknown = [n for n in names if n not in MODULES]
    if unknown or not names:
        raise InputError(f"--select-modules {cfg.select_modules}: expected any of {','.join(MODULES)}, or none")
    return tuple(m for m in MODULES if m in names)


def _check(cfg: ModuleConfig) -> None:
    selected_modules(cfg)
    if cfg.select_dim < 1 or cfg.select_share < 1:
        raise InputError("--select-dim and --select-share must be at least 1")
    for name in ("sparsity_threshold", "sparsity_min", "sparsity_freeze_above"):
        if not 0.0 < getattr(cfg, name) <= 1.0:
            raise InputError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: expected a share in (0, 1]")
    if not 0.0 < cfg.sparsity_step < 1.0:
        raise InputError(f"--sparsity-step {cfg.sparsity_step}: expected a value in (0, 1)")
    for part, side in (("encoder", cfg.encoder), ("decoder", cfg.decoder)):
        if side.embed_dim % side.attention_heads:
            raise InputError(
                f"--{part}-embed-dim {side.embed_dim} is not a multiple of --{part}-attention-heads "
                f"{side.attention_heads}"
            )


def _sizes(dim: int, ffn: int, heads: int, layers: int, **more: Any) -> Dict[str, Any]:
    both = {"embed_dim": dim, "ffn_embed_dim": ffn, "attention_heads": heads, "layers": layers}
    return {f"{part}_{k}": v for part in ("encoder", "decoder") for k, v in both.items()} | more


# The named architectures. A preset holds only what differs from LasformerConfig's defaults (Transformer base).
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "lasformer_small": _sizes(256, 1024, 4, 4, select_share=2, select_dim=32),
    "lasformer_tiny": _sizes(128, 256, 2, 2, select_share=2, select_dim=32),
    "lasformer_dense": {"select_modules": "none"},
    "lasformer_dense_small": _sizes(256, 1024, 4, 4, select_modules="none"),
    "lasformer_dense_tiny": _sizes(128, 256, 2, 2, select_modules="none"),
}
