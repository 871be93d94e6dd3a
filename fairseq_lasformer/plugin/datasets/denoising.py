"""Denoising: training on monolingual documents, read with noise and written without it.

Liu et al. 2020 (mBART, arXiv 2001.08210, 2.2): spans of words are masked, the sentences of an example are permuted.
A temperature decides how often each dataset is drawn (Arivazhagan et al. 2019, arXiv 1907.05019, 4).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from fairseq.data import FairseqDataset
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Sample
from fairseq_lasformer.base.resume import key_of
from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.plugin.datasets.epoch_draws import DrawnEveryEpoch

if TYPE_CHECKING:
    from fairseq.data import Dictionary


class Noise(NamedTuple):
    """Noise that is added to documents."""

    mask: float = 0.35  # share of the tokens that are masked
    # mean of the Poisson distribution of the span lengths, in tokens; each span becomes a single mask
    span: float = 3.5
    permute: float = 1.0  # probability that the sentences of an example are shuffled

    def check(self) -> None:
        """Reject impossible values.

        Raises:
            InputError: names the option.
        """
        for name, value in (("mask", self.mask), ("permute", self.permute)):
            if not 0 <= value <= 1:
                raise InputError(f"--denoise-{name} {value}: expected a number from 0 to 1")
        if not 1 <= self.span < 1000:
            raise InputError(f"--denoise-span {self.span}: expected a number of tokens, at least 1")


class Symbols(NamedTuple):
    """Indices of the symbols that noise respects."""

    mask: int  # replacement for a masked span
    separator: int | None  # separator between sentences; None for none
    tag: int | None  # first symbol of every example; None for none

    @classmethod
    def of(cls, dictionary: Dictionary, separator: str, tag: str) -> Symbols:
        """Return the symbols of a dictionary; if it has no ``<mask>``, ``<unk>`` masks, as in word dropout."""
        mask = dictionary.index("<mask>")  # <unk>, if there is none
        return cls(mask, dictionary.index(separator) if separator else None, dictionary.index(tag) if tag else None)


def noised(tokens: Tensor, noise: Noise, symbols: Symbols, seed: str) -> Tensor:
    """Add noise to an example; it never becomes longer, and the number of sentences stays the same.

    Args:
        tokens: [n], ending with end of sentence.
        seed: seed of all draws.
    """
    *words, end = tokens.tolist()
    drawn = np.random.Generator(np.random.PCG64(int(key_of(seed)[:16], 16)))
    tagged = words[:1] == [symbols.tag]
    head, words = words[:tagged], words[tagged:]
    lines = [words[start:stop] for start, stop in line_spans(words, symbols.separator)]
    if drawn.random() < noise.permute:
        lines = [lines[i] for i in drawn.permutation(len(lines))]
    lengths = [len(line) for line in lines]
    hidden = np.zeros(sum(lengths), dtype=bool)
    ends = np.repeat(np.cumsum(lengths), lengths)  # end of each word's sentence, which no span crosses
    left = round(noise.mask * len(hidden))
    while left > 0:
        start = drawn.choice(np.flatnonzero(~hidden))
        stop = min(start + min(left, max(1, drawn.poisson(noise.span))), ends[start])
        left -= int((~hidden[start:stop]).sum())
        hidden[start:stop] = True
    noised, at = list(head), 0
    for i, line in enumerate(lines):
        noised += [symbols.separator] if i else []
        for j, word in enumerate(line):
            if not hidden[at + j]:
                noised.append(word)
            elif not j or not hidden[at + j - 1]:
                noised.append(symbols.mask)
        at += len(line)
    return torch.tensor([*noised, end], dtype=tokens.dtype)


class NoisySource(DrawnEveryEpoch):
    """A dataset of pairs whose sources get new noise in every epoch."""

    def __init__(self, dataset: FairseqDataset, noise: Noise, symbols: Symbols, seed: int) -> None:
        super().__init__(dataset, seed)
        self.noise, self.symbols = noise, symbols

    def __getitem__(self, index: int) -> Sample:
        item = self.dataset[index]
        return {**item, "source": noised(item["source"], self.noise, self.symbols, self.seed_of(index))}


class MixedByTemperature(FairseqDataset):
    """Several datasets in one, drawn in proportion to their size to the power of 1 / temperature.

    Every example occurs at least once per epoch. Datasets that would occur too rarely are repeated as a whole; the
    remaining fraction of a pass is redrawn every epoch.

    Args:
        datasets: datasets of pairs with the same collater.
        temperature: 1 keeps the natural shares, infinity makes all equal.
    """

    can_reuse_epoch_itr_across_epochs = False

    def __init__(self, datasets: Sequence[Any], temperature: float, seed: int) -> None:
        super().__init__()
        self.datasets, self.temperature, self.seed, self.epoch = datasets, temperature, seed, 1
        self.starts = np.cumsum([0, *(len(dataset) for dataset in datasets)])
        self.tokens = np.concatenate([dataset.num_tokens_vec(np.arange(len(dataset))) for dataset in datasets])

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.epoch = epoch
        for dataset in self.datasets:
            dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _place(self, index: int) -> tuple[Any, int]:
        which = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.datasets[which], int(index - self.starts[which])

    def __getitem__(self, index: int) -> Any:
        dataset, number = self._place(index)
        return {**dataset[number], "id": int(index)}

    def collater(self, samples: list[Any], **kwargs: Any) -> Any:
        return self.datasets[0].collater(samples, **kwargs)

    def num_tokens(self, index: int) -> int:
        return int(self.tokens[index])

    def num_tokens_vec(self, indices: np.ndarray) -> np.ndarray:
        return self.tokens[indices]

    def size(self, index: int) -> Any:
        dataset, number = self._place(index)
        return dataset.size(number)

    def ordered_indices(self) -> np.ndarray:
        """Return the indices of an epoch; each pass over a dataset is ordered by length."""
        passes = [dataset.ordered_indices() + start for dataset, start in zip(self.datasets, self.starts)]
        sizes = [len(order) for order in passes]
        epoch: list[Any] = []
        for order, times in zip(passes, repeats(sizes, self.temperature)):
            whole = int(times)
            rest = round((times - whole) * len(order))
            drawn = random.Random(key_of(self.seed, self.epoch, len(epoch) + whole)).sample(range(len(order)), rest)
            epoch += [order] * whole + [order[sorted(drawn)]]
        return np.concatenate(epoch)


def repeats(sizes: Sequence[int], temperature: float) -> list[float]:
    """Return how often each dataset occurs in an epoch, at least once."""
    each = [size ** (1 / temperature - 1) for size in sizes]
    return [value / min(each) for value in each]
