"""Construction of the encoder and decoder stacks from the options. Equations: arXiv 2309.14174."""

from collections.abc import Sequence
from typing import Any

import torch
from fairseq import utils
from omegaconf import DictConfig
from torch import nn

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.activations import FUNCTIONS
from fairseq_lasformer.nn.attentions import ATTENTIONS, Attention, AttentionOptions, SelectedAttention
from fairseq_lasformer.nn.compact.embedding import ExpandedEmbedding, TableProjection, define_sizes, expanded_embedding
from fairseq_lasformer.nn.compact.group_linear import ExpandReduce, block_sizes, max_groups, official_sizes, paper_sizes
from fairseq_lasformer.nn.layers import DecoderLayer, EncoderLayer, FeedForward, TransformerLayer
from fairseq_lasformer.nn.moe import MixtureOfExperts, MoeConfig
from fairseq_lasformer.nn.options import ABOVE, PLACES, RowSampling, RunOptions, SupervisionOptions
from fairseq_lasformer.nn.others import usage
from fairseq_lasformer.nn.patterns import PATTERNS, Pattern, PatternOptions, build_pattern
from fairseq_lasformer.nn.sparsity import SparsityRule
from fairseq_lasformer.nn.stack import LayerStack
from fairseq_lasformer.plugin.config import ModuleConfig, attention_widths, pattern_spec
from fairseq_lasformer.plugin.placement import MODULES, group_starts, heads_of, mixture_layers


def encoder_stack(cfg: ModuleConfig, run: RunOptions) -> LayerStack:
    """Build all encoder layers."""
    layers = []
    for i in range(cfg.encoder.layers):
        self_attn = attention(cfg, "encoder", i, run)
        parts, transformation = feed_forward(cfg, "encoder", i, run), _transformation(cfg, "encoder", i)
        dim, pre_norm = cfg.encoder.embed_dim, cfg.encoder.normalize_before
        layers.append(EncoderLayer(i, dim, self_attn, parts, transformation, cfg.dropout, pre_norm))
    return _stack(cfg, layers, ("encoder",))


def decoder_stack(cfg: ModuleConfig, run: RunOptions) -> LayerStack:
    """Build all decoder layers."""
    layers = []
    for i in range(cfg.decoder.layers):
        self_attn, encoder_attn = attention(cfg, "decoder", i, run), attention(cfg, "cross", i, run)
        parts, transformation = feed_forward(cfg, "decoder", i, run), _transformation(cfg, "decoder", i)
        dim, pre_norm = cfg.decoder.embed_dim, cfg.decoder.normalize_before
        layers.append(DecoderLayer(i, dim, self_attn, encoder_attn, parts, transformation, cfg.dropout, pre_norm))
    return _stack(cfg, layers, ("decoder", "cross"))


def _stack(cfg: ModuleConfig, layers: Sequence[TransformerLayer], modules: tuple[str, ...]) -> LayerStack:
    """Group the layers of a side; with ``--tie-groups``, later groups get the first group's weights."""
    starts = group_starts(cfg, modules[0])
    if cfg.tie_groups:
        for start, end in zip(starts[1:], (*starts[2:], len(layers))):
            for layer, first in zip(layers[start:end], layers):
                _tie(layer, first)
    return LayerStack(layers, starts, modules, cfg.group_drop)


def _tie(layer: TransformerLayer, first: TransformerLayer) -> None:
    """Replace a layer's projections with another's; it keeps its layer norms and selectors (arXiv 1909.11942)."""
    for owner, other in ((layer, first), *((getattr(layer, n), getattr(first, n)) for n in layer.attentions)):
        for name, module in list(owner.named_children()):
            if isinstance(module, nn.Linear):
                setattr(owner, name, getattr(other, name))


def supervision(cfg: ModuleConfig) -> SupervisionOptions:
    """Return how the model's patterns are supervised in training."""
    return SupervisionOptions(str(cfg.select_kl), str(cfg.select_target))


