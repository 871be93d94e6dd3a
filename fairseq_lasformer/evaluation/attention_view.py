"""Which tokens each attention module attends to (the paper's figure 3), from a trained model and one document."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.attention import Attended
from fairseq_lasformer.layers import groups
from fairseq_lasformer.ops import Allowed
from fairseq_lasformer.ops.reference import attention_scores, masked_softmax


def _weights(attended: Attended) -> Tensor:
    """The attention a layer pays to its kept keys, mean over heads, [Q, K]; 0 elsewhere."""
    assert attended.query is not None and attended.key is not None and attended.selection is not None
    mask = attended.selection.mask
    assert mask is not None
    return masked_softmax(attention_scores(attended.query, attended.key), mask[:, None]).mean(1)[0]


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
    encoder, decoder = model.encoder, model.decoder
    # with gradients allowed, a full pass keeps what it has selected as a mask
    with torch.enable_grad():
        x, _ = encoder.forward_embedding(source[None])
        for i, group in enumerate(groups(encoder.layers, encoder.cfg.select_share)):
            selection = None
            for layer in group:
                x, attended, _ = layer(x, Allowed(None, False), selection)
                selection = attended.selection
                found.setdefault(f"encoder.{i}", []).append(_seen(attended))
        memory = x if encoder.layer_norm is None else encoder.layer_norm(x)
        positions = None if decoder.embed_positions is None else decoder.embed_positions(previous[None])
        x = decoder._embed(previous[None], positions)
        for i, group in enumerate(groups(decoder.layers, decoder.cfg.select_share)):
            own = cross = None
            for layer in group:
                x, a, c, _ = layer(x, memory, Allowed(None, True), Allowed(None, False), own, cross)
                own, cross = a.selection, c.selection
                found.setdefault(f"decoder.{i}", []).append(_seen(a))
                found.setdefault(f"cross.{i}", []).append(_seen(c))
    return {name: torch.stack(w).mean(0) for name, w in found.items() if all(t.numel() for t in w)}


def _seen(attended: Attended) -> Tensor:
    """The weights, detached; nothing for plain attention, whose weights are never there."""
    return torch.empty(0) if attended.selection is None else _weights(attended).detach()


def sparse(weights: Tensor, most: int = 64, least: float = 0.002) -> list[list[list[float]]]:
    """The heaviest kept keys of every query as ``[index, weight]`` (at most ``most``, none lighter than ``least``)."""
    rows = []
    for row in weights:
        value, index = row.topk(min(most, row.numel()))
        rows.append([[int(i), round(float(v), 4)] for i, v in zip(index, value) if float(v) >= least])
    return rows
