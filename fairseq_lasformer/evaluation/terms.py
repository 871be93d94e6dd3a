"""Terminology scores: success of terms, and consistency within a document, as in WMT25's terminology task.

Terms come from a glossary file (source term, tab, target term). A source term may have several lines, one for each
correct translation.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import option
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.evaluation.further import FurtherScore, Systems
from fairseq_lasformer.text.documents import Document
from fairseq_lasformer.text.terms import read_terms, term_pattern

Terms = dict[str, tuple[str, ...]]


def grouped(entries: Sequence[tuple[str, str]]) -> Terms:
    """Return the correct translations of each source term."""
    groups: dict[str, list[str]] = {}
    for source, target in entries:
        groups.setdefault(source, []).append(target)
    return {source: tuple(dict.fromkeys(targets)) for source, targets in groups.items()}


_pattern = lru_cache(maxsize=100_000)(term_pattern)


def occurrences(text: str, term: str) -> int:
    """Count the occurrences of a term; see :func:`term_pattern`."""
    return len(_pattern(term).findall(text))


def evaluate(hypotheses: Sequence[Document], sources: Sequence[Document], terms: Terms) -> Scores:
    """Return the counts behind success and consistency.

    A term counts as often as it occurs in the source line. It is found as often as its translations occur in that line
    of the translation or, if the numbers of lines differ, in the whole document.

    Args:
        hypotheses, sources: the same number of documents.

    Returns:
        ``found`` and ``asked``, whose ratio is the success rate; ``same`` and ``repeated``, whose ratio is the
        consistency: of the found occurrences of terms that occur more than once in a document, how many have the most
        frequent form in it (terms with a single translation: all that are found, of all).
    """
    if len(hypotheses) != len(sources):
        raise InputError(f"{len(hypotheses)} hypotheses for {len(sources)} source documents")
    total, longest_first = Counter[str](), sorted(terms, key=len, reverse=True)  # "post office" is not an office
    for hypothesis, source in zip(hypotheses, sources):
        aligned = len(hypothesis) == len(source)
        places = list(zip(source, hypothesis)) if aligned else [(" ".join(source), " ".join(hypothesis))]
        by_term: dict[str, Counter[str]] = {}
        asked = Counter[str]()
        for original, translation in places:
            for term in longest_first:
                original, n = _pattern(term).subn("\n", original)
                if not n:
                    continue
                asked[term] += n
                left = n
                forms = by_term.setdefault(term, Counter())
                for target in sorted(terms[term], key=lambda t: -len(t)):
                    some = min(left, occurrences(translation, target))
                    forms[target] += some
                    left -= some
        for term, n in asked.items():
            total["asked"] += n
            total["found"] += by_term[term].total()
            if n > 1:
                total["repeated"] += n
                total["same"] += max(by_term[term].values(), default=0)
    return {name: total[name] for name in ("found", "asked", "same", "repeated")}


def text(name: str, scores: Scores) -> str:
    """Format the result of a system for a terminal."""

    def share(part: str, whole: str) -> str:
        return f"{scores[part] / scores[whole]:.1%} ({scores[part]} of {scores[whole]})" if scores[whole] else "none"

    return f"{name}: terms translated {share('found', 'asked')}, in one form where repeated {share('same', 'repeated')}"


@dataclass(frozen=True, kw_only=True)
class TermScore(FurtherScore):
    """Success and consistency of terms."""

    terms: Path | None = option(
        None, "also how many terms are translated as FILE says, and in one form throughout a document", metavar="FILE"
    )

    @property
    def needs_source(self) -> str:
        return "--terms"

    @property
    def asked(self) -> bool:
        return self.terms is not None

    def evaluate(self, systems: Systems) -> dict[str, Scores]:
        wanted = grouped(read_terms(self.terms)) if self.terms else {}
        return {
            name: {"terms": evaluate(documents, systems.sources, wanted)}
            for name, documents in systems.hypotheses.items()
        }

    def text(self, name: str, scores: Scores) -> str:
        return text(name, scores["terms"])
