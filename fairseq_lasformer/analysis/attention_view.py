"""Which tokens each attention module attends to (the paper's figure 3), from a trained model and one document."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.nn.attention import AttentionOutput
from fairseq_lasformer.nn.selection import MaskSelection
from fairseq_lasformer.ops.reference import attention_scores, masked_softmax


def attention_of(model: Any, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Attention over the selected keys, averaged over the heads and layers of each group.

    Args:
        model: a :class:`LasformerModel` with learned selection, in evaluation mode.
        source, target: int64 [K] and [Q], end of sentence included; the target is force-decoded.

    Returns:
        attention by module and group (``encoder.0``, ``decoder.0``, ``cross.0``, …). Each is a matrix [queries, keys]
        whose rows sum to 1: [K, K] in the encoder, [Q, Q] in the decoder, [Q, K] across. Row i of ``decoder`` and
        ``cross`` belongs to the step that produces target token i, and column j of ``decoder`` to the input of step j:
        token j - 1 (for j = 0, the beginning of the sequence).
    """
    previous = target.roll(1)
    previous[0] = target[-1]
    found: dict[str, list[Tensor]] = {}

    def observe(name: str, output: AttentionOutput) -> None:
        if isinstance(output.selection, MaskSelection) and output.query is not None and output.key is not None:
            scores = attention_scores(output.query, output.key)
            weights = masked_softmax(scores, output.selection.keep_mask[:, None]).mean(1)[0]
            found.setdefault(name, []).append(weights.detach())

    # with gradients enabled, a full pass represents its selection as a mask
    with torch.enable_grad():
        encoded = model.encoder(source[None], observe=observe)
        model.decoder.extract_features(previous[None], encoded, observe=observe)
    return {name: torch.stack(layers).mean(0) for name, layers in found.items()}


def sparse(weights: Tensor, most: int = 64, least: float = 0.002) -> list[list[list[float]]]:
    """The kept keys with the highest weights, as ``[index, weight]`` for every query.

    Args:
        weights: attention weights, [queries, keys].
        most: maximum number of keys per query.
        least: minimum weight.
    """
    rows = []
    for row in weights:
        value, index = row.topk(min(most, row.numel()))
        rows.append([[int(i), round(float(v), 4)] for i, v in zip(index, value) if float(v) >= least])
    return rows