def sampling(cfg: ModuleConfig, update: int, device: torch.device) -> RowSampling:
    """Return which queries the model's patterns learn from in an update.

    With ``--supervise-rows auto``, a sample; on CPUs, all while kappa is high, where the attention itself costs more.
    """
    rows, on_cpu = str(cfg.supervise_rows), device.type == "cpu"
    drawn = RowSampling(above=1.0, update=update, places=0 if on_cpu else PLACES)
    if rows == "auto":
        return drawn._replace(above=ABOVE if on_cpu else 1.0)
    return drawn._replace(rows=0 if rows == "all" else int(rows))


def pattern(cfg: ModuleConfig, module: str, backend: str = "auto") -> Pattern:
    """Build the pattern for a group of one attention module.

    Raises:
        InputError: unknown pattern or invalid argument.
    """
    widths, spec = attention_widths(cfg, module), pattern_spec(cfg, module)
    bounds = cfg.sparsity_min, cfg.sparsity_freeze_above
    rule = SparsityRule(cfg.sparsity_threshold, cfg.sparsity_step, *bounds, fixed=cfg.sparsity_fixed)
    options = PatternOptions(widths.query, widths.key, cfg.select_dim, rule, str(cfg.select_gradient), backend)
    options = options._replace(
        live=str(cfg.select_input) == "live", same_text=module != "cross", own_lines=cfg.own_lines
    )
    if spec.partition(":")[0] not in PATTERNS:
        raise InputError(f"--select-pattern {spec}: expected one of {usage()}")
    try:
        return build_pattern(spec, options)
    except ValueError as e:
        raise InputError(f"--select-pattern {spec}: {e}") from e


def attention(cfg: ModuleConfig, module: str, layer: int, run: RunOptions) -> Attention:
    """Build one attention of a layer; only the lowest layer of a group has a pattern (eq 8).

    Raises:
        InputError: unknown pattern or attention, or an invalid argument.
    """
    widths = attention_widths(cfg, module)
    heads = heads_of(cfg, module)
    options = AttentionOptions(
        *(widths.attention, heads, widths.query, widths.key, widths.out),
        *(cfg.attention_dropout, run.backend, cfg.own_lines),
    )
    name, _, argument = pattern_spec(cfg, module).partition(":")
    if name in ATTENTIONS:
        if module == "decoder" and not ATTENTIONS[name].causal:
            raise InputError(
                f"--select-pattern {name}: not for the decoder's self-attention, as it reads the whole text at once; "
                "add --select-modules encoder,cross"
            )
        try:
            return ATTENTIONS[name].build(argument, options)
        except ValueError as e:
            raise InputError(f"--select-pattern {name}:{argument}: {e}") from e
    lowest = layer in group_starts(cfg, module)
    return SelectedAttention(options, pattern(cfg, module, run.backend) if lowest else None)


def without_keys(cfg: ModuleConfig) -> list[str]:
    """Return the attention modules that read a summary instead of the keys, each with the name of its attention."""
    names = {module: pattern_spec(cfg, module).partition(":")[0] for module in MODULES}
    return [f"{module} ({name})" for module, name in names.items() if name in ATTENTIONS]


def priced(cfg: ModuleConfig, module: str) -> Pattern | Attention:
    """Build what determines the cost of an attention module: its pattern, or its attention if it selects nothing."""
    if pattern_spec(cfg, module).partition(":")[0] in ATTENTIONS:
        return attention(cfg, module, 0, RunOptions())
    return pattern(cfg, module)


