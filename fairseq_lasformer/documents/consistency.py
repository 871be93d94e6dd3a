"""Consistent translation of terms: repeated words of a document that the model translated in several ways.

A term is a source word that occurs in several lines and is not frequent in the language. Its form in a line is the word
of the translation that attends to it most. Where a term has several forms, each is tried in all lines, in order, so
later lines see the choices made in earlier ones: each line is translated again with the form required. The form with
the largest sum of log probabilities over all lines is chosen, and used wherever the line loses little by it. Forms that
are spelt alike count as inflections of one form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from rapidfuzz import fuzz

from fairseq_lasformer.documents.part_search import SCORED_TOKENS
from fairseq_lasformer.documents.scoring import log_probabilities
from fairseq_lasformer.documents.source import Line, Source, with_item
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.documents.word_attention import word_alignment
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.search.excerpts import CONTEXT
from fairseq_lasformer.search.glossary import contains
from fairseq_lasformer.text.documents import Span
from fairseq_lasformer.text.units import units

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models import BaseFairseqModel

LOSS = 3.0
"""Log probability that a line may lose by switching to another form."""

SHORTEST = 3
"""Minimum length of a term, in characters."""

CANDIDATES = 3
"""Number of forms tried per term, most frequent first."""

INFLECTIONS = 2
"""Number of inflections tried per form, most frequent first."""

ALIKE = 75.0
"""Minimum similarity of spelling, in percent, of two inflections of one form."""

ATTENDED = 0.2
"""Minimum share of its attention that a word must give to a term to be its form."""

KEPT = 4096
"""Number of aligned lines that are cached; those of a memory recur."""

COMMON = 0.5
"""Share of running text that the frequent words make up."""


class Unified(NamedTuple):
    """A term that was given a single form.

    Attributes:
        form: its form in the translation now.
        lines: numbers, from 0, of the lines that were changed.
        others: numbers of the lines that keep a different form, because they would lose too much.
    """

    term: str
    form: str
    lines: list[int]
    others: list[int]


def frequent_words(dictionary: Dictionary) -> set[str]:
    """Return the most frequent words of a dictionary, which make up half of the training text.

    Empty if the dictionary does not record frequencies.
    """
    counts = sorted(zip(dictionary.count, dictionary.symbols), reverse=True)
    counts = [(n, word) for n, word in counts if n > 1]
    if not counts or counts[0][0] == counts[-1][0]:
        return set()
    total, found, left = sum(n for n, _ in counts), set(), 0
    for n, word in counts:
        if left >= COMMON * total:
            break
        left += n
        found.add(word)
    return found


class Unifier:
    """Unifier of terms: gives each of them one form.

    Args:
        model: a :class:`DocumentHubInterface`.
        translator: its translator.

    Raises:
        InputError: lines are not aligned, or the model does not read documents.
    """

    def __init__(self, model: BaseFairseqModel, translator: Translator) -> None:
        if not translator.reads_documents:
            raise InputError("--consistent needs a model of documents whose lines are aligned (data with a separator)")
        self.model, self.translator = model, translator
        self.alignments: dict[tuple[str, str], Any] = {}
        self.frequent, self.frequent_forms = frequent_words(model.src_dict), frequent_words(model.tgt_dict)

    def repeated(self, texts: Sequence[str], own: int | None = None) -> dict[str, dict[int, int]]:
        """Return the terms of a document, in lower case: for each line that contains one, the number of its word.

        The most frequent terms come first.

        Args:
            own: number of lines that belong to the document; each term occurs in at least one of them. Default: all.
        """
        found: dict[str, dict[int, int]] = {}
        for line, text in enumerate(texts):
            for word, (start, end) in enumerate(units(text)):
                term = text[start:end].casefold()
                if _may_be_term(term):
                    found.setdefault(term, {}).setdefault(line, word)
        several = {
            term: places
            for term, places in found.items()
            if len(places) > 1
            and min(places) < (len(texts) if own is None else own)
            and not self._is_frequent(term, len(places) / len(texts))
        }
        return dict(sorted(several.items(), key=lambda item: -len(item[1])))

    def _is_frequent(self, term: str, share: float) -> bool:
        """Return whether a word is too frequent to be a term; ``share`` is the share of lines that contain it."""
        if not self.frequent:
            return share > COMMON
        return self.model.codec.encode_source(term).removeprefix("\u2581") in self.frequent

    @torch.no_grad()
    def unify(self, document: Source, texts: Sequence[str], lines: Sequence[Line]) -> tuple[list[Line], list[Unified]]:
        """Return the lines of a translation with one form for each term, and the terms that were changed.

        Given lines other than drafts, and the pairs of a memory, are never changed: a term takes one of their forms.

        Args:
            texts: the lines of the source.
            lines: the lines of its translation.
        """
        made, found = list(lines), list[Unified]()
        required: list[list[list[int]]] = [[] for _ in lines]
        remembered = [] if document.memory is None else document.memory.each
        every = [*texts, *(match.source for match in remembered)]
        for term, places in self.repeated(every, len(texts)).items():
            translations = {
                i: self._text(made[i]) if i < len(made) else remembered[i - len(made)].target for i in places
            }
            forms = {i: form for i, word in places.items() if (form := self._form_of(every[i], translations[i], word))}
            given = document.given or [None] * len(made)
            fixed = {i for i in forms if i >= len(made) or (given[i] is not None and i not in document.drafts)}
            best = self._best(document, made, forms, fixed, required)
            if best is None:
                continue
            family, tried = best
            taken = [i for i, (_, difference) in tried.items() if difference > -LOSS]
            for i in taken:
                made[i] = tried[i][0]
            for i in (i for i in forms if i < len(made) and (i in taken or forms[i] in family)):
                variant = next((self._tokens(v) for v in family if self._holds(made[i], v)), None)
                required[i] += [variant] if variant else []
            if taken:
                kept = [i for i in forms if i < len(made) and i not in taken and forms[i] not in family]
                found.append(Unified(term, family[0], taken, kept))
        return made, found

    def _best(
        self,
        document: Source,
        lines: Sequence[Line],
        forms: dict[int, str],
        fixed: set[int],
        required: Sequence[Sequence[list[int]]],
    ) -> tuple[list[str], dict[int, tuple[Line, float]]] | None:
        """Return a term's best form with its inflections, and the lines translated with it; None if it has only one.

        Args:
            forms: the form in each line that contains the term.
            fixed: lines that are never changed; if there are any, one of their forms is chosen.
        """
        families = _families(list(forms.values()))
        if len(families) < 2:
            return None
        bound = [family for family in families if any(forms[i] in family for i in fixed)]
        families = (bound or families)[:CANDIDATES]
        numbers = [[i for i in sorted(forms) if forms[i] not in family and i not in fixed] for family in families]
        tried = self._tried(document, lines, families, numbers, required)
        sums = [sum(max(difference, -2 * LOSS) for _, difference in its.values()) for its in tried]
        best = max(range(len(families)), key=lambda k: sums[k])
        return families[best], tried[best]

    def _form_of(self, source: str, translation: str, word: int) -> str:
        """Return the form of a term in a line; empty if there is none."""
        key = source, translation
        if len(self.alignments) > KEPT:
            self.alignments.clear()
        if key not in self.alignments:
            self.alignments[key] = word_alignment(self.model, source, translation).weights
        form = _form(translation, self.alignments[key], word)
        frequent = form and self.model.codec.encode_target(form).removeprefix("\u2581") in self.frequent_forms
        return "" if frequent else form

    def _tried(
        self,
        document: Source,
        lines: Sequence[Line],
        families: Sequence[Sequence[str]],
        numbers: Sequence[Sequence[int]],
        required: Sequence[Sequence[list[int]]],
    ) -> list[dict[int, tuple[Line, float]]]:
        """Return, for each form, the lines translated again with it, and how much more likely each is now.

        Args:
            families: the forms, with their inflections.
            numbers: for each, the lines that have a different form.
        """
        now, found = [list(lines) for _ in families], [dict[int, tuple[Line, float]]() for _ in families]
        for i in sorted(set().union(*numbers)):
            tasks = [(k, form) for k, its in enumerate(families) if i in numbers[k] for form in its[:INFLECTIONS]]
            place = self._place(document, i)
            parts = [(self._requiring(document, i, required[i], form), place, now[k][:i]) for k, form in tasks]
            again = self.translator.translate_parts(parts, self.model.device)
            options = [(k, line) for (k, form), (line,) in zip(tasks, again) if self._holds(line, form)]
            *scores, before = self._scores(document, [*([*now[k][:i], line] for k, line in options), lines], i)
            for (k, line), score in sorted(zip(options, scores), key=lambda option: option[1]):
                found[k][i] = line, score - before  # the last one is the best
                now[k][i] = line
        return found

    def _requiring(self, document: Source, i: int, required: Sequence[list[int]], form: str) -> Source:
        """Return a document that requires a form in a line, besides its other terms; the line is not given."""
        terms: list[list[Sequence[int]]] = [[] for _ in document.sentences]
        of_glossary = document.terms[i] if document.terms else []
        terms[i] = [*of_glossary, *required, self._tokens(form)]
        given = None if document.given is None else with_item(document.given, i, None)
        return document._replace(terms=terms, given=given)

    def _place(self, document: Source, i: int) -> Span:
        """Return a line as a part, after some of the lines before it."""
        part = next(part for part in document.parts if part.start <= i < part.start + part.size)
        return Span(part.document, i, 1, min(CONTEXT, i - part.start + part.context))

    def _scores(self, document: Source, candidates: Sequence[Sequence[Line]], i: int) -> list[float]:
        """Score a line and its end, after the lines before it, in each of several translations: log probabilities."""
        place, translator = self._place(document, i), self.translator
        source = translator.example(document, place)
        examples = [(source, translator.target(document, place, lines)) for lines in candidates]
        dictionary = translator.task.target_dictionary
        found = log_probabilities(translator.models[0], dictionary, examples, SCORED_TOKENS, self.model.device)
        return [float(s[-len(lines[i].tokens) - 1 :].sum()) for s, lines in zip(found, candidates)]

    def _text(self, line: Line) -> str:
        return str(self.model.codec.decode_line(self.model.tgt_dict.string(line.tokens)))

    def _tokens(self, form: str) -> list[int]:
        encoded = self.model.codec.encode_target(form)
        return list(self.model.tgt_dict.encode_line(encoded, add_if_not_exist=False, append_eos=False).tolist())

    def _holds(self, line: Line, form: str) -> bool:
        return contains(line.tokens.tolist(), self._tokens(form))


def _may_be_term(word: str) -> bool:
    return len(word) >= SHORTEST and any(map(str.isalpha, word))


def _form(translation: str, weights: Any, word: int) -> str:
    """Return the word of a translation that attends most to a word of the source; empty if none does."""
    places = [translation[start:end] for start, end in units(translation)]
    if len(places) != len(weights) or word >= weights.shape[1]:
        return ""
    options = [
        (float(weights[i, word]), place)
        for i, place in enumerate(places)
        if _may_be_term(place) and int(weights[i].argmax()) == word
    ]
    weight, form = max(options, default=(0.0, ""))
    return form if weight >= ATTENDED else ""


def _families(forms: Sequence[str]) -> list[list[str]]:
    """Group forms that are spelt alike, most frequent first."""
    counts = Counter(forms)
    families: list[list[str]] = []
    for form in sorted(counts, key=lambda form: (-counts[form], form)):
        alike = [family for family in families if fuzz.ratio(family[0].casefold(), form.casefold()) >= ALIKE]
        if alike:
            alike[0].append(form)
        else:
            families.append([form])
    return sorted(families, key=lambda family: -sum(counts[form] for form in family))
