"""Word dropout: random words of a batch are replaced with <unk>."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairseq_lasformer.base.records import Sample

if TYPE_CHECKING:
    from fairseq.data import Dictionary


@dataclass(frozen=True)
class DroppedSide:
    """One side of a batch."""

    key: str  # name of its input in the batch
    unk: int  # index of <unk>, the replacement
    spared: frozenset[int]  # symbols that are never dropped


def dropped_side(key: str, dictionary: Dictionary, symbols: Sequence[str]) -> DroppedSide:
    """Return the side ``key`` of a batch; end of sentence, padding and the data's symbols are never dropped."""
    spared = {dictionary.eos(), dictionary.bos(), dictionary.pad(), *map(dictionary.index, symbols)}
    return DroppedSide(key, dictionary.unk(), frozenset(spared - {dictionary.unk()}))


def drop_words(sample: Sample, p: float, sides: Sequence[DroppedSide]) -> Sample:
    """Replace each word of the given sides with <unk> with probability ``p``; the target is unchanged.

    Random numbers come from torch's generator, which fairseq seeds by the number of updates: they differ between
    updates and are reproduced after resuming. A new batch is returned; the input is not modified.

    Args:
        p: probability of dropping a word.
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