def feed_forward(cfg: ModuleConfig, side: str, layer: int, run: RunOptions) -> FeedForward:
    """Build the modules that follow a layer's attention: a dense network, a mixture of experts, or both."""
    sizes = getattr(cfg, side)
    moe = None
    if layer in mixture_layers(cfg)[side]:
        ffn_dim = cfg.moe_ffn_embed_dim or sizes.ffn_embed_dim
        moe = MixtureOfExperts(moe_config(cfg), sizes.embed_dim, ffn_dim, run.expert_group)
    after = moe is not None and cfg.moe_placement == "shazeer"
    dense = moe is None or after
    return FeedForward(
        nn.Linear(sizes.embed_dim, sizes.ffn_embed_dim) if dense else None,
        nn.Linear(sizes.ffn_embed_dim, sizes.embed_dim) if dense else None,
        FUNCTIONS.get(str(cfg.activation_fn)) or utils.get_activation_fn(cfg.activation_fn),
        cfg.activation_dropout,
        moe,
        nn.LayerNorm(sizes.embed_dim) if after else None,
    )


def embedding(cfg: DictConfig, n_words: int, out_dim: int, padding_idx: int) -> ExpandedEmbedding:
    """Build the embedding that ``--embedding`` names, other than ``lookup``.

    Raises:
        InputError: a width is not divisible by its number of groups.
    """
    n = cfg.define_dim
    if cfg.embedding == "define":
        sizes = define_sizes(n, cfg.define_expand, out_dim, cfg.define_depth, cfg.define_groups)
    else:
        g_max = max_groups(out_dim, official=True)
        sizes = official_sizes(n, out_dim // 2, out_dim, cfg.delight_min_depth, cfg.delight_width, g_max)
    try:
        return expanded_embedding(n_words, n, out_dim, padding_idx, sizes)
    except ValueError as e:
        raise InputError(f"--embedding {cfg.embedding}: {e}") from e


def output_projection(dim: int, n_words: int, embed_tokens: Any, cfg: ModuleConfig) -> nn.Module:
    """Build the output projection to the vocabulary: fairseq's, or through a narrow table if the embedding has one."""
    shared = cfg.share_decoder_input_output_embed
    if isinstance(embed_tokens, ExpandedEmbedding):
        table = embed_tokens.weight
        if not shared:
            table = nn.Parameter(torch.randn_like(table) * table.size(1) ** -0.5)
        return TableProjection(dim, table)
    projection = nn.Linear(dim, n_words, bias=cfg.output_bias)
    if cfg.output_bias:
        nn.init.zeros_(projection.bias)
    if shared:
        projection.weight = embed_tokens.weight
    else:
        nn.init.normal_(projection.weight, std=dim**-0.5)
    return projection


def moe_config(cfg: ModuleConfig) -> MoeConfig:
    """Return the options of the mixtures."""
    return MoeConfig(
        n_experts=cfg.moe_experts,
        top_k=cfg.moe_top_k,
        gating=str(cfg.moe_gating),
        groups=cfg.moe_groups,
        importance_weight=cfg.moe_importance_weight,
        load_weight=cfg.moe_load_weight,
        noise_floor=cfg.moe_noise_floor,
        sigmoid=cfg.moe_sigmoid,
        recompute=cfg.moe_recompute,
    )


def _transformation(cfg: ModuleConfig, side: str, layer: int) -> nn.Module:
    """Build a layer's DeLighT transformation m -> m / 2; the identity in other models.

    Block-wise scaling makes it deeper and wider towards the output.
    """
    if cfg.delight == "none":
        return nn.Identity()
    sizes = getattr(cfg, side)
    n, width = block_sizes(cfg.delight_min_depth, cfg.delight_max_depth, cfg.delight_width, sizes.layers)[layer]
    dim, official = sizes.embed_dim, cfg.delight == "official"
    g_max = max_groups(dim, official)
    if official:
        shape = official_sizes(dim, dim // 2, dim // 2, n, width, g_max)
    else:
        shape = paper_sizes(dim, dim // 2, n, width, g_max)
    try:
        return ExpandReduce(dim, shape, dropout=cfg.delight_dropout)
    except ValueError as e:
        raise InputError(f"--delight {cfg.delight} with --{side}-embed-dim {dim}: {e}; use a multiple of 64") from e
