"""Ends of lines in a text's tokens, for patterns that read lines (``reads_ends``)."""

from collections.abc import Iterable

from torch import Tensor, nn


class LineEnds:
    """The ends of lines of one side: at a separator, and at the end of sentence, which also starts a target.

    Args:
        words: the words that end a line.
        patterns: the patterns of that side's layers.
        by_model: whether the model reads lines, whatever its patterns do.

    Attributes:
        by_patterns: whether one of these patterns reads lines.
        read: whether it, or the model, does.
    """

    def __init__(self, words: tuple[int, ...], patterns: Iterable[nn.Module], by_model: bool = False) -> None:
        self.words = words
        self.by_patterns = any(getattr(pattern, "reads_ends", False) for pattern in patterns)
        self.read = by_model or self.by_patterns

    def of(self, tokens: Tensor) -> Tensor:
        """Return which tokens end a line, bool like ``tokens``."""
        ends = tokens == self.words[0]
        for word in self.words[1:]:
            ends = ends | (tokens == word)
        return ends

    def asked(self, tokens: Tensor) -> Tensor | None:
        """Return :meth:`of` if lines are read; otherwise None."""
        return self.of(tokens) if self.read else None
