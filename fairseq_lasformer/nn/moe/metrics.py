"""Metrics of the balance between a mixture's experts."""

from torch import Tensor

from fairseq_lasformer.nn.moe.routing import cv_squared


def router_metrics(sums: dict[str, Tensor]) -> dict[str, float]:
    """Compute the logged metrics of one mixture.

    Args:
        sums: fields of :class:`RouterStats`, summed over everything that contributed to one update.

    Returns:
        ``importance_cv``, ``load_cv``: coefficients of variation over the experts.
        ``load_max_over_mean``: highest load divided by the mean.
        ``unused``: number of experts without a token.
        ``gate_entropy``: nats per token.
        ``received_rows``: rows that experts processed per update, averaged over the workers that share them (the total
        of all workers if they are not shared).
        ``received_max_over_mean``: the highest of these divided by the mean, over the workers.
        ``threshold_gap`` (batchwise gating): fraction of token-expert pairs for which the threshold disagrees with the
        batch.
    """
    load, received, tokens = sums["load"], sums["received"], float(sums["tokens"])
    metrics = {
        "importance_cv": float(cv_squared(sums["importance"]).sqrt()),
        "load_cv": float(cv_squared(load).sqrt()),
        "load_max_over_mean": float(load.max() / load.mean().clamp(min=1e-9)),
        "unused": float((load == 0).sum()),
        "gate_entropy": float(sums["entropy"]) / max(tokens, 1.0),
        "received_rows": float(received.mean()),
        "received_max_over_mean": float(received.max() / received.mean().clamp(min=1e-9)),
    }
    if sums.get("threshold_gap") is not None:
        metrics["threshold_gap"] = float(sums["threshold_gap"].mean()) / max(tokens, 1.0)
    return metrics
