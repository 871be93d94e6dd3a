"""Training data whose sentences are split into different subwords in every epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.base.records import Sample
from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.data.subword_sampling import Sampler
from fairseq_lasformer.data.subwords import SYMBOLS
from fairseq_lasformer.plugin.datasets.epoch_draws import DrawnEveryEpoch

if TYPE_CHECKING:
    from fairseq.data import Dictionary, FairseqDataset


class SampledSide(NamedTuple):
    """One side of the examples."""

    sampler: Sampler  # draws the subwords of a sentence
    dictionary: Dictionary  # fairseq's dictionary
    symbols: Sequence[str]  # separator and tags in the data's settings
    separator: str  # the separator between sentences; empty for none
    tag: str  # the first symbol of every example; empty for none
    limit: int  # maximum number of tokens of an example

    def draw(self, tokens: Tensor, generator: random.Random) -> Tensor:
        """Draw other subwords for an example; it is unchanged if it would exceed the limit.

        Sentences with an unknown word, or that spell out a symbol, are unchanged.

        Args:
            tokens: [n], an example, ending with end of sentence.
        """
        *words, end = (self.dictionary[i] for i in tokens.tolist())
        tagged = bool(self.tag) and words[:1] == [self.tag]
        tokens_drawn, words = words[:tagged], words[tagged:]
        for start, stop in line_spans(words, self.separator or None):
            sentence = words[start:stop]
            drawn = sentence if self.dictionary.unk_word in sentence else self.sampler(sentence, generator)
            fixed = any(symbol in drawn for symbol in (*SYMBOLS, *self.symbols))
            tokens_drawn += [self.separator] * bool(start) + (sentence if fixed else drawn)
        if len(tokens_drawn) >= self.limit:
            return tokens
        return torch.tensor([self.dictionary.index(word) for word in (*tokens_drawn, end)], dtype=tokens.dtype)


class SampledSubwords(DrawnEveryEpoch):
    """fairseq's language pair dataset with subwords redrawn every epoch.

    Args:
        sides: source and target.
        seed: see :class:`DrawnEveryEpoch`.
    """

    def __init__(self, dataset: FairseqDataset, sides: tuple[SampledSide, SampledSide], seed: int) -> None:
        super().__init__(dataset, seed)
        self.sides = sides

    def __getitem__(self, index: int) -> Sample:
        item, generator = self.dataset[index], random.Random(self.seed_of(index))
        source, target = self.sides
        return {
            **item,
            "source": source.draw(item["source"], generator),
            "target": target.draw(item["target"], generator),
        }
