"""TCP, the discourse score of the PDC test set (Sun et al. 2022): tense, conjunctions and pronouns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sacremoses import MosesTokenizer

from fairseq_lasformer.data.documents import Document, read_lines
from fairseq_lasformer.errors import InputError

WINDOW = 20
# The set's fixed order: which documents carry the labels of which phenomenon (from 0, half open).
PARTS = {"TC": (0, 50), "CP": (50, 96), "PT": (96, 148)}


class Label(NamedTuple):
    """One annotated place: a token's index in the tokenised reference, and what may stand there."""

    position: int
    candidates: tuple[str, ...]


def read_labels(path: Path) -> list[list[Label]]:
    """The labels of each document: line i holds tab-separated ``position:candidate,candidate,…``.

    Raises:
        InputError: no such file, or a field of another form (file and line are named).
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    documents = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        labels = []
        for part in filter(str.strip, line.split("\t")):
            position, colon, candidates = part.partition(":")
            if not colon or not position.strip().isdecimal():
                raise InputError(f"{path}:{number}: {part!r} is not position:candidate,candidate,…")
            labels.append(Label(int(position), tuple(c for c in candidates.split(",") if c)))
        documents.append(labels)
    return documents


@cache
def _tokenizer() -> MosesTokenizer:
    return MosesTokenizer(lang="en")


def sentences(text: str) -> list[str]:
    """Running English text, cut behind what ends a sentence: Moses detaches a full stop at the end of its line only,
    wherever the next word is lower-cased."""
    found: list[str] = []
    begin = 0
    for end in _SENTENCE_END.finditer(text):
        last = text[begin : end.start()].rpartition(" ")[2]
        if end[0][0] != "." or last.lower() not in _abbreviations():
            found.append(text[begin : end.end()])
            begin = end.end()
    return [s.strip() for s in (*found, text[begin:]) if s.strip()]


_SENTENCE_END = re.compile("[.!?]( ?[\"'”’)\\]])*(?=\\s)")


@cache
def _abbreviations() -> frozenset[str]:
    return frozenset(word.lower() for word in _tokenizer().NONBREAKING_PREFIXES)


def tokenized(document: Sequence[str]) -> list[str]:
    """A detokenised English document in the reference's tokens (Moses with aggressive dashes: ``co @-@ chaired``).

    Args:
        document: its sentences; or, where their boundaries are not known, one string.
    """
    known = document if len(document) > 1 else sentences(" ".join(document))
    words = _tokenizer()
    return [w for s in known for w in words.tokenize(s, aggressive_dash_splits=True, escape=False)]


def hit(label: Label, hypothesis: Sequence[str], n_reference: int) -> bool:
    """Whether a candidate lies within 20 tokens of the label's place, scaled to the hypothesis' length.

    A candidate of one word must be a token of the window, one of several words a part of the joined window.
    """
    place = label.position * len(hypothesis) // max(1, n_reference)
    window = hypothesis[max(0, place - WINDOW) : place + WINDOW]
    joined = " ".join(window)
    return any(c in joined if " " in c else c in window for c in label.candidates)


def score(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]], labels: Sequence[Sequence[Label]]
) -> dict[str, float]:
    """TC, CP, PT in per cent, TCP their geometric mean, and how many labels each has (``TC_labels``, …).

    Args:
        hypotheses, references: 148 documents of tokens, true-cased.

    Raises:
        InputError: not 148 of each.
    """
    expected = PARTS["PT"][1]
    for name, given in (("hypotheses", hypotheses), ("references", references), ("lines of candidates", labels)):
        if len(given) != expected:
            raise InputError(f"TCP is defined on {expected} documents: there are {len(given)} {name}")
    result: dict[str, float] = {}
    product = 1.0
    for part, (begin, end) in PARTS.items():
        found = [hit(label, hypotheses[i], len(references[i])) for i in range(begin, end) for label in labels[i]]
        result[part] = 100.0 * sum(found) / max(1, len(found))
        result[f"{part}_labels"] = len(found)
        product *= result[part]
    return result | {"TCP": product ** (1 / 3)}


def evaluate(
    hypotheses: Sequence[Document], candidates: Path, reference: Path, is_tokenized: bool = False
) -> dict[str, float]:
    """Scores of translated documents; see :func:`score`.

    Args:
        candidates: PDC's annotation. reference: its tokenised reference.
        is_tokenized: the hypotheses are tokenised as the reference is.
    """
    tokens = [" ".join(d).split() if is_tokenized else tokenized(d) for d in hypotheses]
    return score(tokens, [line.split() for line in read_lines(reference)], read_labels(candidates))


def line(system: str, scores: Mapping[str, float]) -> str:
    """One system's scores, for a terminal."""
    return f"{system}: " + ", ".join(f"{part} {scores[part]:.1f}" for part in ("TC", "CP", "PT", "TCP"))
