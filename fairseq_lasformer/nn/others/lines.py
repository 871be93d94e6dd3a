"""The ends of a text's lines, and patterns that use them (``reads_ends``): Longformer and ETC.

In the papers, the global tokens depend on the task. In a document, these are the tokens that end a line: the
separators, and the end of sentence, which is also the start symbol of a target. In cross-attention, no query is global.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from fairseq_lasformer.nn.others.relational import Places, Relational, near


@dataclass(frozen=True)
class Width:
    """Parameters of ``longformer`` and ``etc``."""

    window: int  # number of keys nearest to the query, on both sides and its own


class Longformer(Relational[Width]):
    """A window, and global tokens that all attend to and that attend to all (Beltagy et al. 2020, arXiv 2004.05150).

    ``--select-pattern longformer:window=64``
    """

    name = "longformer"
    usage = "longformer:window=N"
    kind = Width
    example = "longformer:window=64"
    reads_ends = True

    def keeps(self, query: Places, key: Places, n_keys: Tensor) -> Tensor:
        return near(query, key, n_keys, self.numbers.window) | key.end | query.end


class Etc(Relational[Width]):
    """A window, and a global token for each line (Ainslie et al. 2020, arXiv 2004.08483): all attend to it, and it
    attends to its line and to the other global tokens.

    ``--select-pattern etc:window=64``
    """

    name = "etc"
    usage = "etc:window=N"
    kind = Width
    example = "etc:window=64"
    reads_ends = True

    def keeps(self, query: Places, key: Places, n_keys: Tensor) -> Tensor:
        own = query.end & (key.line == query.line)
        return key.end | own | (near(query, key, n_keys, self.numbers.window) & ~query.end)


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
