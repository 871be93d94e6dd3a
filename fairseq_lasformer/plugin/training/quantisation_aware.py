"""Quantisation-aware training: loss and gradients are computed with weights rounded to 8 bits.

The optimizer applies these gradients to the unrounded weights (the straight-through estimator of 1308.3432).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_lasformer.ops.reference import quantised


def rounded_weights(model: nn.Module) -> list[Tensor]:
    """Return the weights that decode in 8 bits: those of all linear layers except the selectors'.

    A word embedding that is also the output projection is one of them.
    """
    selectors: Any = getattr(model, "selectors", None)
    spared = {id(module) for _, of in (selectors() if selectors else ()) for module in of.modules()}
    found = {
        id(module.weight): module.weight
        for module in model.modules()
        if isinstance(module, nn.Linear) and id(module) not in spared
    }
    return list(found.values())


@torch.no_grad()
def rounded(weight: Tensor) -> Tensor:
    """Round [N, K] to 8 bits, with one scale per row; rows that are not finite become NaN."""
    numbers, scale = quantised(weight.float())
    return (numbers * scale).to(weight.dtype)


@contextmanager
def in_eight_bits(model: nn.Module) -> Iterator[None]:
    """Round a model's weights within this context, for the forward and backward pass together."""
    kept = [(weight, weight.data) for weight in rounded_weights(model)]
    try:
        for weight, data in kept:
            weight.data = rounded(data)
        yield
    finally:
        for weight, data in kept:
            weight.data = data
