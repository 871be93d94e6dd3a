"""What attention costs with the selection a checkpoint has learned (eq 9, 10), and what the whole model costs.

C_Transformer = 2 n N^2 d,   C_Lasformer = (n / r) N^2 d_s + 2 kappa n N^2 d,

in multiply-accumulates for a side of n layers at N tokens, per attention module. The projections to queries, keys and
values (and the selector's own), which the paper counts in when it gives 15 % at 8,000 tokens, are beside it, and so is
the output projection. d is the attention's width, in DeLighT's blocks half of the embedding's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.inference.checkpoints import architecture, load
from fairseq_lasformer.nn.patterns import Pattern
from fairseq_lasformer.nn.patterns.full import Full
from fairseq_lasformer.nn.patterns.learned import Selector
from fairseq_lasformer.ops import KAPPA_ONE
from fairseq_lasformer.plugin import build
from fairseq_lasformer.plugin.config import (
    MODULES,
    PRESETS,
    ModuleConfig,
    attention_widths,
    module_config,
)

LONGEST = 10**9


class Cost(NamedTuple):
    """Multiply-accumulates at one length, and kappa's mean over the groups.

    Of one attention module, of all three (``all``), or of the ``model``: every product of a forward pass over as many
    source as target tokens, projections counted with the rest.

    Attributes:
        dense, sparse: attention's, of the Transformer and of Lasformer. dense_projections, sparse_projections: to
            queries, keys and values, the selectors' among the latter. output_projection: of either.
    """

    module: str
    length: int
    kappa: float
    dense: float
    sparse: float
    dense_projections: float
    sparse_projections: float
    output_projection: float

    @property
    def ratio(self) -> float:
        """Attention alone, Lasformer over Transformer."""
        return self.sparse / self.dense

    @property
    def ratio_with_projections(self) -> float:
        """With the projections to queries, keys and values: the paper's 15 %."""
        return (self.sparse + self.sparse_projections) / (self.dense + self.dense_projections)

    @property
    def ratio_with_all_projections(self) -> float:
        """With the output projection, too."""
        sparse, dense = self.sparse + self.sparse_projections, self.dense + self.dense_projections
        return (sparse + self.output_projection) / (dense + self.output_projection)


def module_cost(module: str, cfg: ModuleConfig, patterns: Sequence[Pattern], length: int) -> Cost:
    """Cost of one attention module at ``length`` tokens.

    Args:
        patterns: of each group; see :func:`module_patterns`.
    """
    side = cfg.encoder if module == "encoder" else cfg.decoder
    n, square = side.layers, float(length) ** 2
    query, key, d, out = attention_widths(cfg, module)
    dense = 2 * n * square * d
    projections, output = float(n * length) * (query + 2 * key) * d, float(n * length) * out * d
    sparse = extra = kept = 0.0
    for group, pattern in enumerate(patterns):
        layers = min(cfg.select_share, n - group * cfg.select_share)
        cost = pattern.cost(length)
        sparse += 2 * cost.kept * layers * square * d + cost.scores
        extra += cost.projections
        kept += (pattern.share if isinstance(pattern, Selector) else cost.kept) / len(patterns)
    return Cost(module, length, kept, dense, sparse, projections, projections + extra, output)


def module_patterns(module: str, cfg: ModuleConfig, kappas: Sequence[float]) -> list[Pattern]:
    """The patterns of a module's groups.

    Args:
        kappas: of each group, as a share, where the pattern is learned.
    """
    layers = cfg.encoder.layers if module == "encoder" else cfg.decoder.layers
    patterns = [build.pattern(cfg, module) for _ in range(0, layers, cfg.select_share)]
    for learned, kappa in zip(patterns, kappas):
        if isinstance(learned, Selector):
            learned.kappa.fill_(round(kappa * KAPPA_ONE))
    return patterns


def checkpoint_patterns(state: dict[str, Any]) -> dict[str, list[Pattern]]:
    """The patterns of a trained checkpoint by module, with their kappa."""
    cfg, found = module_config(_Attributes(state["cfg"]["model"])), kappas(state["model"])
    return {module: module_patterns(module, cfg, found[module]) for module in MODULES}


