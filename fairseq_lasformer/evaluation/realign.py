"""Realignment of translations whose lines are unknown or differ from the reference's, by minimum word error rate.

The method is that of Matusov et al. 2005, in the package mweralign (Post 2025).
"""

from collections.abc import Sequence

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.evaluation.scores import UNSPACED
from fairseq_lasformer.text.documents import Document


def realign(hypotheses: Sequence[Document], references: Sequence[Document], tokenize: str = "13a") -> list[Document]:
    """Cut the hypotheses into as many lines as their references; those that already have as many are kept.

    Args:
        hypotheses, references: the same number of documents.
        tokenize: sacrebleu's tokeniser; with one for text without spaces, every character is a word.
    """
    try:
        from mweralign.mweralign import align_texts
    except ImportError as e:
        raise InputError("--realign: needs mweralign: pip install mweralign") from e

    def cut(hypothesis: Document, reference: Document) -> Document:
        sides = ["\n".join(reference), " ".join(hypothesis)]
        if tokenize in UNSPACED:
            lines = [[" ".join(line.replace(" ", "\u2581")) for line in side.split("\n")] for side in sides]
            aligned = align_texts("\n".join(lines[0]), lines[1][0])
            return [
                line.replace(" ", "").replace("\u2581", " ").strip() for line in aligned.split("\n")[: len(reference)]
            ]
        return [line.strip() for line in align_texts(*sides).split("\n")[: len(reference)]]

    return [
        hypothesis if len(hypothesis) == len(reference) else cut(hypothesis, reference)
        for hypothesis, reference in zip(progress_bar(hypotheses, desc="aligning lines", unit=" documents"), references)
    ]
