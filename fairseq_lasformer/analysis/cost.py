"""The cost of attention with a checkpoint's learned selection (eq 9, 10 of arXiv 2309.14174), and of the whole model.

C_Transformer = 2 n N^2 d,   C_Lasformer = (n / r) N^2 d_s + 2 kappa n N^2 d,

in multiply-accumulates for a side of n layers at N tokens, per attention module. The projections to queries, keys and
values (and the selector's own), which are included in the paper's figure of 15 % at 8,000 tokens, are reported
separately, as is the output projection. With own lines, kappa is the share of the other keys. d is the width of the
attention; in DeLighT blocks, half the embedding width.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fairseq_lasformer.base.errors import InputError, in_one_line
from fairseq_lasformer.base.records import State
from fairseq_lasformer.checkpoints.loading import architecture, load
from fairseq_lasformer.nn.attentions import Attention
from fairseq_lasformer.nn.others.relational import LINE
from fairseq_lasformer.nn.patterns import Pattern
from fairseq_lasformer.nn.patterns.learned import learned
from fairseq_lasformer.ops import KAPPA_ONE
from fairseq_lasformer.plugin import build
from fairseq_lasformer.plugin.config import PRESETS, ModuleConfig, attention_widths, module_config
from fairseq_lasformer.plugin.placement import MODULES, group_starts

LONGEST = 10**9


Priced = Pattern | Attention
"""Basis of an attention module's cost: its pattern, or an attention that selects nothing."""


class Cost(NamedTuple):
    """Multiply-accumulates at one length.

    They refer to one attention module, to all three (``all``), or to the whole ``model``: every product of a forward
    pass over the same number of source and target tokens, including projections.
    """

    module: str  # attention module, `all` or `model`
    length: int  # number of tokens
    kappa: float  # mean kappa of the groups
    # dense, sparse: cost of attention in the Transformer and in Lasformer
    dense: float
    sparse: float
    # dense_projections, sparse_projections: cost of the projections to queries, keys and values; the latter includes
    # those of the selectors
    dense_projections: float
    sparse_projections: float
    output_projection: float  # cost of the output projection, the same for both

    @property
    def ratio(self) -> float:
        """Cost of attention alone, Lasformer relative to the Transformer."""
        return self.sparse / self.dense

    @property
    def ratio_with_projections(self) -> float:
        """Ratio including the projections to queries, keys and values: the paper's 15 %."""
        return (self.sparse + self.sparse_projections) / (self.dense + self.dense_projections)

    @property
    def ratio_with_all_projections(self) -> float:
        """Ratio including the output projection as well."""
        sparse, dense = self.sparse + self.sparse_projections, self.dense + self.dense_projections
        return (sparse + self.output_projection) / (dense + self.output_projection)


def module_cost(module: str, cfg: ModuleConfig, patterns: Sequence[Priced], length: int) -> Cost:
    """Return the cost of one attention module at ``length`` tokens, with own lines of :data:`LINE` tokens.

    Args:
        module: one of :data:`MODULES`.
        patterns: pattern of each group; see :func:`module_patterns`.
        length: number of tokens.
    """
    side = cfg.encoder if module == "encoder" else cfg.decoder
    n, square = side.layers, float(length) ** 2
    query, key, d, out = attention_widths(cfg, module)
    dense = 2 * n * square * d
    projections, output = float(n * length) * (query + 2 * key) * d, float(n * length) * out * d
    own = min(1.0, LINE / length) if cfg.own_lines else 0.0
    sparse = extra = attended = 0.0
    starts = group_starts(cfg, module)
    for start, end, pattern in zip(starts, (*starts[1:], n), patterns):
        cost = pattern.cost(length)
        times = end - start if cost.each_layer else 1
        sparse += 2 * (own + cost.kept * (1 - own)) * (end - start) * square * d + times * cost.scores
        extra += times * cost.projections
        attended += (cost.kept if pattern.share is None else pattern.share) / len(patterns)
    return Cost(module, length, attended, dense, sparse, projections, projections + extra, output)


def module_patterns(module: str, cfg: ModuleConfig, kappas: Sequence[float]) -> list[Priced]:
    """Return the patterns of a module's groups.

    Args:
        module: one of :data:`MODULES`.
        kappas: kappa of each group, as a share, if the pattern is learned.
    """
    patterns = [build.priced(cfg, module) for _ in group_starts(cfg, module)]
    for pattern, kappa in zip(patterns, kappas):
        for _, selector in learned([(module, pattern)]):
            selector.set_share(kappa)
    return patterns


def state_config(state: State) -> ModuleConfig:
    """Return the configuration of the modules in a loaded checkpoint of one of our architectures."""
    try:
        return module_config(Namespace(**state["cfg"]["model"]))
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, KeyError, RuntimeError) as e:
        raise InputError(f"its settings cannot be used ({in_one_line(e)})") from e


def checkpoint_patterns(state: State) -> dict[str, list[Priced]]:
    """Return the patterns of a trained checkpoint, by module, with their learned kappa."""
    cfg, learned = state_config(state), kappas(state["model"])
    return {module: module_patterns(module, cfg, learned[module]) for module in MODULES}


def mean_kappa(patterns: Sequence[Priced]) -> float | None:
    """Return the mean kappa of the patterns; full attention counts as 1. None if no pattern has a kappa."""
    shares = [p.share for p in patterns if p.share is not None]
    return sum(shares) / len(shares) if shares else None


