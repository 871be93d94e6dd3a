"""Recall of pronouns that the source leaves out.

Chinese drops subjects and objects that the context makes clear (Wang et al., arXiv 1801.03257); English needs them, and
only the context shows which. Recall is given per pronoun, by whether the source sentence has a pronoun at all.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.text.documents import Document

ENGLISH = {
    **{"he": "he", "him": "he", "she": "she", "it": "it", "they": "they", "them": "they"},
    **{"i": "I", "me": "I", "you": "you", "we": "we", "us": "we"},
}
"""Forms of English personal pronouns, and the pronoun they count as; without ``her``, which may be a possessive."""

CHINESE = ("我", "你", "妳", "您", "他", "她", "它", "牠", "祂", "咱", "俺", "自己", "大家", "彼此")
"""Chinese pronouns, for the class of a source sentence."""

WITH, WITHOUT = "source has a pronoun", "source has none"

Counts = dict[str, dict[str, list[int]]]


def found_in(sentence: str) -> Counter[str]:
    """Count the personal pronouns of an English sentence; ``I'm`` and ``they've`` contain one each."""
    return Counter(ENGLISH[word] for word in re.findall(r"[a-z]+", sentence.lower()) if word in ENGLISH)


def counts(hypothesis: Document, reference: Document, source: Document) -> Counts:
    """Return [found, in the reference] by class of the source sentence and pronoun, for one document."""
    result: Counts = {WITH: {}, WITHOUT: {}}
    for ours, theirs, original in zip(hypothesis, reference, source):
        own, kind = found_in(ours), WITH if any(word in original for word in CHINESE) else WITHOUT
        for pronoun, n in found_in(theirs).items():
            count = result[kind].setdefault(pronoun, [0, 0])
            count[0] += min(n, own[pronoun])
            count[1] += n
    return result


def _added(documents: Sequence[Counts]) -> Counts:
    total: Counts = {WITH: {}, WITHOUT: {}}
    for document in documents:
        for kind, pronouns in document.items():
            for pronoun, (found, n) in pronouns.items():
                count = total[kind].setdefault(pronoun, [0, 0])
                count[0] += found
                count[1] += n
    return total


def _recall(pronouns: dict[str, list[int]]) -> float:
    return sum(found for found, _ in pronouns.values()) / max(1, sum(n for _, n in pronouns.values()))


def evaluate(
    hypotheses: Sequence[Document], references: Sequence[Document], sources: Sequence[Document]
) -> list[Counts]:
    """Return the counts of each document.

    Args:
        hypotheses, references, sources: documents with the same sentences.

    Raises:
        InputError: documents have different numbers of sentences.
    """
    if len(references) != len(sources):
        raise InputError(f"{len(sources)} source documents for {len(references)} reference documents")
    for i, lengths in enumerate(zip(map(len, hypotheses), map(len, references), map(len, sources)), 1):
        if len(set(lengths)) > 1:
            raise InputError(
                "--pronouns: needs a line of the translation for each of the source; document {} has {} (translation), "
                "{} (reference) and {} (source)".format(i, *lengths)
            )
    return [counts(*sides) for sides in zip(hypotheses, references, sources)]


def summary(documents: Sequence[Counts]) -> dict[str, Any]:
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


def text(name: str, found: dict[str, Any]) -> str:
    """Format the summary of a system for a terminal."""
    lines = []
    for kind, pronouns in found["counts"].items():
        each = ", ".join(
            f"{p} {pronouns[p][0]}/{pronouns[p][1]}" for p in dict.fromkeys(ENGLISH.values()) if p in pronouns
        )
        p = f", p = {found['p'][kind]:.4f}" if "p" in found else ""
        lines.append(f"{name}, {kind}: pronouns found {found['recall'][kind]:.1%}{p} ({each})")
    return "\n".join(lines)