def mean_kappa(patterns: Sequence[Pattern]) -> float | None:
    """Mean of the patterns' kappa; 1 for full attention, None where they have none."""
    shares = [p.share if isinstance(p, Selector) else 1.0 for p in patterns if isinstance(p, Selector | Full)]
    return sum(shares) / len(shares) if shares else None


def checkpoint_cost(path: str | Path, lengths: Sequence[int]) -> list[Cost]:
    """Costs per module and in all, at every length, from the kappa that a trained checkpoint holds.

    Raises:
        InputError: no usable checkpoint, or one of another architecture.
    """
    state = load(path)
    if not of_ours(state):
        name = architecture(state) or "unknown"
        raise InputError(f"{path}: of architecture {name}; the cost is that of a lasformer checkpoint")
    cfg = module_config(_Attributes(state["cfg"]["model"]))
    weights, patterns = weight_products(state["model"], cfg), checkpoint_patterns(state)
    costs = []
    for length in lengths:
        if not 0 < length <= LONGEST:
            raise InputError(f"--lengths: {length} is not a number of tokens from 1 to {LONGEST:,}")
        each = [module_cost(m, cfg, patterns[m], length) for m in MODULES]
        sums = [sum(getattr(c, f) for c in each) for f in Cost._fields[3:]]
        kappa = mean_kappa([pattern for m in MODULES for pattern in patterns[m] if isinstance(pattern, Selector)])
        attention = Cost("all", length, sum(c.kappa for c in each) / len(each) if kappa is None else kappa, *sums)
        dense = attention.dense + length * weights
        # beside its scores and sums a selection adds the selectors' projections alone
        sparse = attention.sparse + length * weights + attention.sparse_projections - attention.dense_projections
        costs += [*each, attention, Cost("model", length, attention.kappa, dense, sparse, 0.0, 0.0, 0.0)]
    return costs


def of_ours(state: dict[str, Any]) -> bool:
    """Whether a checkpoint is of one of the architectures registered here."""
    return architecture(state) in ("lasformer", *PRESETS)


def weight_products(weights: dict[str, Any], cfg: ModuleConfig) -> float:
    """Multiply-accumulates of the weight matrices for one source and one target token, the selectors' left out.

    Of a mixture's experts those that a token goes to are counted. Table lookups cost none.
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
    """kappa of every group by module, from a model's state."""
    stems = {
        "encoder": ("encoder.", "self_attn"),
        "decoder": ("decoder.", "self_attn"),
        "cross": ("decoder.", "encoder_attn"),
    }
    found = {}
    for module, (side, attention) in stems.items():
        names = [k for k in weights if k.startswith(side) and k.endswith(f"{attention}.selector.kappa")]
        names.sort(key=lambda k: int(k.split(".")[2]))
        found[module] = [int(weights[k]) / KAPPA_ONE for k in names]
    return found


def table(costs: Sequence[Cost]) -> str:
    """For a terminal: GMACs, and the ratios to the dense Transformer."""
    head = f"{'length':>7} {'module':<8}{'kappa':>7}{'dense':>10}{'sparse':>10}{'ratio':>8}"
    head += f"{'+ Q, K, V':>11}{'+ output':>10}"
    lines = [head]
    for c in costs:
        lines.append(
            f"{c.length:>7} {c.module:<8}{c.kappa:>7.3f}{c.dense / 1e9:>10.3f}{c.sparse / 1e9:>10.3f}"
            f"{c.ratio:>8.1%}{c.ratio_with_projections:>11.1%}{c.ratio_with_all_projections:>10.1%}"
        )
    lines += [
        "dense, sparse: billions of multiply-accumulates of attention (model: of all products of a pass);",
        "ratio: sparse to dense; + Q, K, V: with the projections to queries, keys and values, as the paper counts;",
        "+ output: with the output projection, too",
    ]
    return "\n".join(lines)


class _Attributes:
    """A checkpoint's plain settings, read as attributes."""

    def __init__(self, values: Any) -> None:
        self.__dict__.update(dict(values))
