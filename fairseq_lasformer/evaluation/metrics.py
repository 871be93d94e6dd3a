"""Translation metrics of ``lasformer score``, the report and the ablation tables, one entry each.

To add one, add a :class:`Metric` to :data:`METRICS`; see CONTRIBUTING.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sacrebleu.metrics import BLEU, CHRF

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.text.documents import Document


class Outputs(NamedTuple):
    """The text that metrics are computed from."""

    documents: tuple[list[str], list[str]]  # hypotheses and references, one string per document
    # hypotheses and references, one string per sentence, for documents whose sentence counts agree; empty if there are
    # none
    sentences: tuple[list[str], list[str]]
    tokenize: str

    @classmethod
    def of(cls, hypotheses: Sequence[Document], references: Sequence[Document], tokenize: str) -> tuple[Outputs, int]:
        """Return the outputs, and the number of documents whose sentence counts agree."""
        agree = [(h, r) for h, r in zip(hypotheses, references) if len(h) == len(r)]
        if all(len(h) <= 1 for h in hypotheses) and any(len(r) > 1 for r in references):
            agree = []  # single-sentence references agree only by chance
        documents = [" ".join(d) for d in hypotheses], [" ".join(d) for d in references]
        sentences = [s for h, _ in agree for s in h], [s for _, r in agree for s in r]
        return cls(documents, sentences, tokenize), len(agree)


@dataclass(frozen=True)
class Metric:
    """One metric."""

    label: str
    column: str  # short name for terminal tables
    # builds the metric for a tokeniser; the result has the interface of sacrebleu's metrics (`corpus_score`,
    # `get_signature`)
    build: Callable[[str], Any]
    by_sentence: bool = False  # whether its segments are sentences instead of documents

    def score(self, outputs: Outputs) -> tuple[float | None, str]:
        """Return the score and the signature; (None, "") for a sentence-level metric if there are no sentences."""
        hypotheses, references = outputs.sentences if self.by_sentence else outputs.documents
        if not hypotheses:
            return None, ""
        metric = self.build(outputs.tokenize)
        score = metric.corpus_score(hypotheses, [references]).score
        return score, str(metric.get_signature())


def bleu(lowercase: bool, tokenize: str, **options: Any) -> BLEU:
    """Build sacrebleu's BLEU."""
    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"--tokenize {tokenize}: expected one of {', '.join(BLEU.TOKENIZERS)}")
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize, **options)
    except (ImportError, OSError, RuntimeError) as e:  # some tokenisers need additional packages or models
        reason = " ".join(str(e).split())
        raise InputError(f"--tokenize {tokenize}: cannot be used here ({reason})") from e


METRICS = {
    "d_bleu": Metric("d-BLEU", "d-BLEU", lambda tokenize: bleu(True, tokenize)),
    "d_bleu_cased": Metric("d-BLEU, cased", "cased", lambda tokenize: bleu(False, tokenize)),
    "s_bleu": Metric("s-BLEU", "s-BLEU", lambda tokenize: bleu(True, tokenize), by_sentence=True),
    "s_bleu_cased": Metric("s-BLEU, cased", "cased", lambda tokenize: bleu(False, tokenize), by_sentence=True),
    "chrf": Metric("chrF", "chrF", lambda tokenize: CHRF()),
}
"""All metrics, by their keys in ``scores.json``."""

HEADLINE = "d_bleu"
"""The metric shown in tables with room for only one, and used for the bootstrap."""
