"""Training data whose sentences are cut into other subwords in every epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from fairseq.data import BaseWrapperDataset
from torch import Tensor

from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.data.subword_sampling import Sampler
from fairseq_lasformer.data.subwords import SYMBOLS
from fairseq_lasformer.resume import key_of


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


class SampledSubwords(BaseWrapperDataset):
    """fairseq's language pair dataset with subwords drawn anew in every epoch.

    They depend on seed, epoch and example alone, so that a resumed training continues as it would have. Batches are
    made by the usual lengths.

    Args:
        sides: source and target.
        seed: fairseq's ``--seed``.
    """

    def __init__(self, dataset: Any, sides: tuple[SampledSide, SampledSide], seed: int) -> None:
        super().__init__(dataset)
        self.sides, self.seed, self.epoch = sides, seed, 1

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict[str, Any]:
        item, generator = self.dataset[index], random.Random(key_of(self.seed, self.epoch, int(index)))
        source, target = self.sides
        return {
            **item,
            "source": source.draw(item["source"], generator),
            "target": target.draw(item["target"], generator),
        }

    def num_tokens_vec(self, indices: Any) -> Any:
        return self.dataset.num_tokens_vec(indices)
