"""Accuracy on ctxpro's test sets (Wicks & Post 2023): words of a last sentence that only the context decides.

An item passes if the expected form occurs as a word in the last sentence of its translation, regardless of case and
punctuation. This is the rule of the ``ctxpro`` package, and the numbers are the same.
"""

import json
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.text.documents import Document

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Item(NamedTuple):
    """One example of a set."""

    expected: str  # the form that the last sentence of the translation must contain
    rule: str  # the class of the example
    distance: int | None = None  # sentences between the last one and the deciding one, if the set gives it


def read_set(path: Path) -> tuple[list[Item], str]:
    """Return the items of a set, ``SET.json``, and the target language, if the names of their documents contain it."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        items = [Item(str(i["expected"]), str(i["rule"]), i.get("ante distance")) for i in entries]
        pair = str(entries[0].get("document id", "")).partition("/")[0].split("-")
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as e:
        raise InputError(f"{path}: not a set of ctxpro, a list of examples with expected and rule") from e
    return items, next((language for language in pair if language != "en"), "")


def splitter(language: str) -> Callable[[str], list[str]]:
    """Return a function that splits text into sentences, as the ``ctxpro`` package does."""
    try:
        from sentence_splitter import SentenceSplitter, SentenceSplitterException
    except ImportError as e:
        raise InputError(
            "--ctxpro: translations without tabs between their sentences need sentence-splitter: pip install "
            "sentence-splitter"
        ) from e
    try:
        return SentenceSplitter(language=language).split
    except SentenceSplitterException as e:
        raise InputError(f"--target-lang {language}: sentence-splitter does not know it") from e


def last_sentence(translation: Document, split: Callable[[str], list[str]]) -> str:
    """Return the last line of a translation of several lines; otherwise, the last sentence of its only line."""
    if len(translation) > 1:
        return translation[-1]
    return (split(translation[0].strip()) or translation)[-1]


def passes(sentence: str, expected: str) -> bool:
    """Return whether a sentence contains the expected form as a word."""
    return f" {expected.lower()} " in f" {sentence.lower().translate(_PUNCTUATION)} "


def evaluate(translations: Sequence[Document], items: Sequence[Item], language: str) -> Scores:
    """Count the items that pass.

    Args:
        translations: one for each item: context and last sentence.
        language: language of the translations.

    Returns:
        ``right``, ``total``, and [right, total] ``by_rule`` and ``by_distance``.
    """
    if len(translations) != len(items):
        raise InputError(f"{len(translations)} translations for {len(items)} examples")
    alone = any(len(translation) < 2 for translation in translations)
    split = splitter(language) if alone else lambda text: [text]
    by_rule: dict[str, list[int]] = {}
    by_distance: dict[int, list[int]] = {}
    right = 0
    for translation, item in zip(translations, items):
        passed = passes(last_sentence(translation, split), item.expected)
        right += passed
        counts = [by_rule.setdefault(item.rule, [0, 0])]
        if item.distance is not None:
            counts.append(by_distance.setdefault(item.distance, [0, 0]))
        for count in counts:
            count[0] += passed
            count[1] += 1
    ordered = {str(k): by_distance[k] for k in sorted(by_distance)}
    return {"right": right, "total": len(items), "by_rule": by_rule, "by_distance": ordered}


def text(scores: Scores) -> str:
    """Format the result for a terminal; the last line is ``accuracy: RIGHT / TOTAL``."""
    lines = [f"{rule}: {right} / {total}" for rule, (right, total) in sorted(scores["by_rule"].items())]
    lines += [f"distance {d}: {right} / {total}" for d, (right, total) in scores["by_distance"].items()]
    return "\n".join([*lines, f"accuracy: {scores['right']} / {scores['total']}"])
