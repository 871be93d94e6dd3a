"""Training data whose sentences are cut into other subwords in every epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.data.subword_sampling import Sampler
from fairseq_lasformer.data.subwords import SYMBOLS
from fairseq_lasformer.plugin.datasets.epoch_draws import DrawnEveryEpoch


class SampledSide(NamedTuple):
    """One side of the examples.

    Attributes:
        sampler: draws the subwords of a sentence.
        dictionary: fairseq's.
        symbols: of the data's settings: separator and tags.
        separator: the one of them between sentences; empty for none.
        tag: the one that examples begin with; empty for none.
        limit: maximum number of tokens of an example.
    """

    sampler: Sampler
    dictionary: Any
    symbols: Sequence[str]
    separator: str
    tag: str
    limit: int

    def draw(self, tokens: Tensor, generator: random.Random) -> Tensor:
        """The example in other subwords, or as it is if it would become longer than the limit.

        A sentence with an unknown word is left as it is, and so is one that spells out a symbol.

        Args:
            tokens: [n], an example, closed by end of sentence.
        """
        *words, end = (self.dictionary[int(i)] for i in tokens)
        tagged = bool(self.tag) and words[:1] == [self.tag]
        made, words = words[:tagged], words[tagged:]
        for start, stop in line_spans(words, self.separator or None):
            sentence = words[start:stop]
            drawn = sentence if self.dictionary.unk_word in sentence else self.sampler(sentence, generator)
            fixed = any(symbol in drawn for symbol in (*SYMBOLS, *self.symbols))
            made += [self.separator] * bool(start) + (sentence if fixed else drawn)
        if len(made) >= self.limit:
            return tokens
        return torch.tensor([self.dictionary.index(word) for word in (*made, end)], dtype=tokens.dtype)


class SampledSubwords(DrawnEveryEpoch):
    """fairseq's language pair dataset with subwords drawn anew in every epoch.

    Args:
        sides: source and target.
        seed: see :class:`DrawnEveryEpoch`.
    """

    def __init__(self, dataset: Any, sides: tuple[SampledSide, SampledSide], seed: int) -> None:
        super().__init__(dataset, seed)
        self.sides = sides

    def __getitem__(self, index: int) -> dict[str, Any]:
        item, generator = self.dataset[index], random.Random(self.seed_of(index))
        source, target = self.sides
        return {
            **item,
            "source": source.draw(item["source"], generator),
            "target": target.draw(item["target"], generator),
        }
