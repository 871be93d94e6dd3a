"""Reasons for the words of a translation: the earlier line that decided a word, and its form without that line.

The words of a translation are scored in the document, and in their own line alone. A word that the document makes more
likely depends on it. Each earlier line is then tried as the only other line, the nearest first: the first that makes
the word as likely as the whole document does has decided it. A line may only repeat an earlier decision: it says *sie*
because a line before it said *die Brücke*. This shows when its own translation is changed to the other form: if the
word follows that change, the line is an echo, and the search goes on. Last, the document is scored without the line.

With learned selection, a key that is not kept has no weight, so a line none of whose keys is kept cannot matter
directly. This rules out hardly any line: with a share of 0.2 of a thousand keys, each of a line's queries, in each
module, keeps keys of most lines. So all earlier lines are candidates, in dense models and in others.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.documents.explanation import Cause, Explained, Explanation
from fairseq_lasformer.documents.forced import ForcedDocument, Place, Scores, Variant
from fairseq_lasformer.documents.scoring import total
from fairseq_lasformer.documents.word_attention import word_alignment
from fairseq_lasformer.text.units import units

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel

LEAST = 0.1
"""Nats by which the document must make a word more likely for the word to depend on it."""

SUFFICES = 0.9
"""Share of these nats that a line must give on its own to have decided the word."""

ECHO = 0.5
"""Share of what a line gives that remains, at most, when its own translation is changed, if it is an echo."""

MARGIN = 1.5
"""Nats between two forms of a word, at most, for it to be ambiguous: in the document, and in the line alone."""

UNDECIDED = 0.75
"""Nats by which the document may make an ambiguous word more likely, at most."""

TOGETHER = 8
"""Number of lines tried at a time, the nearest first."""


class _Word(NamedTuple):
    """A word that depends on the document, or that is ambiguous."""

    place: Place  # its tokens
    number: int  # of the word in the line
    context: float  # nats by which the document makes it more likely
    at: int  # the token at which the other form begins
    other: int  # the token that it begins with
    ambiguous: bool  # see `Explained`

    def score(self, of: Callable[[int], Scores]) -> float:
        """Return the log probability of the word, from a function that returns the scores of its line."""
        return total(of(self.place.line).own[self.place.first : self.place.end])


class _Form(NamedTuple):
    """Another form of a word: the whole line with it as int64 tokens and text, what it changes, and to what."""

    tokens: Tensor
    instead: str
    start: int
    end: int
    without: str


class _Found(NamedTuple):
    """The line that decided a word, what it gives, others that give as much, and whether it is an echo."""

    line: int | None = None
    gives: float = 0.0
    others: tuple[int, ...] = ()
    echo: bool = False


class _Search:
    """The search for the line that decided a word.

    Args:
        left: numbers of the lines to try, the nearest first.
    """

    def __init__(self, word: _Word, left: list[int]) -> None:
        self.word, self.left = word, left
        self.tried: dict[int, float] = {}
        self.echoes: set[int] = set()

    def next(self, most: int | None) -> list[int]:
        """Take the next lines to try; all if ``most`` is None."""
        lines = self.left[:most]
        self.left = self.left[len(lines) :]
        return lines

    def is_enough(self, line: int, wanted: float | None = None) -> bool:
        """Return whether a line gives enough: of what the document gives, or of ``wanted``."""
        return self.tried[line] >= SUFFICES * max(LEAST, self.word.context if wanted is None else wanted)

    def found(self, wanted: float | None = None, echoes: bool = False) -> list[int]:
        """Return the lines that give enough, the nearest first; echoes only if asked for."""
        return [j for j in self.tried if self.is_enough(j, wanted) and (echoes or j not in self.echoes)]

    def result(self) -> _Found:
        """Return the nearest line that is enough, or that gives most if none is; an echo only if there is no other."""
        lines, echo = self.found(), False
        if not lines:
            best = max((gives for j, gives in self.tried.items() if j not in self.echoes), default=0.0)
            lines = self.found(best) if best > LEAST else []
        if not lines:
            lines, echo = self.found(echoes=True), True
        return _Found(lines[0], self.tried[lines[0]], tuple(lines[1:]), echo) if lines else _Found()


class Because:
    """The reasons for the words of a document's translation.

    Args:
        document: the document with its translation.
        thorough: try all earlier lines, not just up to the nearest that suffices; name words in them, and score the
            document without them.
    """

    def __init__(self, document: ForcedDocument, thorough: bool = False) -> None:
        self.document, self.thorough = document, thorough
        self._forms: dict[Place, _Form] = {}
        self._words: dict[int, list[_Word]] = {}

    def explain(self, lines: Collection[int] | None = None) -> list[Explained]:
        """Return the words that depend on other lines, and those that are ambiguous, in order.

        Args:
            lines: numbers of the lines to explain, from 0; default: all.
        """
        chosen = range(len(self.document.sources)) if lines is None else sorted(lines)
        asked = [word for i in chosen for word in self.words(i)]
        self._find_forms(asked)
        heads: list[_Word] = []
        for word in asked:  # a word that changes with the one before it has its reasons
            before = heads[-1] if heads and heads[-1].place.line == word.place.line else None
            if before is None or self._forms[before.place].end <= self.document.words[word.place.line][word.number][0]:
                heads.append(word)
        decided = [word for word in heads if not word.ambiguous]
        explained = dict(zip((word.place for word in decided), self._explained(decided, self._causes(decided))))
        return [explained.get(word.place) or self._plain(word) for word in heads]

    def words(self, line: int) -> list[_Word]:
        """Return the words of a line that depend on the document, and those that are ambiguous."""
        if line not in self._words:
            self._words[line] = self._words_of(line)
        return self._words[line]

    def _words_of(self, line: int) -> list[_Word]:
        document, words = self.document, list[_Word]()
        full, alone = document.full(line), document.alone(line)
        gains, gaps = full.own - alone.own, full.own - full.second
        for number in range(len(document.words[line])):
            first, end = document.place(line, number)
            if first == end or not document.is_word(line, number):
                continue
            context = total(full.own[first:end]) - total(alone.own[first:end])
            at = first + int(gaps[first:end].argmin())
            here = float(gaps[at]), float(alone.own[at] - alone.second[at])
            if max(map(abs, here)) < MARGIN and context < UNDECIDED:
                words.append(_Word(Place(line, first, end), number, context, at, int(full.other[at]), True))
            elif context > LEAST:
                at = first + int(gains[first:end].argmax())
                words.append(_Word(Place(line, first, end), number, context, at, int(alone.other[at]), False))
        return words

    def _find_forms(self, words: Sequence[_Word]) -> None:
        """Find the other forms of words; those known are kept."""
        document = self.document
        new = [word for word in words if word.place not in self._forms]
        beginnings = [
            (w.place.line, torch.cat([document.targets[w.place.line][: w.at], torch.tensor([w.other])])) for w in new
        ]
        for word, tokens in zip(new, document.continued(beginnings)):
            text = document.text(tokens)
            self._forms[word.place] = _Form(tokens, text, *self._changed(word, text))

    def _changed(self, word: _Word, instead: str) -> tuple[int, int, str]:
        """Return start and end of what another translation of its line changes around a word, and what is there."""
        text, words = self.document.texts[1][word.place.line], self.document.words[word.place.line]
        theirs = units(instead)
        sides = [text[a:b] for a, b in words], [instead[a:b] for a, b in theirs]
        for _, a, b, c, d in difflib.SequenceMatcher(None, *sides, autojunk=False).get_opcodes():
            if a <= word.number < b and sides[0][a:b] != sides[1][c:d] and d > c:
                return words[a][0], words[b - 1][1], instead[theirs[c][0] : theirs[d - 1][1]]
        return *words[word.number], ""

    def _causes(self, words: Sequence[_Word]) -> list[_Found]:
        """Return what decided each word."""
        searches = [_Search(word, self.document.before(word.place.line)) for word in words]
        while left := [search for search in searches if search.left and (self.thorough or not search.found())]:
            most = None if self.thorough else TOGETHER
            self._try([(search, j) for search in left for j in search.next(most)])
        return [search.result() for search in searches]

    def _try(self, now: Sequence[tuple[_Search, int]]) -> None:
        """Try lines as the only other line of a word, and whether those that suffice are echoes."""
        for (search, j), gives in zip(now, self._given([(search.word, j, None) for search, j in now])):
            search.tried[j] = gives
        sure = [(search, j) for search, j in now if self.words(j) and search.is_enough(j)]
        self._find_forms([form for j in dict.fromkeys(j for _, j in sure) for form in self.words(j)])
        changed = [(search, j, self._forms[form.place].tokens) for search, j in sure for form in self.words(j)]
        given = self._given([(search.word, j, form) for search, j, form in changed])
        for (search, j, _), gives in zip(changed, given):
            if gives < ECHO * search.tried[j]:
                search.echoes.add(j)

    def _given(self, asked: Sequence[tuple[_Word, int, Tensor | None]]) -> list[float]:
        """Return what lines give: for a word, a line's number, and another translation of it or None."""
        variants = [
            Variant([j, word.place.line], targets={} if other is None else {j: other}) for word, j, other in asked
        ]
        return self._more([word for word, *_ in asked], variants)

    def _more(self, words: Sequence[_Word], variants: Sequence[Variant]) -> list[float]:
        """Return the nats by which words are more likely in variants than in their lines alone."""
        scored = self.document.likelihoods([(variant, [w.place]) for variant, w in zip(variants, words)])
        return [score - word.score(self.document.alone) for word, (score,) in zip(words, scored)]

    def costs(self, asked: Sequence[tuple[_Word, tuple[int, ...]]]) -> list[float]:
        """Return the nats by which words become less likely in the document without some other lines."""
        together: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for n, (word, left_out) in enumerate(asked):
            together.setdefault((self.document.part(word.place.line).start, left_out), []).append(n)
        variants = []
        for (_, left_out), numbers in together.items():
            part = self.document.part(asked[numbers[0]][0].place.line)
            lines = [i for i in self.document.whole(part) if i not in left_out]
            variants.append((Variant(lines), [asked[n][0].place for n in numbers]))
        scores_of: dict[int, float] = {}
        for numbers, scores in zip(together.values(), self.document.likelihoods(variants)):
            scores_of |= dict(zip(numbers, scores))
        return [word.score(self.document.full) - scores_of[n] for n, (word, _) in enumerate(asked)]

    def _plain(self, word: _Word) -> Explained:
        form = self._forms[word.place]
        without = form.without, form.instead, word.ambiguous
        return Explained(word.place.line, form.start, form.end, word.context, None, (), None, *without)

    def _explained(self, words: Sequence[_Word], causes: Sequence[_Found]) -> list[Explained]:
        plain = [self._plain(word) for word in words]
        if not self.thorough:
            return [
                one if line is None else one._replace(cause=Cause(line, gives=gives, echo=echo))
                for one, (line, gives, _, echo) in zip(plain, causes)
            ]
        asked: list[tuple[_Word, tuple[int, ...]]] = []
        for word, (line, _, others, _) in zip(words, causes):
            if line is not None:
                asked += [(word, (line,)), (word, tuple(sorted([line, *others])))]
        costs, explained = iter(self.costs(asked)), []
        for word, one, (line, gives, others, echo) in zip(words, plain, causes):
            if line is not None:
                cause = Cause(line, *self._telling(word, line), gives, next(costs), echo)
                one = one._replace(cause=cause, others=others, together=next(costs))
            explained.append(one)
        return explained

    def _telling(self, word: _Word, line: int) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        """Return the word of a line that shows its effect best, in the source and in the translation.

        It gives most on its own, with its translation, and costs most if both are left out.
        """
        document = self.document
        source, target = (texts[line] for texts in document.texts)
        words = units(source)
        aligned = word_alignment(document.model, source, target).weights
        if not words or not aligned.size:
            return None, None
        best = aligned.argmax(0).tolist()
        variants = []
        for keep in (True, False):
            for n, m in enumerate(best):
                sides = document.only(line, 0, n, keep), document.only(line, 1, m, keep)
                variants.append(Variant([line, word.place.line], {line: sides[0]}, {line: sides[1]}))
        more = self._more([word] * len(variants), variants)
        n = max(range(len(best)), key=lambda n: more[n] - more[n + len(best)])
        return words[n], document.words[line][best[n]]


def explain(
    model: BaseFairseqModel,
    lines: Sequence[tuple[int, str, str]],
    asked: Collection[int] | None = None,
    thorough: bool | None = None,
    done: Callable[[int], object] = lambda n: None,
) -> Explanation:
    """Explain a translation.

    Args:
        model: a :class:`DocumentHubInterface`.
        lines: number, source and translation of each line of a document, none of them blank.
        asked: numbers of the lines to explain; default: all.
        thorough: see :class:`Because`; default: if only some lines are asked for.
        done: called with a number of finished comparisons, every second or so; an exception ends the work.

    Raises:
        InputError: the model reads single sentences, or a line is too long for it.
    """
    numbers = [number for number, *_ in lines]
    document = ForcedDocument(model, [source for _, source, _ in lines], [target for *_, target in lines], done)
    if not lines:
        return Explanation([], [], {}, {})
    because = Because(document, asked is not None if thorough is None else thorough)
    chosen = [i for i, number in enumerate(numbers) if asked is None or number in asked]
    words = because.explain(chosen)
    return Explanation(
        lines,
        [word.numbered(numbers.__getitem__) for word in words],
        {numbers[i]: document.bits(i) for i in chosen},
        {numbers[i]: len(document.targets[i]) for i in chosen},
    )
