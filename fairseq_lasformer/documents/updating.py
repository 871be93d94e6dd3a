"""Updates of a translation after changes to its source: unchanged lines are kept, the others translated in place.

The lines of the old and the new source are aligned. Unchanged lines keep their translations, which are given to the
search; changed runs are translated between them. A new line may contradict the translation of a later one, such as a
pronoun whose antecedent has changed. So later lines are scored with the old and with the new context; where a word has
become less likely, the line is translated again. The new translation is used if it is better in the new context, while
the old one was better in the old context.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.documents.part_search import SCORED_TOKENS, TOGETHER
from fairseq_lasformer.documents.scoring import against_best, total
from fairseq_lasformer.documents.source import Line, Source, runs, with_item
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.text.documents import Span

AFTER = 1
"""Number of given lines after a changed one that its translation must fit."""

LOST = 0.1
"""Probability that a word must lose by the new context for its line to be checked again."""

UNLIKE = 4.0
"""Log probability by which a word must trail the model's own choice for its line to count as a human edit."""

ROUNDS = 4
"""Maximum number of times that later lines are checked: retranslated lines may contradict others."""

KEPT, NEW, REREAD, EDITED = "kept", "new", "re-read", "edited"


class Former(NamedTuple):
    """An earlier version of a source, and its translation.

    Attributes:
        document: the old source; ``given`` contains the translation of every line that has one.
        edited: numbers of lines edited by a human; None: those that the model would not write, even without the
            other edits before them.
    """

    document: Source
    edited: Collection[int] | None = None


class Updated(NamedTuple):
    """An updated translation.

    Attributes:
        lines: the lines of the new document.
        states: state of each: ``kept``, ``new`` (translated), ``re-read`` (translated again, because the text before it
            has changed) or ``edited`` (kept, as a human edit).
        contradicted: numbers of the edited lines that the new context contradicts.
    """

    lines: list[Line]
    states: list[str]
    contradicted: list[int]


def kept_lines(old: Sequence[str], new: Sequence[str]) -> list[int | None]:
    """Return, for each new line, the number of the same line in the old text; None for new and changed ones."""
    found: list[int | None] = [None] * len(new)
    for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        found[block.b : block.b + block.size] = range(block.a, block.a + block.size)
    return found


