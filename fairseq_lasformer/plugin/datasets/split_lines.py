"""Lines of a batch that are cut in two, so that a document model learns to read the other half; see ``text.halves``.

A half is a line like others: a separator is added at the same place on both sides, and nothing else changes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from fairseq_lasformer.base.records import Sample
from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.text.halves import AFTER_MARK, BETWEEN, INSIDE, MARKS, Cut, cut

if TYPE_CHECKING:
    from fairseq.data import Dictionary

CONSTANT = 2 / 3
"""Share of a training in which lines are cut as often as asked; from then on, ever fewer are."""


def share_at(share: float, update: int, last: int) -> float:
    """Return the share of lines to cut in an update: it falls to 0 over the last third of a training.

    Args:
        last: number of updates of the training; 0 if it is not known.
    """
    if last <= 0:
        return share
    return share * min(1.0, max(0.0, (1 - update / last) / (1 - CONSTANT)))


class Spelling(NamedTuple):
    """Place of a token in a line, as far as its spelling says."""

    begins: bool  # whether it begins a word, by sentencepiece's ▁; True in vocabularies without
    goes_on: bool  # whether its word goes on, by subword-nmt's @@
    mark: bool  # whether it ends with one of `MARKS`


class SplitSide(NamedTuple):
    """One side of a batch."""

    dictionary: Dictionary  # fairseq's dictionary
    separator: int  # index of the separator between lines
    spellings: list[Spelling]  # of every token of the dictionary
    limit: int  # maximum number of tokens of an example
    left: bool  # whether padding is before the tokens

    @classmethod
    def of(cls, dictionary: Dictionary, separator: str, limit: int, left: bool) -> SplitSide:
        """Return a side with words in the subwords of sentencepiece or subword-nmt."""
        words = [dictionary[i] for i in range(len(dictionary))]
        pieces = any(word.startswith("▁") for word in words)
        spellings = [
            Spelling(
                not pieces or word.startswith("▁"),
                word.endswith("@@"),
                word.strip("▁").removesuffix("@@").endswith(tuple(MARKS)),
            )
            for word in words
        ]
        return cls(dictionary, dictionary.index(separator), spellings, limit, left)

    def before(self, line: Sequence[int]) -> list[int]:
        """Return what is before each token of a line, see ``text.halves``."""
        tokens = [self.spellings[token] for token in line]
        spaced = 3 * sum(token.begins for token in tokens) > len(tokens)  # not in Chinese
        places = [BETWEEN if token.begins or not spaced else INSIDE for token in tokens]
        for i, token in enumerate(tokens[:-1], 1):
            if token.mark:
                places[i] = AFTER_MARK
            elif token.goes_on:
                places[i] = INSIDE
        return places


def split_lines(sample: Sample, share: float, sides: tuple[SplitSide, SplitSide], seed: str) -> Sample:
    """Cut lines of a batch in two. A new batch is returned; the input is not modified.

    Every line draws for itself, from the seed and the number of its example: workers and resumed trainings draw alike.

    Args:
        share: probability that a line is cut, if it has enough words.
        seed: of this update.
    """
    if not sample or not share:
        return sample
    net_input, pad = sample["net_input"], sides[0].dictionary.pad()
    rows = [_rows(tokens, pad) for tokens in (net_input["src_tokens"], sample["target"])]
    examples = [
        _split(source, target, share, sides, random.Random(f"{seed} {number}"))
        for number, source, target in zip(sample["id"].tolist(), *rows)
    ]
    device, end = sample["target"].device, sides[1].dictionary.eos()
    source, target = ([torch.tensor(row, dtype=torch.long, device=device) for row in side] for side in zip(*examples))
    inputs = {
        **net_input,
        "src_tokens": collate_tokens(source, pad, left_pad=sides[0].left),
        "src_lengths": torch.tensor([*map(len, source)], device=device),
        "prev_output_tokens": collate_tokens(target, pad, end, sides[1].left, move_eos_to_beginning=True),
    }
    targets = collate_tokens(target, pad, left_pad=sides[1].left)
    return {**sample, "net_input": inputs, "target": targets, "ntokens": sum(map(len, target))}


def _split(
    source: list[int], target: list[int], share: float, sides: tuple[SplitSide, SplitSide], generator: random.Random
) -> tuple[list[int], list[int]]:
    """Return an example, source and target, with some of its lines cut."""
    lines = [
        [tokens[start:stop] for start, stop in line_spans(tokens[:-1], side.separator)]
        for tokens, side in zip((source, target), sides)
    ]
    room = min(side.limit - len(tokens) for tokens, side in zip((source, target), sides))
    if len(lines[0]) != len(lines[1]):
        return source, target
    halves: tuple[list[int], list[int]] = [], []
    for i, both in enumerate(zip(*lines)):
        where: Cut | None = None
        if generator.random() < share and room > 0:
            where = cut(sides[0].before(both[0]), sides[1].before(both[1]), generator)
        room -= where is not None
        for to, line, side, place in zip(halves, both, sides, where or (None, None)):
            to += [side.separator] * bool(i)
            to += line if place is None else [*line[:place], side.separator, *line[place:]]
    return [*halves[0], source[-1]], [*halves[1], target[-1]]


def _rows(tokens: Tensor, pad: int) -> list[list[int]]:
    return [[token for token in row if token != pad] for row in tokens.tolist()]
