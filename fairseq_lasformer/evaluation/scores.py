"""Scores of systems on detokenised text, comparisons between systems, and tables of both."""

from collections.abc import Mapping, Sequence

from sacrebleu.significance import PairedTest, Result

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.evaluation.metrics import HEADLINE, METRICS, Outputs, bleu
from fairseq_lasformer.text.documents import Document

# sacrebleu's tokenisers for languages written without spaces between words
UNSPACED = ("zh", "ja-mecab", "ko-mecab", "char")


def score(hypotheses: Sequence[Document], references: Sequence[Document], tokenize: str = "13a") -> Scores:
    """Return the scores of one system.

    Args:
        hypotheses, references: the same number of documents, in the same order, each a list of sentences (a hypothesis
            with unknown sentence boundaries is a list of one string).
        tokenize: sacrebleu's tokeniser for BLEU (``zh`` for Chinese output).

    Returns:
        ``d_bleu`` (each document is one segment, case-insensitive), ``d_bleu_cased``, ``chrf`` (also cased and by
        document); ``s_bleu``, ``s_bleu_cased`` over the ``s_bleu_documents`` documents whose sentence counts agree
        (None if there are none, or if no hypothesis has sentence boundaries); ``documents``, the number of documents;
        ``length_ratio`` in words (in the tokeniser's tokens for text without spaces); ``signatures`` of the metrics.
    """
    if len(hypotheses) != len(references):
        first, last = sorted((len(hypotheses), len(references)))
        kind = "hypothesis" if len(hypotheses) < len(references) else "reference"
        raise InputError(
            f"{len(hypotheses)} hypotheses for {len(references)} reference documents: no {kind} for document(s) "
            f"{first + 1} to {last}"
        )
    outputs, agree = Outputs.of(hypotheses, references, tokenize)
    scores = {key: metric.score(outputs) for key, metric in METRICS.items()}
    result: Scores = {key: score for key, (score, _) in scores.items()}
    signatures = {key: signature for key, (_, signature) in scores.items() if not METRICS[key].by_sentence}
    lengths = [sum(len(text.split()) for text in side) for side in outputs.documents]
    if tokenize in UNSPACED:
        counted = bleu(True, tokenize).corpus_score(outputs.documents[0], [outputs.documents[1]])
        lengths = [counted.sys_len, counted.ref_len]
    return result | {
        "documents": len(references),
        "length_ratio": lengths[0] / max(1, lengths[1]),
        "signatures": signatures,
        "s_bleu_documents": agree,
    }


def compare(
    hypotheses: Mapping[str, Sequence[Document]],
    references: Sequence[Document],
    tokenize: str = "13a",
    samples: int = 1000,
) -> Scores:
    """Compare every system with the first by paired bootstrap of d-BLEU (Koehn 2004, as implemented in sacrebleu).

    Documents are resampled. Call :func:`score` on each system first: counts are not checked here.

    Args:
        hypotheses: documents by name of the system, at least two systems.
        tokenize: see :func:`score`.
        samples: number of bootstrap samples.

    Returns:
        ``systems``: name -> ``d_bleu``, ``mean`` and ``interval`` (half of the 95 % interval) over the samples, and
        ``p`` (None for the first); ``signature``.
    """
    named: list[tuple[str, Sequence[str]]] = [
        (name, [" ".join(d) for d in documents]) for name, documents in hypotheses.items()
    ]
    metric = bleu(True, tokenize, references=[[" ".join(d) for d in references]])
    signatures, results = PairedTest(named, {"BLEU": metric}, None, test_type="bs", n_samples=samples)()
    systems = {
        str(name): {"d_bleu": r.score, "mean": r.mean, "interval": r.ci, "p": r.p_value}
        for name, r in zip(results["System"], results["BLEU"])
        if isinstance(r, Result)
    }
    return {"systems": systems, "signature": str(signatures["BLEU"])}


def comparison_table(scores: Scores) -> str:
    """Format the results of :func:`compare` for a terminal."""
    lines = [f"paired bootstrap of d-BLEU, {scores['signature']}"]
    for name, s in scores["systems"].items():
        against = "baseline" if s["p"] is None else f"p = {s['p']:.4f}"
        lines.append(f"  {name}: {s['d_bleu']:.2f} (mean {s['mean']:.2f} +- {s['interval']:.2f}), {against}")
    return "\n".join(lines)


def table(systems: dict[str, Scores]) -> str:
    """Format the scores of several systems on the same references for a terminal."""
    width = max(map(len, systems)) + 2
    lines = [f"{'system':<{width}}" + "".join(f"{m.column:>8}" for m in METRICS.values()) + f"{'length':>8}"]
    for name, s in systems.items():
        numbers = "".join(f"{'-':>8}" if s.get(key) is None else f"{s[key]:>8.2f}" for key in METRICS)
        lines.append(f"{name:<{width}}{numbers}{s['length_ratio']:>8.3f}")
    first = next(iter(systems.values()))
    signatures = [f"{METRICS[key].label} {first['signatures'][key]}" for key in (HEADLINE, "chrf")]
    lines.append("; ".join([f"{first['documents']} documents", *signatures]))
    for name, s in systems.items():
        if not s["s_bleu_documents"]:
            lines.append(
                f"{name}: no s-BLEU, the hypotheses have no sentence boundaries "
                "(lasformer prepare --separator keeps them)"
            )
        elif s["s_bleu_documents"] < s["documents"]:
            agree, differ = s["s_bleu_documents"], s["documents"] - s["s_bleu_documents"]
            lines.append(f"{name}: sentence counts differ in {differ} documents; s-BLEU covers the other {agree}")
    return "\n".join(lines)
