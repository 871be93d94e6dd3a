"""A document to translate, in parts, and the lines of its translation."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.search.glossary import Terms
from fairseq_lasformer.text.documents import Span
from fairseq_lasformer.translation_memory.matching import Match


class Source(NamedTuple):
    """A document to translate."""

    # int64 tokens of its sentences; or of its parts, if the data has no sentence boundaries
    sentences: Sequence[Tensor]
    parts: Sequence[Span]  # units translated as a whole; their `start`, `size` and `context` count `sentences`
    references: Sequence[Tensor] | None = None  # tokens of each part's reference, for forced prefixes; None for none
    # for each sentence, the tokens of the terms that its translation must contain; None for none
    terms: Terms | None = None
    # for each sentence, the tokens of its given translation, if there is one; None for none
    given: Sequence[Tensor | None] | None = None
    # for each sentence, the pairs of a translation memory that are like it; None for no memory
    matches: Sequence[Sequence[Match]] | None = None


class Line(NamedTuple):
    """A line of a translation."""

    tokens: Tensor  # int64, without separator and end of sentence
    score: float  # mean log probability of its tokens and its end
    repaired: bool  # whether it went wrong at first, and was translated again
    flawed: bool  # whether it reached its limit, repeats itself, or lacks a required term


def others(line: Line, candidates: Iterable[Line], most: int) -> list[Line]:
    """Return the first ``most`` candidates that differ from a line and from each other, by score, best first."""
    known, others = {tuple(line.tokens.tolist())}, list[Line]()
    for candidate in candidates:
        tokens = tuple(candidate.tokens.tolist())
        if tokens not in known and len(others) < most:
            others.append(candidate)
        known.add(tokens)
    return sorted(others, key=lambda line: -line.score)


def joined(lines: Sequence[Tensor], separator: int | None, tag: int | None, eos: int) -> Tensor:
    """Return lines as an example: int64 tokens, with the separator between lines (None: nothing), tag and end."""
    parts: list[Tensor] = []
    for line in lines:
        if parts and separator is not None:
            parts.append(line.new_tensor([separator]))
        parts.append(line)
    return closed(torch.cat(parts), tag, eos)


def closed(tokens: Tensor, tag: int | None, eos: int) -> Tensor:
    """Enclose tokens in the tag of a side, if it has one, and the end of sentence."""
    return torch.cat([tokens.new_tensor([] if tag is None else [tag]), tokens, tokens.new_tensor([eos])])
