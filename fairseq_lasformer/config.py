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
    select_window: int = field(
        default=0,
        metadata={
            "help": "keep this many keys around the query instead of the learned selection (ablation); 0: learned"
        },
    )
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
class MoeFlags(FairseqDataclass):
    """The options of the mixtures of experts (1701.06538), shared by both faces of the configuration."""

    moe_experts: int = field(default=0, metadata={"help": "experts a mixture of experts has (n); 0: no mixtures"})
    moe_top_k: int = field(default=2, metadata={"help": "experts a token goes to (k); at each level, if hierarchical"})
    moe_gating: ChoiceEnum(["noisy-topk", "softmax", "batchwise", "gshard-top2"]) = field(  # type: ignore[valid-type]
        default="noisy-topk",
        metadata={"help": "how tokens are given to experts: eq 3-5, eq 2 (all of them), eq 15-20, or GShard's top-2"},
    )
    moe_groups: int = field(
        default=0, metadata={"help": "groups of a hierarchical mixture (a, eq 12); 0: a flat one (needs noisy-topk)"}
    )
    moe_ffn_embed_dim: int = field(
        default=0, metadata={"help": "hidden width of one expert (h); 0: the feed-forward width of its side"}
    )
    moe_every: str = field(
        default="2", metadata={"help": "every N-th layer is a mixture; N or N,M for encoder and decoder, 0 for none"}
    )
    moe_layers: str = field(
        default="", metadata={"help": "instead of --moe-every: these layers, as encoder.1,decoder.3 (from 0)"}
    )
    moe_placement: ChoiceEnum(["feed-forward", "shazeer"]) = field(  # type: ignore[valid-type]
        default="feed-forward",
        metadata={
            "help": "mixtures in place of feed-forward networks, or as in the paper's appendix E: one more residual "
            "sub-layer before the encoder's last layer and after the decoder's first"
        },
    )
    moe_importance_weight: float = field(default=0.01, metadata={"help": "w_importance (eq 7)"})
    moe_load_weight: float = field(default=0.01, metadata={"help": "w_load (eq 11); weight of GShard's loss"})
    moe_sigmoid: bool = field(default=False, metadata={"help": "sigmoid on a mixture's output (the paper's)"})
    moe_recompute: bool = field(
        default=False, metadata={"help": "compute the experts' hidden activations again in the backward pass"}
    )
    moe_backend: ChoiceEnum(["auto", "grouped", "loop"]) = field(  # type: ignore[valid-type]
        default="auto", metadata={"help": "experts as one grouped product or one after the other"}
    )
    moe_batchwise_decoder: bool = field(
        default=False,
        metadata={"help": "allow batchwise gating in the decoder, where a token's experts depend on later tokens"},
    )


@dataclass
class LasformerConfig(MoeFlags, SelectionFlags, TransformerFlags):
    """The flat face: fairseq's Transformer flags, the selection's and the mixtures'."""

    max_source_positions: int = II("task.max_source_positions")
    max_target_positions: int = II("task.max_target_positions")


@dataclass
class ModuleConfig(MoeFlags, SelectionFlags, TransformerConfig):
    """The nested face that encoder, decoder and layers read.

    ``attention_backend``, ``cuda_graph`` and ``expert_workers`` (``moe.ExpertWorkers`` or None) belong to the run, not
    to the model: they come from the task.
    """

    attention_backend: str = "auto"
    cuda_graph: bool = False
    expert_workers: Any = None


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
    if cfg.select_window < 0:
        raise InputError(f"--select-window {cfg.select_window}: cannot be negative")
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
    if cfg.moe_experts:
        _check_mixtures(cfg)


