"""TCP, the discourse score of the PDC test set (Sun et al. 2022), covering tense, conjunctions and pronouns."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sacremoses import MosesTokenizer

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import option
from fairseq_lasformer.evaluation.further import FurtherScore, Scores, Systems
from fairseq_lasformer.text.documents import Document, read_lines

WINDOW = 20
# In the set's fixed order, the documents that carry the labels of each phenomenon (half-open, from 0).
PARTS = {"TC": (0, 50), "CP": (50, 96), "PT": (96, 148)}


class Label(NamedTuple):
    """One annotated position: a token's index in the tokenised reference, and the accepted candidates."""

    position: int
    candidates: tuple[str, ...]


def read_labels(path: Path) -> list[list[Label]]:
    """Return the labels of each document: line i contains tab-separated ``position:candidate,candidate,…``."""
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
    """Split running English text after sentence-final punctuation.

    This is needed because Moses detaches a full stop followed by a lower-cased word only at the end of a line.
    """
    lines: list[str] = []
    begin = 0
    for end in _SENTENCE_END.finditer(text):
        last = text[begin : end.start()].rpartition(" ")[2]
        if end[0][0] != "." or last.lower() not in _abbreviations():
            lines.append(text[begin : end.end()])
            begin = end.end()
    return [s.strip() for s in (*lines, text[begin:]) if s.strip()]


_SENTENCE_END = re.compile("[.!?]( ?[\"'”’)\\]])*(?=\\s)")


@cache
def _abbreviations() -> frozenset[str]:
    return frozenset(word.lower() for word in _tokenizer().NONBREAKING_PREFIXES)


def tokenized(document: Sequence[str]) -> list[str]:
    """Tokenise a detokenised English document like the reference (Moses, aggressive dashes: ``co @-@ chaired``).

    Args:
        document: its sentences, or a single string if their boundaries are unknown.
    """
    known = document if len(document) > 1 else sentences(" ".join(document))
    words = _tokenizer()
    return [w for s in known for w in words.tokenize(s, aggressive_dash_splits=True, escape=False)]


def hit(label: Label, hypothesis: Sequence[str], n_reference: int) -> bool:
    """Return whether a candidate occurs within 20 tokens of the label's position, scaled to the hypothesis's length.

    A one-word candidate must be a token in the window, a multi-word candidate a substring of the joined window.

    Args:
        hypothesis: tokens of the document.
        n_reference: number of tokens in the reference.
    """
    place = label.position * len(hypothesis) // max(1, n_reference)
    window = hypothesis[max(0, place - WINDOW) : place + WINDOW]
    joined = " ".join(window)
    return any(c in joined if " " in c else c in window for c in label.candidates)


def score(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]], labels: Sequence[Sequence[Label]]
) -> dict[str, float]:
    """Return TC, CP and PT in per cent, their geometric mean TCP, and the number of labels (``TC_labels``, …).

    Args:
        hypotheses, references: 148 documents of tokens, true-cased.
    """
    expected = PARTS["PT"][1]
    for name, given in (("hypotheses", hypotheses), ("references", references), ("lines of candidates", labels)):
        if len(given) != expected:
            raise InputError(f"TCP is defined on {expected} documents: there are {len(given)} {name}")
    result: dict[str, float] = {}
    product = 1.0
    for part, (begin, end) in PARTS.items():
        hits = [hit(label, hypotheses[i], len(references[i])) for i in range(begin, end) for label in labels[i]]
        result[part] = 100.0 * sum(hits) / max(1, len(hits))
        result[f"{part}_labels"] = len(hits)
        product *= result[part]
    return result | {"TCP": product ** (1 / 3)}


def evaluate(
    hypotheses: Sequence[Document], candidates: Path, reference: Path, is_tokenized: bool = False
) -> dict[str, float]:
    """Score translated documents; see :func:`score`.

    Args:
        is_tokenized: whether the hypotheses are tokenised like the reference.
    """
    tokens = [" ".join(d).split() if is_tokenized else tokenized(d) for d in hypotheses]
    return score(tokens, [line.split() for line in read_lines(reference)], read_labels(candidates))


def line(system: str, scores: Mapping[str, float]) -> str:
    """Format the scores of one system for a terminal."""
    return f"{system}: " + ", ".join(f"{part} {scores[part]:.1f}" for part in ("TC", "CP", "PT", "TCP"))


@dataclass(frozen=True, kw_only=True)
class TcpScore(FurtherScore):
    """PDC's discourse score."""

    tcp: Path | None = option(None, "PDC's annotation, for TC, CP, PT and TCP", metavar="CANDIDATES")
    tcp_reference: Path | None = option(None, "PDC's tokenised reference, with --tcp", metavar="TOK")
    tcp_tokenized: bool = option(False, "the hypotheses are tokenised like PDC's reference")

    @property
    def asked(self) -> bool:
        return self.tcp is not None

    def check(self, systems: int) -> None:
        if bool(self.tcp) != bool(self.tcp_reference):
            raise InputError("--tcp and --tcp-reference go together: the candidates, and the tokenised reference")
        if self.tcp_tokenized and not self.tcp:
            raise InputError("--tcp-tokenized describes the hypotheses that --tcp scores; add --tcp, or leave it out")

    def evaluate(self, systems: Systems) -> dict[str, Scores]:
        places = self.tcp or Path(), self.tcp_reference or Path()
        return {
            name: {"tcp": evaluate(documents, *places, self.tcp_tokenized)}
            for name, documents in systems.hypotheses.items()
        }

    def text(self, name: str, scores: Scores) -> str:
        return line(name, scores["tcp"])
