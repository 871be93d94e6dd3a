"""Scores by position in the document; omitted and added lines.

Document-level systems get worse towards the end of a document (arXiv 2412.17592).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics import CHRF

from fairseq_lasformer.base.options import option
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.evaluation.further import FurtherScore, Systems
from fairseq_lasformer.evaluation.line_alignment import align
from fairseq_lasformer.evaluation.metrics import bleu
from fairseq_lasformer.text.documents import Document

QUARTERS = ("first quarter", "second quarter", "third quarter", "last quarter")

SHORTEST = 8
"""Minimum number of sentences for scores by quarter."""

SHOWN = 10
"""Maximum number of omissions, and of additions, shown on a terminal."""


def by_position(hypotheses: Sequence[Document], references: Sequence[Document], tokenize: str) -> Scores:
    """Return ``d_bleu``, ``chrf`` and ``documents`` by quarter of the document; each quarter is a segment.

    If a translation has as many lines as its reference, the quarters are exact. Otherwise, its lines are first
    aligned with those of the reference, and lines without a partner belong to the quarter of the line before.
    Documents of fewer than :data:`SHORTEST` sentences are left out.
    """
    segments: list[list[tuple[str, str]]] = [[] for _ in QUARTERS]
    for hypothesis, reference in zip(hypotheses, references):
        n = len(reference)
        if n < SHORTEST:
            continue
        where = {i: i for i in range(n)} if len(hypothesis) == n else dict(align(hypothesis, reference).pairs)
        sides: list[tuple[list[str], list[str]]] = [([], []) for _ in QUARTERS]
        last = 0
        for i, line in enumerate(hypothesis):
            last = where.get(i, last)
            sides[last * 4 // n][0].append(line)
        for i, line in enumerate(reference):
            sides[i * 4 // n][1].append(line)
        for quarter, (ours, theirs) in zip(segments, sides):
            quarter.append((" ".join(ours), " ".join(theirs)))
    return {name: _scores(pairs, tokenize) for name, pairs in zip(QUARTERS, segments) if pairs}


def _scores(pairs: Sequence[tuple[str, str]], tokenize: str) -> Scores:
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]
    return {
        "d_bleu": bleu(True, tokenize).corpus_score(ours, [theirs]).score,
        "chrf": CHRF().corpus_score(ours, [theirs]).score,
        "documents": len(pairs),
    }


def omissions(hypotheses: Sequence[Document], references: Sequence[Document]) -> Scores:
    """Return ``omitted`` lines of the references and ``added`` lines of the translations, as [document, line] from 1.

    A line that was replaced with another text counts as both.
    """
    omitted: list[tuple[int, int]] = []
    added: list[tuple[int, int]] = []
    for number, (hypothesis, reference) in enumerate(zip(hypotheses, references), 1):
        aligned = align(hypothesis, reference)
        omitted += [(number, j + 1) for j in aligned.omitted]
        added += [(number, i + 1) for i in aligned.added]
    return {"omitted": omitted, "added": added}


def table(name: str, scores: Scores) -> str:
    """Format the results of one system for a terminal."""
    lines: list[str] = []
    for place, s in scores.get("by_position", {}).items():
        lines.append(f"{name}, {place}: d-BLEU {s['d_bleu']:.2f}, chrF {s['chrf']:.2f} ({s['documents']} documents)")
    if "omissions" in scores:
        omissions = scores["omissions"]
        lines += [_named(name, omissions[key], key) for key in ("omitted", "added")]
    return "\n".join(lines)


def _named(name: str, places: Sequence[Sequence[int]], what: str) -> str:
    if not places:
        return f"{name}: no line {what}"
    shown = ", ".join(f"document {d} line {i}" for d, i in places[:SHOWN])
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    documents = len({d for d, _ in places})
    return f"{name}: {len(places)} lines {what} in {documents} documents: {shown}{more}"


@dataclass(frozen=True, kw_only=True)
class Breakdown(FurtherScore):
    """Scores by position, and omitted lines."""

    by_position: bool = option(False, "also d-BLEU and chrF by quarter of the document")
    omissions: bool = option(
        False, "also which sentences of the reference are missing, and which lines are superfluous"
    )

    @property
    def asked(self) -> bool:
        return self.by_position or self.omissions

    def evaluate(self, systems: Systems) -> dict[str, Scores]:
        results: dict[str, Scores] = {}
        for name, documents in systems.hypotheses.items():
            results[name] = {}
            if self.by_position:
                results[name]["by_position"] = by_position(documents, systems.references, systems.tokenize)
            if self.omissions:
                results[name]["omissions"] = omissions(documents, systems.references)
        return results

    def text(self, name: str, scores: Scores) -> str:
        return table(name, scores)