def _check_mixtures(cfg: ModuleConfig) -> None:
    n, k, a, gating = cfg.moe_experts, cfg.moe_top_k, cfg.moe_groups, str(cfg.moe_gating)
    if gating == "gshard-top2" and k != 2:
        raise InputError(f"--moe-gating gshard-top2 takes two experts a token: --moe-top-k {k} must be 2")
    if gating == "noisy-topk" and k < 2:
        raise InputError(f"--moe-top-k {k}: with one expert its weight is always 1 and the gate learns nothing; use 2")
    if not 1 <= k <= n:
        raise InputError(f"--moe-top-k {k}: a mixture of {n} experts (--moe-experts) can use 1 to {n} of them")
    if a:
        if gating != "noisy-topk":
            raise InputError(f"--moe-groups {a}: a hierarchical mixture needs --moe-gating noisy-topk")
        if n % a or not k <= min(a, n // a):
            raise InputError(
                f"--moe-groups {a}: {n} experts must divide into groups, at least --moe-top-k {k} of as many experts"
            )
    for name in ("moe_importance_weight", "moe_load_weight", "moe_ffn_embed_dim"):
        if getattr(cfg, name) < 0:
            raise InputError(f"--{name.replace('_', '-')} {getattr(cfg, name)}: cannot be negative")
    places = mixture_layers(cfg)
    if not any(places.values()):
        raise InputError(f"--moe-experts {n}: no layer is a mixture; see --moe-every and --moe-layers")
    if gating == "batchwise" and places["decoder"] and not cfg.moe_batchwise_decoder:
        raise InputError(
            "--moe-gating batchwise lets a decoder's tokens depend on later ones; keep it to the encoder (--moe-every "
            "2,0) or add --moe-batchwise-decoder"
        )


def mixture_layers(cfg: ModuleConfig) -> Dict[str, Tuple[int, ...]]:
    """The layers with a mixture of experts, from 0, by side; in the paper's placement those it comes after."""
    sides = {"encoder": cfg.encoder.layers, "decoder": cfg.decoder.layers}
    if not cfg.moe_experts:
        return {side: () for side in sides}
    if cfg.moe_placement == "shazeer":
        return {"encoder": (max(0, sides["encoder"] - 2),), "decoder": (0,)}
    if cfg.moe_layers:
        found: Dict[str, List[int]] = {side: [] for side in sides}
        for name in cfg.moe_layers.split(","):
            side, _, place = name.strip().partition(".")
            if side not in sides or not place.isdecimal() or int(place) >= sides[side]:
                raise InputError(f"--moe-layers {cfg.moe_layers}: no layer {name.strip()}; expected e.g. encoder.1")
            found[side].append(int(place))
        return {side: tuple(sorted(set(layers))) for side, layers in found.items()}
    every = [e.strip() for e in cfg.moe_every.split(",")]
    if len(every) > 2 or not all(e.isdecimal() for e in every):
        raise InputError(f"--moe-every {cfg.moe_every}: expected N or N,M")
    steps = dict(zip(sides, (int(e) for e in every * (3 - len(every)))))
    return {side: tuple(range(steps[side] - 1, n, steps[side])) if steps[side] else () for side, n in sides.items()}


def _sizes(dim: int, ffn: int, heads: int, layers: int, **more: Any) -> Dict[str, Any]:
    both = {"embed_dim": dim, "ffn_embed_dim": ffn, "attention_heads": heads, "layers": layers}
    return {f"{part}_{k}": v for part in ("encoder", "decoder") for k, v in both.items()} | more


# The named architectures. A preset holds only what differs from LasformerConfig's defaults (Transformer base).
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "lasformer_moe": {"moe_experts": 8},
    "transformer_moe": {"moe_experts": 8, "select_modules": "none"},
    "lasformer_small": _sizes(256, 1024, 4, 4, select_share=2, select_dim=32),
    "lasformer_tiny": _sizes(128, 256, 2, 2, select_share=2, select_dim=32),
    "lasformer_dense": {"select_modules": "none"},
    "lasformer_dense_small": _sizes(256, 1024, 4, 4, select_modules="none"),
    "lasformer_dense_tiny": _sizes(128, 256, 2, 2, select_modules="none"),
}
