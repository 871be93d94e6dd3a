"""Training steps with and without CUDA graphs (``--cuda-graph-tokens``), for ``python -m benchmarks.gpu``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.devices import Place
from benchmarks.models import VOCABULARY, Task, batch_of, build
from benchmarks.rows import Row
from fairseq_lasformer.plugin.criterion import LabelSmoothedCrossEntropyWithSelection
from fairseq_lasformer.plugin.training.graphed import GraphedCriterion

TOLERANCE = 1e-3


def batch(n: int, length: int, place: Place) -> dict[str, Any]:
    """Return random words; half of the first example is padding, left in the source and right in the target."""
    source, target = (torch.randint(4, VOCABULARY, (n, length), device=place.device) for _ in range(2))
    source[0, : length // 2], target[0, length // 2 :] = 1, 1
    return batch_of(source, target.clone(), target)


def captured(place: Place, quick: bool) -> list[Row]:
    """Return relative errors of loss and gradients while batches, kappa and weights change; raise if one is large.

    On a GPU, the first of three batches is computed as usual, and the others by a graph; on a CPU, only the first.
    """
    criterion = LabelSmoothedCrossEntropyWithSelection(Task(), False, 0.1, selection_weight=0.01)
    layers: dict[str, Any] = {"encoder_layers": 1, "decoder_layers": 1} if quick else {}
    # where a ReLU's input is next to 0, rounding decides about its gradient, and a graph adds up in another order
    model: Any = build("lasformer", 0.5, "all", dropout=0.0, activation_fn="gelu", **layers).to(place.device)
    steps, rows = GraphedCriterion(criterion, 4096, (1, 1), True), []
    for update in range(1 if place.device.type == "cpu" else 3):
        for _, selector in model.selectors():
            selector.kappa.fill_(500_000 - 150_000 * update)
        sample = batch(3, 30 + update, place)
        ours, theirs = (_passes(model, way, sample) for way in (steps, criterion))
        error = max(_error(a, b) for a, b in zip(ours, theirs))
        rows.append(Row("captured", f"update {update + 1}", "relative error", error, compared=False))
        if not error < TOLERANCE:
            raise ArithmeticError(f"a captured training step differs by {error:.2g} from one that is not: {rows}")
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=1e-4)
    return rows


def _passes(model: Any, criterion: Any, sample: dict[str, Any]) -> list[Tensor]:
    """Return the loss and all gradients."""
    model.zero_grad(set_to_none=True)
    loss, _, _ = criterion(model, sample)
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())]


def _error(ours: Tensor, theirs: Tensor) -> float:
    # the smallest gradients consist of rounding errors
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-2))
