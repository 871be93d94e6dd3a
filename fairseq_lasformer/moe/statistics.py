"""How evenly the experts are used, in fairseq's log lines: per layer and in the mean over layers."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.logging import metrics
from torch import Tensor

from fairseq_lasformer.moe.layer import Balance
from fairseq_lasformer.moe.routing import cv_squared

PREFIX = "moe/"


def logged(name: str, balance: Balance) -> dict[str, Tensor]:
    """A mixture's part of a logging output: sums, which fairseq adds up over micro-batches and workers."""
    fields = {key: value for key, value in balance._asdict().items() if key != "loss" and value is not None}
    return {f"{PREFIX}{name}/{key}": value.detach() for key, value in fields.items()}


def statistics(sums: dict[str, Tensor]) -> dict[str, float]:
    """What is told of one mixture.

    Args:
        sums: of a :class:`Balance`'s fields, over everything that one update has seen.

    Returns:
        ``importance_cv``, ``load_cv``: coefficients of variation over the experts. ``load_max_over_mean``.
        ``unused``: experts without a token. ``gate_entropy``: nats a token. ``received_rows``: rows that experts
        computed in an update, in the mean over the workers that share them (of all workers together where none do);
        ``received_max_over_mean`` over the workers. ``threshold_gap`` (batchwise gating):
        share of tokens and experts for which the threshold decides otherwise than the batch.
    """
    load, received, tokens = sums["load"], sums["received"], float(sums["tokens"])
    found = {
        "importance_cv": float(cv_squared(sums["importance"]).sqrt()),
        "load_cv": float(cv_squared(load).sqrt()),
        "load_max_over_mean": float(load.max() / load.mean().clamp(min=1e-9)),
        "unused": float((load == 0).sum()),
        "gate_entropy": float(sums["entropy"]) / max(tokens, 1.0),
        "received_rows": float(received.mean()),
        "received_max_over_mean": float(received.max() / received.mean().clamp(min=1e-9)),
    }
    if sums.get("threshold_gap") is not None:
        found["threshold_gap"] = float(sums["threshold_gap"].mean()) / max(tokens, 1.0)
    return found


def log(logging_outputs: list[dict[str, Any]]) -> None:
    """Adds ``moe_<statistic>_<layer>`` and ``moe_<statistic>`` (the mean over layers) to fairseq's metrics."""
    layers: dict[str, dict[str, Tensor]] = {}
    for key in logging_outputs[0] if logging_outputs else ():
        if key.startswith(PREFIX):
            name, field = key[len(PREFIX) :].split("/")
            parts = [torch.as_tensor(o[key]).double() for o in logging_outputs if key in o]
            layers.setdefault(name, {})[field] = torch.stack(parts).sum(0)
    found = {name: statistics(sums) for name, sums in layers.items()}
    for name, values in found.items():
        for statistic, value in values.items():
            metrics.log_scalar(f"moe_{statistic}_{name.replace('.', '_')}", value, round=4)
    for statistic in next(iter(found.values()), {}):
        mean = sum(values[statistic] for values in found.values()) / len(found)
        metrics.log_scalar(f"moe_{statistic}", mean, round=4)
