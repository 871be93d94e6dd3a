"""Recognition of translated lines that went wrong."""

from collections.abc import Sequence

from fairseq_lasformer.data.examples import line_spans

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
