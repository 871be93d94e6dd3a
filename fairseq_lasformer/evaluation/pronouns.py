"""Recall of pronouns that the source sentence alone does not decide.

Chinese drops subjects and objects that the context makes clear (Wang et al., arXiv 1801.03257); English needs them, and
only the context shows which: recall by whether the source sentence has a pronoun at all. English *it* is *er*, *sie* or
*es* in German, by the gender of a noun that often stands in an earlier sentence: recall by whether the source has *it*.
"""

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import option
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.evaluation.further import FurtherScore, Systems
from fairseq_lasformer.text.documents import Document

ENGLISH = {
    **{"he": "he", "him": "he", "she": "she", "it": "it", "they": "they", "them": "they"},
    **{"i": "I", "me": "I", "you": "you", "we": "we", "us": "we"},
}
"""Forms of English personal pronouns, and the pronoun they count as; without ``her``, which may be a possessive."""

CHINESE = ("我", "你", "妳", "您", "他", "她", "它", "牠", "祂", "咱", "俺", "自己", "大家", "彼此")
"""Chinese pronouns, for the class of a source sentence."""

GERMAN = {"er": "er", "Er": "er", "ihn": "er", "Ihn": "er", "sie": "sie", "es": "es", "Es": "es"}
"""Forms of German pronouns; without *Sie*, which is the reader, and *ihm*, which may be either gender's."""

WITH, WITHOUT = "source has a pronoun", "source has none"

Counts = dict[str, dict[str, list[int]]]


class Pronouns(NamedTuple):
    """Pronouns of a target language."""

    forms: Mapping[str, str]  # their forms, and the pronoun that each counts as
    cased: bool  # whether capital letters distinguish forms
    source: re.Pattern[str]  # pattern of pronouns of the source language

    def found_in(self, sentence: str) -> Counter[str]:
        """Count the pronouns of a sentence of the target language; ``I'm`` and ``they've`` contain one each."""
        words = re.findall(r"[^\W\d_]+", sentence if self.cased else sentence.lower())
        return Counter(self.forms[word] for word in words if word in self.forms)


LANGUAGES = {
    "en": Pronouns(ENGLISH, False, re.compile("|".join(CHINESE))),
    "de": Pronouns(GERMAN, True, re.compile(r"\bit\b", re.IGNORECASE)),
}
"""By target language: English from Chinese, German from English."""

ORDER = (*ENGLISH.values(), *GERMAN.values())
"""The pronouns, in the order in which they are reported."""


def counts(hypothesis: Document, reference: Document, source: Document, pronouns: Pronouns) -> Counts:
    """Return [found, in the reference] by class of the source sentence and pronoun, for one document."""
    result: Counts = {WITH: {}, WITHOUT: {}}
    for ours, theirs, original in zip(hypothesis, reference, source):
        hits, kind = pronouns.found_in(ours), WITH if pronouns.source.search(original) else WITHOUT
        for pronoun, n in pronouns.found_in(theirs).items():
            count = result[kind].setdefault(pronoun, [0, 0])
            count[0] += min(n, hits[pronoun])
            count[1] += n
    return result


def _added(documents: Sequence[Counts]) -> Counts:
    total: Counts = {WITH: {}, WITHOUT: {}}
    for document in documents:
        for kind, pronouns in document.items():
            for pronoun, (hits, n) in pronouns.items():
                count = total[kind].setdefault(pronoun, [0, 0])
                count[0] += hits
                count[1] += n
    return total


def _recall(pronouns: dict[str, list[int]]) -> float:
    return sum(hits for hits, _ in pronouns.values()) / max(1, sum(n for _, n in pronouns.values()))


def evaluate(
    hypotheses: Sequence[Document], references: Sequence[Document], sources: Sequence[Document], language: str = "en"
) -> list[Counts]:
    """Return the counts of each document.

    Args:
        hypotheses, references, sources: documents with the same sentences.
        language: that of the hypotheses, one of :data:`LANGUAGES`.
    """
    if language not in LANGUAGES:
        raise InputError(f"--pronouns: knows only {', '.join(LANGUAGES)} as --target-lang, not {language}")
    if len(references) != len(sources):
        raise InputError(f"{len(sources)} source documents for {len(references)} reference documents")
    for i, lengths in enumerate(zip(map(len, hypotheses), map(len, references), map(len, sources)), 1):
        if len(set(lengths)) > 1:
            raise InputError(
                "--pronouns: needs a line of the translation for each of the source; document {} has {} (translation), "
                "{} (reference) and {} (source)".format(i, *lengths)
            )
    counted = [counts(*sides, LANGUAGES[language]) for sides in zip(hypotheses, references, sources)]
    if not any(total for total in _added(counted).values()):
        raise InputError(f"--pronouns: the reference has none of the language {language}; --target-lang names another")
    return counted


def summary(documents: Sequence[Counts]) -> Scores:
    """Return ``recall`` by class of source sentence, and ``counts``, [found, in the reference] by class and pronoun."""
    total = _added(documents)
    return {"recall": {kind: _recall(pronouns) for kind, pronouns in total.items()}, "counts": total}


def significance(system: Sequence[Counts], baseline: Sequence[Counts], samples: int, seed: int = 1) -> dict[str, float]:
    """Return p values, by class of the source sentence, of the recall being no higher than a baseline's.

    The p value is the share of samples of a paired bootstrap over documents (Koehn 2004) in which the system is not
    better.
    """
    generator, worse = random.Random(seed), {WITH: 0, WITHOUT: 0}
    for _ in range(samples):
        drawn = generator.choices(range(len(system)), k=len(system))
        ours, theirs = (_added([side[i] for i in drawn]) for side in (system, baseline))
        for kind in worse:
            worse[kind] += _recall(ours[kind]) <= _recall(theirs[kind])
    return {kind: (n + 1) / (samples + 1) for kind, n in worse.items()}


def text(name: str, scores: Scores) -> str:
    """Format the summary of a system for a terminal."""
    lines = []
    for kind, pronouns in scores["counts"].items():
        each = ", ".join(f"{p} {pronouns[p][0]}/{pronouns[p][1]}" for p in dict.fromkeys(ORDER) if p in pronouns)
        p = f", p = {scores['p'][kind]:.4f}" if "p" in scores else ""
        lines.append(f"{name}, {kind}: pronouns found {scores['recall'][kind]:.1%}{p} ({each})")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class PronounScore(FurtherScore):
    """Recall of pronouns."""

    pronouns: bool = option(
        False,
        "also the recall of pronouns: English ones (--target-lang en, the default) by whether the Chinese source "
        "sentence has one, German ones (de) by whether the English one has 'it'; with --bootstrap, whether it exceeds "
        "the first system's",
    )

    @property
    def needs_source(self) -> str:
        return "--pronouns"

    @property
    def asked(self) -> bool:
        return self.pronouns

    def evaluate(self, systems: Systems) -> dict[str, Scores]:
        counted = {
            name: evaluate(documents, systems.references, systems.sources, systems.language or "en")
            for name, documents in systems.hypotheses.items()
        }
        first, *others = counted
        results = {name: {"pronouns": summary(documents)} for name, documents in counted.items()}
        for name in others if systems.samples else ():
            results[name]["pronouns"]["p"] = significance(counted[name], counted[first], systems.samples)
        return results

    def text(self, name: str, scores: Scores) -> str:
        return text(name, scores["pronouns"])
