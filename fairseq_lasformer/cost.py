"""What attention costs with the selection a checkpoint has learned (eq 9, 10), and what the whole model costs.

C_Transformer = 2 n N^2 d,   C_Lasformer = (n / r) N^2 d_s + 2 kappa n N^2 d,

in multiply-accumulates for a side of n layers at N tokens, per attention module; the projections to queries, keys,
values and output (and the selector's own) are counted beside it. d is the attention's width, in DeLighT's blocks half
of the embedding's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer.checkpoints import architecture, load
from fairseq_lasformer.config import MODULES, PRESETS, ModuleConfig, attention_widths, module_config, selected_modules
from fairseq_lasformer.documents import InputError
from fairseq_lasformer.ops import KAPPA_ONE, MIN_KEYS


class Cost(NamedTuple):
    """Multiply-accumulates at one length, and kappa's mean over the groups.

    Of one attention module, of all three (``all``), or of the ``model``: every product of a forward pass over as many
    source as target tokens, projections counted with the rest.
    """

    module: str
    length: int
    kappa: float
    dense: float
    sparse: float
    dense_projections: float
    sparse_projections: float

    @property
    def ratio(self) -> float:
        """Attention alone, Lasformer over Transformer."""
        return self.sparse / self.dense

    @property
    def ratio_with_projections(self) -> float:
        return (self.sparse + self.sparse_projections) / (self.dense + self.dense_projections)


def module_cost(module: str, cfg: ModuleConfig, kappas: Sequence[float], length: int) -> Cost:
    """Cost of one attention module at ``length`` tokens.

    Args:
        kappas: kappa of each group, as a share; empty for a module that does not select.
    """
    side = cfg.encoder if module == "encoder" else cfg.decoder
    n, square = side.layers, float(length) ** 2
    query, key, d, out = attention_widths(cfg, module)
    dense = 2 * n * square * d
    projections = float(n * length) * (query + 2 * key + out) * d
    if not kappas:
        return Cost(module, length, 1.0, dense, dense, projections, projections)
    sparse = 0.0
    for group, kappa in enumerate(kappas):
        layers = min(cfg.select_share, n - group * cfg.select_share)
        kept = min(1.0, cfg.select_window / length if cfg.select_window else max(kappa, MIN_KEYS / length))
        sparse += 2 * kept * layers * square * d + (0 if cfg.select_window else square * cfg.select_dim)
    selectors = 0.0 if cfg.select_window else float(len(kappas) * length) * (query + key) * cfg.select_dim
    return Cost(module, length, sum(kappas) / len(kappas), dense, sparse, projections, projections + selectors)


def checkpoint_cost(path: str | Path, lengths: Sequence[int]) -> list[Cost]:
    """Costs per module and in all, at every length, from the kappa that a trained checkpoint holds.

    Raises:
        InputError: no usable checkpoint, or one of another architecture.
    """
    state = load(path)
    name = architecture(state)
    if name != "lasformer" and name not in PRESETS:
        raise InputError(f"{path}: of architecture {name or 'unknown'}; the cost is that of a lasformer checkpoint")
    cfg = module_config(_Attributes(state["cfg"]["model"]))
    found, weights = kappas(state["model"]), weight_products(state["model"], cfg)
    costs = []
    for length in lengths:
        if length < 1:
            raise InputError(f"--lengths: {length} is not a number of tokens")
        each = [module_cost(m, cfg, found[m] if m in selected_modules(cfg) else [], length) for m in MODULES]
        sums = [sum(getattr(c, f) for c in each) for f in Cost._fields[3:]]
        shares = [k for m in MODULES for k in found[m]]
        attention = Cost("all", length, sum(shares) / len(shares) if shares else 1.0, *sums)
        dense = attention.dense + length * weights
        # beside its scores and sums a selection adds the selectors' projections alone
        sparse = attention.sparse + length * weights + attention.sparse_projections - attention.dense_projections
        costs += [*each, attention, Cost("model", length, attention.kappa, dense, sparse, 0.0, 0.0)]
    return costs


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
    head = f"{'length':>7} {'module':<8}{'kappa':>7}{'dense':>10}{'sparse':>10}{'ratio':>8}{'with projections':>18}"
    lines = [head + "   (in GMAC; model: all products of a pass)"]
    for c in costs:
        lines.append(
            f"{c.length:>7} {c.module:<8}{c.kappa:>7.3f}{c.dense / 1e9:>10.3f}{c.sparse / 1e9:>10.3f}"
            f"{c.ratio:>8.1%}{c.ratio_with_projections:>18.1%}"
        )
    return "\n".join(lines)


class _Attributes:
    """A checkpoint's plain settings, read as attributes."""

    def __init__(self, values: Any) -> None:
        self.__dict__.update(dict(values))
