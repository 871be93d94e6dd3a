"""d-BLEU, s-BLEU and chrF, by sacrebleu on detokenised text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest, Result

from fairseq_lasformer.documents import Document
from fairseq_lasformer.errors import InputError

# sacrebleu's tokenisers for text whose words are not separated by spaces
UNSPACED = ("zh", "ja-mecab", "ko-mecab", "char")


def score(hypotheses: Sequence[Document], references: Sequence[Document], tokenize: str = "13a") -> dict[str, Any]:
    """Scores of one system.

    Args:
        hypotheses, references: as many documents, in the same order, each a list of sentences (a hypothesis whose
            sentence boundaries are unknown is a list of one string).
        tokenize: sacrebleu's tokeniser for BLEU (``zh`` for Chinese output).

    Returns:
        ``d_bleu`` (each document one segment, case-insensitive), ``d_bleu_cased``, ``chrf`` (likewise cased, by
        document); ``s_bleu``, ``s_bleu_cased`` over the ``s_bleu_documents`` documents whose sentence counts agree
        (None where none does, or where no hypothesis has sentence boundaries); ``documents``; ``length_ratio`` in
        words (in the tokeniser's tokens for text without spaces); ``signatures`` of the metrics.

    Raises:
        InputError: not as many hypotheses as references.
    """
    if len(hypotheses) != len(references):
        first, last = sorted((len(hypotheses), len(references)))
        kind = "hypothesis" if len(hypotheses) < len(references) else "reference"
        raise InputError(
            f"{len(hypotheses)} hypotheses for {len(references)} reference documents: no {kind} for document(s) "
            f"{first + 1} to {last}"
        )
    hyp, ref = [" ".join(d) for d in hypotheses], [" ".join(d) for d in references]
    bleu = {lc: _bleu(lc, tokenize) for lc in (True, False)}
    chrf = CHRF()
    lowered = bleu[True].corpus_score(hyp, [ref])
    lengths = [sum(len(text.split()) for text in side) for side in (hyp, ref)]
    if tokenize in UNSPACED:
        lengths = [lowered.sys_len, lowered.ref_len]
    result: dict[str, Any] = {
        "d_bleu": lowered.score,
        "d_bleu_cased": bleu[False].corpus_score(hyp, [ref]).score,
        "chrf": chrf.corpus_score(hyp, [ref]).score,
        "documents": len(ref),
        "length_ratio": lengths[0] / max(1, lengths[1]),
        "signatures": {
            "d_bleu": str(bleu[True].get_signature()),
            "d_bleu_cased": str(bleu[False].get_signature()),
            "chrf": str(chrf.get_signature()),
        },
    }
    agree = [(h, r) for h, r in zip(hypotheses, references) if len(h) == len(r)]
    if all(len(h) <= 1 for h in hypotheses) and any(len(r) > 1 for r in references):
        agree = []  # a document of one sentence agrees by chance
    segments = ([s for h, _ in agree for s in h], [s for _, r in agree for s in r])
    for name, lc in (("s_bleu", True), ("s_bleu_cased", False)):
        result[name] = bleu[lc].corpus_score(segments[0], [segments[1]]).score if agree else None
    return result | {"s_bleu_documents": len(agree)}


def _bleu(lowercase: bool, tokenize: str, **options: Any) -> BLEU:
    if tokenize not in BLEU.TOKENIZERS:
        raise InputError(f"--tokenize {tokenize}: expected one of {', '.join(BLEU.TOKENIZERS)}")
    try:
        return BLEU(lowercase=lowercase, tokenize=tokenize, **options)
    except (ImportError, OSError, RuntimeError) as e:  # tokenisers with packages or models of their own
        reason = " ".join(str(e).split())
        raise InputError(f"--tokenize {tokenize}: cannot be used here ({reason})") from e


def compare(
    hypotheses: Mapping[str, Sequence[Document]],
    references: Sequence[Document],
    tokenize: str = "13a",
    samples: int = 1000,
) -> dict[str, Any]:
    """Paired bootstrap of d-BLEU (Koehn 2004, as sacrebleu does it): every system against the first one.

    Documents are what is drawn anew. Call :func:`score` on each first: counts are not checked here.

    Args:
        hypotheses: by system's name, at least two. samples: how many bootstrap samples.

    Returns:
        ``systems``: name -> ``d_bleu``, ``mean`` and ``interval`` (half of the 95 % interval) over the samples, and
        ``p`` (None for the first); ``signature``.
    """
    named: list[tuple[str, Sequence[str]]] = [
        (name, [" ".join(d) for d in documents]) for name, documents in hypotheses.items()
    ]
    metric = _bleu(True, tokenize, references=[[" ".join(d) for d in references]])
    signatures, results = PairedTest(named, {"BLEU": metric}, None, test_type="bs", n_samples=samples)()
    systems = {
        str(name): {"d_bleu": r.score, "mean": r.mean, "interval": r.ci, "p": r.p_value}
        for name, r in zip(results["System"], results["BLEU"])
        if isinstance(r, Result)
    }
    return {"systems": systems, "signature": str(signatures["BLEU"])}


def comparison_table(found: dict[str, Any]) -> str:
    """Results of :func:`compare`, for a terminal."""
    lines = [f"paired bootstrap of d-BLEU, {found['signature']}"]
    for name, s in found["systems"].items():
        against = "baseline" if s["p"] is None else f"p = {s['p']:.4f}"
        lines.append(f"  {name}: {s['d_bleu']:.2f} (mean {s['mean']:.2f} +- {s['interval']:.2f}), {against}")
    return "\n".join(lines)


def table(systems: dict[str, dict[str, Any]]) -> str:
    """The scores of several systems over the same references, for a terminal."""
    width = max(map(len, systems)) + 2
    lines = [f"{'system':<{width}}{'d-BLEU':>8}{'cased':>8}{'s-BLEU':>8}{'cased':>8}{'chrF':>8}{'length':>8}"]
    for name, s in systems.items():
        cells = [s[k] for k in ("d_bleu", "d_bleu_cased", "s_bleu", "s_bleu_cased", "chrf")]
        numbers = "".join(f"{'-':>8}" if c is None else f"{c:>8.2f}" for c in cells)
        lines.append(f"{name:<{width}}{numbers}{s['length_ratio']:>8.3f}")
    first = next(iter(systems.values()))
    lines.append(
        f"{first['documents']} documents; d-BLEU {first['signatures']['d_bleu']}; chrF {first['signatures']['chrf']}"
    )
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