class Updater:
    """Updater of translations.

    Args:
        translator: translator whose generator aligns lines.
        touch_edits: whether edited lines may be translated again.
    """

    def __init__(self, translator: Translator, device: torch.device | str, touch_edits: bool = False) -> None:
        self.translator, self.device, self.touch_edits = translator, device, touch_edits

    def update(
        self,
        former: Former,
        document: Source,
        kept: Sequence[int | None],
        tick: Callable[[int], object] = lambda n: None,
    ) -> Updated:
        """Translate the new lines of a document, and the lines that they contradict.

        Args:
            document: the new source; ``given`` contains the translations of kept lines.
            kept: see :func:`kept_lines`.
            tick: called with the number of lines that were settled.
        """
        n = len(document.sentences)
        given = document.given or [None] * n
        lines = [Line(document.sentences[0][:0] if line is None else line, 0.0, False, False) for line in given]
        states = [NEW if line is None else KEPT for line in given]
        tick(sum(line is not None for line in given))
        fresh = [i for i, line in enumerate(given) if line is None]
        for part in document.parts:
            here = [i for i in fresh if part.start <= i < part.start + part.size]
            for first, last in runs(here, TOGETHER):
                for i, line in self._translated(document, part, first, last, lines).items():
                    if given[i] is None:
                        lines[i] = line
                tick(sum(first <= i <= last for i in here))
        gone = _gone(kept, len(former.document.sentences))
        contradicted = []
        if (fresh or gone) and any(j is not None for j in kept):
            contradicted = self._reread(former, document, kept, lines, states, min([*fresh[:1], *gone[:1]]))
        return Updated(lines, states, contradicted)

    def _translated(
        self, document: Source, part: Span, first: int, last: int, lines: Sequence[Line]
    ) -> dict[int, Line]:
        """Translate lines of a part after all lines of the part before them, and before a few given ones."""
        end = part.start + part.size
        after = 0
        while after < AFTER and last + 1 + after < end and (document.given or ())[last + 1 + after] is not None:
            after += 1
        span = Span(part.document, first, last - first + 1 + after, first - part.start + part.context)
        (found,) = self.translator.translate_parts([(document, span, lines[:first])], self.device)
        return {i: line for i, line in enumerate(found, first) if i <= last}

    def _reread(
        self,
        former: Former,
        document: Source,
        kept: Sequence[int | None],
        lines: list[Line],
        states: list[str],
        first: int,
    ) -> list[int]:
        """Translate lines after the first changed one again if the new context contradicts them.

        Changes lines and states; returns the numbers of contradicted edited lines that are kept.
        """
        nothing = torch.empty(0, dtype=torch.int64)
        before = [_line(nothing if tokens is None else tokens) for tokens in former.document.given or ()]
        old = self._scores(former.document, before)
        edited = former.edited
        if edited is None:
            edited = self._edits(former.document, before, {j for j, scores in old.items() if _is_unlike(scores)})
        states[:] = [EDITED if j in edited else state for j, state in zip(kept, states)]
        looked: dict[int, int] = {}  # number of lines before it that had been translated again at that time
        contradicted = set[int]()
        for _ in range(ROUNDS):
            new = self._scores(document, lines)
            lost = {
                i: float((old[j][0].exp() - new[i][0].exp()).max())
                for i, j in enumerate(kept)
                if j is not None and i >= first and looked.get(i, -1) < states[:i].count(REREAD)
            }
            found = [i for i, probability in lost.items() if probability > LOST]
            if not found:
                break
            looked |= {i: states[:i].count(REREAD) for i in found}
            changed = False
            for group in runs(found, TOGETHER):
                here = [i for i in found if group[0] <= i <= group[1]]
                for i, again in self._again(document, lines, here).items():
                    j = kept[i]
                    if j is None or torch.equal(again.tokens, lines[i].tokens):
                        continue
                    now = self._sum(document, lines, i) if changed else total(new[i][0])
                    if now >= self._sum(document, with_item(lines, i, again), i):
                        continue  # the old one is still better
                    if total(old[j][0]) <= self._sum(former.document, with_item(before, j, again), j):
                        continue  # the old one was never better
                    if states[i] == EDITED and not self.touch_edits:
                        contradicted.add(i)
                        continue
                    lines[i], states[i], changed = again, REREAD, True
                    looked[i] = len(lines)
                    document = document._replace(given=with_item(document.given or (), i, again.tokens))
        return sorted(contradicted)

    def _edits(self, document: Source, lines: Sequence[Line], suspected: Collection[int]) -> set[int]:
        """Return which of the suspected lines the model would not write after its own translations of the others.

        An edit makes the lines after it unlikely, too, though nobody has touched them.
        """
        if not suspected:
            return set()
        own = list(lines)
        for i, line in self._again(document, lines, sorted(suspected)).items():
            own[i] = line
        edited = set()
        for i in suspected:
            changed = not torch.equal(own[i].tokens, lines[i].tokens)
            if changed and _is_unlike(self._score(document, with_item(own, i, lines[i]), i)):
                edited.add(i)
        return edited

    def _again(self, document: Source, lines: Sequence[Line], numbers: Sequence[int]) -> dict[int, Line]:
        """Return other translations of kept lines; those between them do not change."""
        given = [None if i in numbers else tokens for i, tokens in enumerate(document.given or ())]
        found: dict[int, Line] = {}
        for part in document.parts:
            if here := [i for i in numbers if part.start <= i < part.start + part.size]:
                free = document._replace(given=given)
                translated = self._translated(free, part, here[0], here[-1], lines)
                found |= {i: translated[i] for i in here}
        return found

    def _sum(self, document: Source, lines: Sequence[Line], i: int) -> float:
        """Return the log probability of a line after the text before it."""
        return total(self._score(document, lines, i)[0])

    def _score(self, document: Source, lines: Sequence[Line], i: int) -> tuple[Tensor, Tensor]:
        """Score the tokens of a line as :meth:`_scores` does, after the text before it."""
        part = next(p for p in document.parts if p.start <= i < p.start + p.size)
        return self._scores(document, lines, [part], i + 1 - part.start)[i]

    def _scores(
        self,
        document: Source,
        lines: Sequence[Line],
        parts: Sequence[Span] | None = None,
        size: int | None = None,
    ) -> dict[int, tuple[Tensor, Tensor]]:
        """Score the tokens of each line and its end, after the text before it, and the most likely words there.

        Args:
            parts: default: all of the document.
            size: number of lines of a part whose translation is scored; default: all.
        """
        translator, separator = self.translator, self.translator.ends[1]
        parts = document.parts if parts is None else parts
        examples = [
            (translator.example(document, part), translator.target(document, part, lines, size)) for part in parts
        ]
        model, dictionary = translator.models[0], translator.task.target_dictionary
        scored = against_best(model, dictionary, examples, SCORED_TOKENS, self.device)
        found: dict[int, tuple[Tensor, Tensor]] = {}
        for part, (_, target), (tokens, best) in zip(parts, examples, scored):
            tag = int(translator.tags[1] is not None)
            spans = line_spans(target.tolist()[tag:-1], separator)
            for number, (start, end) in enumerate(spans, part.start - translator.lines_before(document, part)):
                if number >= part.start:
                    found[number] = tokens[tag + start : tag + end + 1], best[tag + start : tag + end + 1]
        return found


def _is_unlike(scores: tuple[Tensor, Tensor]) -> bool:
    """Return whether a word of a line is much less likely than the model's own choice."""
    tokens, best = scores
    return float((best - tokens).max()) > UNLIKE


def _line(tokens: Any) -> Line:
    return Line(tokens, 0.0, False, False)


def _gone(kept: Sequence[int | None], n_old: int) -> list[int]:
    """Return the numbers of the new lines before which old ones are missing."""
    found, expected = [], 0
    for i, j in enumerate(kept):
        if j is not None:
            if j > expected:
                found.append(i)
            expected = j + 1
    return found
