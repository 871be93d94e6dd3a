"""Word dropout: words of a batch that become <unk>."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class DroppedSide:
    """One side's input in a batch, what a dropped word becomes, and the symbols that are never dropped."""

    key: str
    unk: int
    spared: frozenset[int]


def dropped_side(key: str, dictionary: Any, separator: str) -> DroppedSide:
    """The side ``key`` of a batch; end of sentence, padding and the separator between sentences are spared."""
    spared = {dictionary.eos(), dictionary.bos(), dictionary.pad()}
    if separator:
        spared.add(dictionary.index(separator))
    return DroppedSide(key, dictionary.unk(), frozenset(spared))


def drop_words(sample: dict[str, Any], p: float, sides: Sequence[DroppedSide]) -> dict[str, Any]:
    """The batch with each word of the given sides replaced by <unk> with probability ``p``; the target stays whole.

    Drawn from torch's generator, which fairseq seeds by the update's number: anew every update, the same after a
    resume. The batch itself is not changed.
    """
    if not sample:
        return sample
    net_input = dict(sample["net_input"])
    for side in sides:
        tokens: Tensor = net_input[side.key]
        drop = torch.rand(tokens.shape, device=tokens.device) < p
        for symbol in side.spared:
            drop &= tokens != symbol
        net_input[side.key] = tokens.masked_fill(drop, side.unk)
    return {**sample, "net_input": net_input}
