"""Translated lines that went wrong: recognition, and exclusion of repetitions in a second search."""

from collections.abc import Sequence

import torch

from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.ops import LAST_RESORT
from fairseq_lasformer.search.processors import Scores, StepProcessor

LONGEST_PERIOD = 8
"""Length of the longest block of tokens whose repetition is a loop."""

REPETITIONS = 4
"""Number of consecutive occurrences of a block that make a loop."""


def split(tokens: Sequence[int], separator: int) -> list[list[int]]:
    """Split tokens at separators; always at least one line."""
    return [list(tokens[start:end]) for start, end in line_spans(tokens, separator)]


def loops(tokens: Sequence[int]) -> bool:
    """Return whether a block of at most :data:`LONGEST_PERIOD` tokens occurs :data:`REPETITIONS` times in a row."""
    for period in range(1, LONGEST_PERIOD + 1):
        run = 0
        for i in range(period, len(tokens)):
            run = run + 1 if tokens[i] == tokens[i - period] else 0
            if run >= period * (REPETITIONS - 1):
                return True
    return False


def gone_wrong(source: Sequence[int], line: Sequence[int], limit: int) -> bool:
    """Return whether a line reached its limit, or contains a loop that its source does not have."""
    return len(line) >= limit or (loops(line) and not loops(source))


def flawed(source: Sequence[Sequence[int]], target: Sequence[Sequence[int]], limits: Sequence[int]) -> list[int]:
    """Find the lines that have :func:`gone wrong <gone_wrong>`.

    Args:
        source: tokens of each line of the source.
        target: tokens of each line of its translation, as many.
        limits: maximum number of tokens of each line of the translation.

    Returns:
        indices of the lines, in order.
    """
    return [i for i, line in enumerate(zip(source, target, limits, strict=True)) if gone_wrong(*line)]


BLOCKED = 3
"""Length of the token sequences that no line that is searched again may repeat."""


class NoRepetition(StepProcessor):
    """Exclusion of words that would complete :data:`BLOCKED` tokens for the second time."""

    reads_tokens = True

    def step(self, scores: Scores) -> None:
        n, tokens, lprobs = BLOCKED - 1, scores.tokens, scores.lprobs
        assert tokens is not None
        if tokens.size(1) <= n:
            return
        same = (tokens.unfold(1, n, 1)[:, :-1] == tokens[:, None, -n:]).all(-1)
        excluded = torch.zeros_like(lprobs.view(tokens.size(0), -1)).scatter_add_(
            1, tokens[:, n:], LAST_RESORT * same.to(lprobs.dtype)
        )
        lprobs += excluded.view_as(lprobs)