def checkpoint_cost(path: str | Path, lengths: Sequence[int]) -> list[Cost]:
    """Return the costs per module and in total, at every length, based on the kappa of a trained checkpoint.

    Args:
        lengths: numbers of tokens.
    """
    state = load(path)
    if not of_ours(state):
        name = architecture(state) or "unknown"
        raise InputError(f"{path}: is of architecture {name}; costs can be computed only for lasformer checkpoints")
    try:
        return state_cost(state, lengths)
    except InputError as e:
        raise InputError(str(e) if str(e).startswith("--") else f"{path}: {e}") from e


def state_cost(state: State, lengths: Sequence[int]) -> list[Cost]:
    """Return the same costs from a loaded checkpoint of one of our architectures."""
    cfg = state_config(state)
    weights, patterns = weight_products(state["model"], cfg), checkpoint_patterns(state)
    costs = []
    for length in lengths:
        if not 0 < length <= LONGEST:
            raise InputError(f"--lengths: {length} is not a number of tokens from 1 to {LONGEST:,}")
        each = [module_cost(m, cfg, patterns[m], length) for m in MODULES]
        sums = [sum(getattr(c, f) for c in each) for f in Cost._fields[3:]]
        kappa = mean_kappa(
            [selector for _, selector in learned((m, pattern) for m in MODULES for pattern in patterns[m])]
        )
        attention = Cost("all", length, sum(c.kappa for c in each) / len(each) if kappa is None else kappa, *sums)
        dense = attention.dense + length * weights
        # apart from scores and weighted sums, a selection adds only the selectors' projections
        sparse = attention.sparse + length * weights + attention.sparse_projections - attention.dense_projections
        costs += [*each, attention, Cost("model", length, attention.kappa, dense, sparse, 0.0, 0.0, 0.0)]
    return costs


def of_ours(state: State) -> bool:
    """Return whether a checkpoint's architecture is one of those registered by this package."""
    return architecture(state) in ("lasformer", *PRESETS)


def weight_products(weights: dict[str, Any], cfg: ModuleConfig) -> float:
    """Return the multiply-accumulates of the weight matrices for one source and one target token, without selectors.

    In a mixture of experts, only the experts that process a token are counted. Table lookups cost nothing.
    """
    used = {"softmax": cfg.moe_experts}.get(str(cfg.moe_gating), cfg.moe_top_k ** (2 if cfg.moe_groups else 1))
    total = 0.0
    for name, weight in weights.items():
        if weight.dim() < 2 or ".selector." in name or "embed_positions" in name or name.endswith(".noise"):
            continue
        if name.endswith(("embed_tokens.weight", "embed_tokens.embedding.weight")):
            continue
        share = used / weight.size(0) if name.endswith((".w1", ".w2")) else 1.0
        total += share * weight.numel()
    return total


def kappas(weights: dict[str, Any]) -> dict[str, list[float]]:
    """Return the kappa of every group, by module, from a model's state."""
    stems = {
        "encoder": ("encoder.", "self_attn"),
        "decoder": ("decoder.", "self_attn"),
        "cross": ("decoder.", "encoder_attn"),
    }
    by_module = {}
    for module, (side, attention) in stems.items():
        names = [k for k in weights if k.startswith(side) and k.endswith(f"{attention}.selector.kappa")]
        names.sort(key=lambda k: int(k.split(".")[2]))
        by_module[module] = [int(weights[k]) / KAPPA_ONE for k in names]
    return by_module


def table(costs: Sequence[Cost]) -> str:
    """Format costs for a terminal: GMACs, and the ratios to the dense Transformer."""
    head = f"{'length':>7} {'module':<8}{'kappa':>7}{'dense':>10}{'sparse':>10}{'ratio':>8}"
    head += f"{'+ Q, K, V':>11}{'+ output':>10}"
    lines = [head]
    for c in costs:
        lines.append(
            f"{c.length:>7} {c.module:<8}{c.kappa:>7.3f}{c.dense / 1e9:>10.3f}{c.sparse / 1e9:>10.3f}"
            f"{c.ratio:>8.1%}{c.ratio_with_projections:>11.1%}{c.ratio_with_all_projections:>10.1%}"
        )
    lines += [
        "dense, sparse: billions of multiply-accumulates in attention (model: in all products of a forward pass);",
        "ratio: sparse to dense; + Q, K, V: including the projections to queries, keys and values, as in the paper;",
        f"+ output: including the output projection as well; own lines (--own-lines) count as {LINE} tokens",
    ]
    return "\n".join(lines)


def stored(weights: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters in a checkpoint; a shared table once, where it first occurs, even if it is stored twice."""
    tables: list[torch.Tensor] = []
    for name, weight in weights.items():
        if not weight.is_floating_point() or name.endswith(("_float_tensor", ".version")):
            continue
        if name.endswith(("embed_tokens.weight", "output_projection.weight")):
            if any(weight.shape == one.shape and torch.equal(weight, one) for one in tables):
                continue
            tables.append(weight)
        yield name, weight


def parts(named: Iterable[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """Count parameters by part, with ``total`` last.

    Args:
        named: names and parameters, shared ones once.
    """
    counts = {"word tables": 0, "embedding units": 0, "encoder": 0, "decoder": 0, "output projection": 0}
    for name, p in named:
        side, _, rest = name.partition(".")
        part = side
        if rest.startswith("embed_tokens"):
            part = "embedding units" if ".unit." in rest else "word tables"
        elif rest.startswith("output_projection"):
            part = "output projection"
        counts[part] += p.numel()
    return counts | {"total": sum(counts.values())}


def count_table(counts: dict[str, int]) -> str:
    """Format the counts for a terminal."""
    return "\n".join(f"{name:<20}{n:>14,}" for name, n in counts.items())
