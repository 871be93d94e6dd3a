"""Explanations of a translation: its words that depend on other lines, those lines, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from fairseq_lasformer.base.records import Json

DISTANCES = (1, 3, 10, 30)
"""Upper ends of the classes of distances, in lines; a last class has what is farther away."""


class Cause(NamedTuple):
    """A line that decided a word.

    Attributes:
        line: its number.
        word, translated: start and end of the word in it that shows this best, in the source and in the translation;
            None if that was not asked for.
        gives: nats by which this line makes the word more likely if it is the only other line.
        costs: nats by which the word becomes less likely in the document without this line; None if not asked for.
        echo: whether it only repeats an earlier choice: no other line decides, but later words follow this one.
    """

    line: int
    word: tuple[int, int] | None = None
    translated: tuple[int, int] | None = None
    gives: float = 0.0
    costs: float | None = None
    echo: bool = False


class Explained(NamedTuple):
    """A word of a translation, and what it depends on.

    Attributes:
        line: number of its line.
        start, end: place of the word, with those that change with it, in the translation of the line.
        context: nats by which the document makes the word more likely than its line alone does.
        cause: the line that decided it; None if no single line did.
        others: other lines that give as much; empty if they were not asked for.
        together: nats by which it becomes less likely in the document without the cause and the others; None if not
            asked for.
        without: another form: the one that the model finds most likely without other lines.
        instead: the translation of the line with it.
        ambiguous: whether nothing decides between the two.
    """

    line: int
    start: int
    end: int
    context: float
    cause: Cause | None = None
    others: tuple[int, ...] = ()
    together: float | None = None
    without: str = ""
    instead: str = ""
    ambiguous: bool = False

    def numbered(self, number: Callable[[int], int]) -> Explained:
        """Return the same with other line numbers."""
        cause = None if self.cause is None else self.cause._replace(line=number(self.cause.line))
        return self._replace(line=number(self.line), cause=cause, others=tuple(map(number, self.others)))


class Explanation(NamedTuple):
    """The words of a translation that depend on other lines, or that nothing decides.

    Attributes:
        lines: number, source and translation of each line.
        words: in order.
        bits: for each explained line, by number, the bits that the document is worth to the model: the conditional
            cross-mutual information of the line's tokens (arXiv 2105.03482, equation 3), without its end.
        tokens: number of these tokens.
    """

    lines: Sequence[tuple[int, str, str]]
    words: Sequence[Explained]
    bits: Mapping[int, float]
    tokens: Mapping[int, int]

    @property
    def cxmi(self) -> float:
        """Bits per token that the document is worth."""
        return sum(self.bits.values()) / max(1, sum(self.tokens.values()))

    def by_distance(self) -> list[tuple[str, int, float]]:
        """Return, by distance in lines, how many words were decided from there, and how many nats that gives them."""
        rows = []
        for low, high in zip((0, *DISTANCES), (*DISTANCES, 10**9)):
            its = [w for w in self.words if w.cause is not None and low < self._away(w.line, w.cause.line) <= high]
            name = f"{low + 1}-{high}" if high < 10**9 else f">{low}"
            name = str(high) if high == low + 1 else name
            rows.append((name, len(its), sum(w.context for w in its)))
        return rows

    def _away(self, line: int, cause: int) -> int:
        """Return how many lines a cause is before a line."""
        numbers = [number for number, *_ in self.lines]
        return numbers.index(line) - numbers.index(cause)

    def sentence(self, word: Explained) -> str:
        """Say in one sentence what decided a word."""
        texts = {number: (source, translation) for number, source, translation in self.lines}
        shown = texts[word.line][1][word.start : word.end]
        if word.ambiguous:
            return f"{shown}: ambiguous; nothing decides between this and {word.without or 'another form'}"
        without = f"; without context {word.without}" if word.without else ""
        if word.cause is None:
            return f"{shown}: because of several lines, {word.context:.1f} nats{without}"
        cause = word.cause
        away = self._away(word.line, cause.line)
        place = f"line {cause.line}, {away} line{'s' * (away > 1)} before"
        what = f"{_part(texts[cause.line][0], cause.word)} ({place})" if cause.word else place
        others = f"; also line{'s' * (len(word.others) > 1)} {_listed(word.others)}" if word.others else ""
        echo = ", which chose first" if cause.echo else ""
        costs = "" if cause.costs is None else f"; leaving it out costs {_hundredths(cause.costs)} nats"
        costs += f", with the others {_hundredths(word.together)}" if word.others and word.together is not None else ""
        return f"{shown}: because of {what}{echo}, {word.context:.1f} nats{others}{costs}{without}"

    def table(self) -> str:
        """Return a table for a terminal."""
        rows = [(f"{word.line}", self.sentence(word)) for word in self.words]
        width = max((len(number) for number, _ in rows), default=0)
        lines = [f"{number:>{width}}  {text}" for number, text in rows]
        ambiguous = sum(word.ambiguous for word in self.words)
        n = len(self.words) - ambiguous
        counts = f"{n} {'word depends' if n == 1 else 'words depend'} on other lines, {ambiguous} "
        counts += "is ambiguous" if ambiguous == 1 else "are ambiguous"
        lines.append(f"{counts}; other lines are worth {self.cxmi:.3f} bits per token")
        if distances := "; ".join(f"{name}: {n} ({nats:.1f} nats)" for name, n, nats in self.by_distance() if n):
            lines.append(f"lines between a word and what decided it: {distances}")
        return "\n".join(lines)

    def as_dict(self) -> Json:
        """Return it as JSON has it."""
        texts = {number: (source, translation) for number, source, translation in self.lines}
        words = []
        for word in self.words:
            source, translation = texts[word.line]
            its: Json = {"line": word.line, "start": word.start, "end": word.end}
            its |= {"word": translation[word.start : word.end], "nats": round(word.context, 4)}
            its |= {"without": word.without, "instead": word.instead, "ambiguous": word.ambiguous, "because": None}
            if (cause := word.cause) is not None:
                source, translation = texts[cause.line]
                its["because"] = {
                    "line": cause.line,
                    "word": _part(source, cause.word),
                    "translated": _part(translation, cause.translated),
                    "gives": round(cause.gives, 4),
                    "costs": _rounded(cause.costs),
                    "echo": cause.echo,
                    "others": list(word.others),
                    "together": _rounded(word.together),
                }
            its["text"] = self.sentence(word)
            words.append(its)
        lines = [
            {"line": number, "source": source, "translation": translation}
            | {"bits": round(self.bits[number], 4), "tokens": self.tokens[number]}
            for number, source, translation in self.lines
            if number in self.bits
        ]
        distances = [{"lines": name, "words": n, "nats": round(nats, 4)} for name, n, nats in self.by_distance()]
        return {"words": words, "lines": lines, "cxmi": self.cxmi, "by_distance": distances}


def _hundredths(nats: float) -> str:
    return f"{round(nats, 2) + 0.0:.2f}"  # not -0.00


def _rounded(nats: float | None) -> float | None:
    return None if nats is None else round(nats, 4)


def _part(text: str, span: tuple[int, int] | None) -> str:
    return "" if span is None else text[span[0] : span[1]]


def _listed(numbers: Sequence[int], most: int = 5) -> str:
    return ", ".join(map(str, numbers[:most])) + (f" and {len(numbers) - most} more" if len(numbers) > most else "")
