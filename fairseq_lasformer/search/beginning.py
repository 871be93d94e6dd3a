"""Common beginnings of translations, read in one pass instead of a step per word.

The keys and values of their positions are written into the decoding cache as if steps had done so; the search continues
from there.

Shapes: N items, P words of the beginning, V words of the dictionary, or of the list that is searched.
"""

from typing import Any

import torch
from torch import Tensor

FEWEST = 8
"""Minimum number of words; shorter beginnings are read step by step."""

TOGETHER = 64
"""Number of positions whose scores of all words are in memory at a time."""


def beginning(prefix: Tensor | None, pad: int, longest: int) -> Tensor | None:
    """Return the words that every item of a batch has in its prefix, int64 [N, P]; None if they are too few.

    Args:
        prefix: int64 [N, P'], padded on the right.
        longest: step at which every translation ends.
    """
    if prefix is None:
        return None
    common = min(int((prefix != pad).sum(1).min()), longest - 1)
    return prefix[:, :common] if common >= FEWEST else None


def read_beginning(
    ensemble: Any,
    states: list[dict[str, Any]],
    encoded: Any,
    start: Tensor,
    words: Tensor,
    beam: int,
    temperature: float = 1.0,
) -> Tensor | None:
    """Read the words, and return their log probabilities, float32 [N, P].

    Args:
        ensemble: fairseq's, or a :class:`ListedEnsemble`, whose numbering ``words`` and ``start`` use.
        start: int64 [N], the word before the first one.
        states: empty decoding states, one per model, which continue after the words.
        encoded: the encoders' outputs.
        beam: hypotheses per item.
        temperature: divisor of the scores.

    Returns:
        None if the model can only read step by step, or if there are several models.
    """
    models, listed = list(ensemble.models), getattr(ensemble, "joint", None)
    if len(models) > 1 or not hasattr(models[0].decoder, "read_beginning"):
        return None
    decoder, outputs = models[0].decoder, encoded if listed is None else encoded.outputs
    tokens = torch.cat([start[:, None], words[:, :-1]], 1)
    features = decoder.read_beginning(tokens if listed is None else listed.words[tokens], outputs[0], states[0], beam)
    if features is None:
        return None
    beginnings = []
    for first in range(0, words.size(1), TOGETHER):
        here = features[:, first : first + TOGETHER]
        scores = decoder.output_layer(here, packed=True) if listed is None else ensemble.outputs[0](here)
        scores = scores.float() / temperature
        if listed is not None:
            scores = scores + listed.penalty[:, None]
        there = words[:, first : first + TOGETHER, None]
        scores = decoder.get_normalized_probs((scores, None), True) if listed is None else scores.log_softmax(-1)
        beginnings.append(scores.gather(2, there)[..., 0])
    return torch.cat(beginnings, 1)
