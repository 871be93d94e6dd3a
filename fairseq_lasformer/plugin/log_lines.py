"""Training statistics: sums that fairseq aggregates over micro-batches and workers, and their log lines."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor

from fairseq_lasformer.base.records import Log
from fairseq_lasformer.nn.moe import RouterStats
from fairseq_lasformer.nn.moe.metrics import router_metrics
from fairseq_lasformer.ops import KAPPA_ONE, Supervision
from fairseq_lasformer.plugin.placement import MODULES

SELECTION = "selection"
"""Key of the selectors' sums in a logging output: float64 [modules, groups, :data:`COLUMNS`]."""

COLUMNS = ("kl", "mass", "recall", "queries", "elsewhere", "kappa")
"""Sums over valid queries, see :class:`ops.Supervision`; ``kappa`` is a fraction times the sample size, 0 if a module
has no such group."""

BY_GROUP = ("kappa", "mass")
"""Statistics of which a log line has every group's."""

MOE_PREFIX = "moe/"


def selection_sums(
    supervision: Mapping[str, Supervision], kappas: Mapping[str, Tensor], sample_size: float | Tensor
) -> Tensor | None:
    """Collect the sums of all selectors in one tensor; return None for a model without selectors.

    Args:
        supervision: by module and group (``cross.1``); empty in evaluation.
        kappas: kappa of every selector, in millionths, by the same names.
        sample_size: weight of the batch when kappa is averaged.

    Returns:
        float64 [modules, groups, columns], modules in the order of :data:`MODULES`, columns of :data:`COLUMNS`.
    """
    if not kappas:
        return None
    # column by column: on a GPU, starting a copy takes as long for one number as for all of them
    n_groups = max(_place(name)[1] for name in kappas) + 1
    columns = [
        _column({name: getattr(s, column).detach() for name, s in supervision.items()}, n_groups)
        for column in COLUMNS[:-1]
        if supervision
    ]
    columns.append(_column(kappas, n_groups) * sample_size / KAPPA_ONE)
    columns[:-1] = columns[:-1] or [torch.zeros_like(columns[-1])] * (len(COLUMNS) - 1)
    return torch.stack([c.double() for c in columns], -1)


def _column(values: Mapping[str, Tensor], n_groups: int) -> Tensor:
    """Return scalars by module and group as a tensor [modules, groups]; 0 where there is none."""
    places = {_place(name): value for name, value in values.items()}
    nothing = next(iter(values.values())).new_zeros(())
    cells = [places.get((module, group), nothing) for module in range(len(MODULES)) for group in range(n_groups)]
    return torch.stack(cells).view(len(MODULES), n_groups)


def empty_sums(names: Iterable[str], device: torch.device) -> Tensor:
    """Return the tensor of :func:`selection_sums` with all sums 0, for selectors with these names."""
    groups = max(_place(name)[1] for name in names) + 1
    return torch.zeros(len(MODULES), groups, len(COLUMNS), dtype=torch.float64, device=device)


def _place(name: str) -> tuple[int, int]:
    """Return the indices of the module and the group in a selector's name."""
    module, _, group = name.partition(".")
    return MODULES.index(module), int(group)


def by_selector(sums: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Iterate over the selectors in the tensor of :func:`selection_sums`: name and columns."""
    for m, module in enumerate(MODULES):
        for group in range(sums.size(1)):
            if sums[m, group, -1] > 0:
                yield f"{module}.{group}", sums[m, group]


def log_selection(logging_outputs: list[Log]) -> None:
    """Log the selectors' kappa, mass and recall@k, individually and averaged, and the summed KL in bits."""
    logged = [o[SELECTION] for o in logging_outputs if SELECTION in o]
    if not logged:
        return
    sample_size = sum(log["sample_size"] for log in logging_outputs)
    rows = dict(by_selector(torch.stack([t.cpu() for t in logged]).sum(0)))
    supervised = any(float(row[COLUMNS.index("queries")]) > 0 for row in rows.values())
    total_kl, means = 0.0, dict[str, float]()
    for name, row in rows.items():
        sums = dict(zip(COLUMNS, row.tolist()))
        values = {"kappa": sums["kappa"] / max(float(sample_size), 1.0)}
        if supervised:
            read = sums["elsewhere"] or 1.0
            values |= {"mass": sums["mass"] / read, "recall": sums["recall"] / read}
            total_kl += sums["kl"] / max(sums["queries"], 1.0)
        for statistic, value in values.items():
            metrics.log_scalar(f"{statistic}_{name.replace('.', '_')}", value, sample_size, round=4)
            means[statistic] = means.get(statistic, 0.0) + value / len(rows)
    for statistic, value in means.items():
        metrics.log_scalar(statistic, value, sample_size, round=4)
    if supervised:
        metrics.log_scalar("selection_kl", total_kl / math.log(2), sample_size, round=4)


def joined(stats: Mapping[str, Any], statistic: str) -> str:
    """Return a statistic of every group in one word for a log line, such as ``encoder:0.6,0.64;cross:0.05``.

    :func:`analysis.runs.read_log` takes it apart.
    """
    shares: dict[str, list[tuple[int, float]]] = {}
    for name, value in stats.items():
        if match := re.fullmatch(rf"{statistic}_({'|'.join(MODULES)})_(\d+)", name):
            shares.setdefault(match[1], []).append((int(match[2]), float(value)))
    return ";".join(
        f"{module}:{','.join(f'{share:.3g}' for _, share in sorted(its))}" for module, its in shares.items()
    )


def log_distillation(logging_outputs: list[Log]) -> None:
    """Log the cross-entropy with the teacher's most likely words, in bits per token."""
    logged = [log for log in logging_outputs if "distil_loss" in log]
    if logged:
        n_tokens = sum(log["ntokens"] for log in logged)
        loss = sum(log["distil_loss"] for log in logged)
        metrics.log_scalar("distil_loss", loss / n_tokens / math.log(2), n_tokens, round=3)


def router_sums(name: str, stats: RouterStats) -> dict[str, Tensor]:
    """Return a mixture's entries in a logging output."""
    fields = {key: value for key, value in stats._asdict().items() if key != "loss" and value is not None}
    return {f"{MOE_PREFIX}{name}/{key}": value.detach() for key, value in fields.items()}


def log_routers(logging_outputs: list[Log]) -> None:
    """Log ``moe_<metric>_<layer>`` and ``moe_<metric>``, the mean over layers."""
    layers: dict[str, dict[str, Tensor]] = {}
    for key in logging_outputs[0] if logging_outputs else ():
        if key.startswith(MOE_PREFIX):
            name, field = key[len(MOE_PREFIX) :].split("/")
            parts = [torch.as_tensor(o[key]).double() for o in logging_outputs if key in o]
            layers.setdefault(name, {})[field] = torch.stack(parts).sum(0)
    averages = {name: router_metrics(sums) for name, sums in layers.items()}
    for name, values in averages.items():
        for statistic, value in values.items():
            metrics.log_scalar(f"moe_{statistic}_{name.replace('.', '_')}", value, round=4)
    for statistic in next(iter(averages.values()), {}):
        mean = sum(values[statistic] for values in averages.values()) / len(averages)
        metrics.log_scalar(f"moe_{statistic}", mean, round=4)
