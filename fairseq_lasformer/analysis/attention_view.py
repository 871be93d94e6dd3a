"""Which tokens each attention module attends to (the paper's figure 3), from a trained model and one document."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.nn.attention import AttentionOutput
from fairseq_lasformer.nn.selection import MaskSelection
from fairseq_lasformer.ops.reference import attention_scores, masked_softmax


def attention_of(model: Any, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Attention over the selection, by module and group (``encoder.0``, ``decoder.0``, ``cross.0``, …), mean over the
    heads and layers of the group.

    Args:
        model: a selecting :class:`LasformerModel`, in evaluation mode. source, target: int64 [K], [Q], end of sentence
            included; the target is forced.

    Returns:
        [Q or K, K] each; rows of queries sum to 1. Row i of ``decoder`` and ``cross`` belongs to the step that produces
        target token i, and column j of ``decoder`` to what that step sees: token j - 1 (0: the beginning).
    """
    previous = target.roll(1)
    previous[0] = target[-1]
    found: dict[str, list[Tensor]] = {}

    def observe(name: str, output: AttentionOutput) -> None:
        if isinstance(output.selection, MaskSelection) and output.query is not None and output.key is not None:
            scores = attention_scores(output.query, output.key)
            weights = masked_softmax(scores, output.selection.keep_mask[:, None]).mean(1)[0]
            found.setdefault(name, []).append(weights.detach())

    # with gradients allowed, a full pass keeps what it has selected as a mask
    with torch.enable_grad():
        encoded = model.encoder(source[None], observe=observe)
        model.decoder.extract_features(previous[None], encoded, observe=observe)
    return {name: torch.stack(layers).mean(0) for name, layers in found.items()}


def sparse(weights: Tensor, most: int = 64, least: float = 0.002) -> list[list[list[float]]]:
    """The heaviest kept keys of every query as ``[index, weight]`` (at most ``most``, none lighter than ``least``)."""
    rows = []
    for row in weights:
        value, index = row.topk(min(most, row.numel()))
        rows.append([[int(i), round(float(v), 4)] for i, v in zip(index, value) if float(v) >= least])
    return rows
