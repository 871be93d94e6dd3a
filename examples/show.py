#!/usr/bin/env python3
"""A page in English and German, by the model in data/models, and the other lines that each line looked at.

    python examples/show.py [--model help_en-de] [--page examples/page.html]

For each line, the encoder's attention to a word is averaged over the words of each other line; the line with the
highest mean is named, with its share.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import numpy as np

logging.basicConfig(level=logging.WARNING)
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fairseq_lasformer.apps.files.reading import FileReader  # noqa: E402
from fairseq_lasformer.base.errors import InputError  # noqa: E402
from fairseq_lasformer.documents.hub import DocumentHubInterface, load_model  # noqa: E402
from fairseq_lasformer.documents.word_attention import document_attention  # noqa: E402
from fairseq_lasformer.formats import check_format, read  # noqa: E402


def looked_at(model: DocumentHubInterface, source: list[str], target: list[str]) -> list[tuple[int, float] | None]:
    """Return, for each line, the other line of the source that it attends to most, and its share; None if unknown."""
    attention = document_attention(model, source, target)
    weights = attention.mean("encoder")
    if weights is None or len(source) < 2:
        return [None] * len(source)
    of_word = np.array([line for line, _ in attention.source])
    by_line = np.array(
        [[weights[np.ix_(of_word == i, of_word == j)].mean() for j in range(len(source))] for i in range(len(source))]
    )
    np.fill_diagonal(by_line, 0)
    shares = by_line / np.maximum(by_line.sum(1, keepdims=True), 1e-9)
    return [(int(row.argmax()), float(row.max())) for row in shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="help_en-de")
    parser.add_argument("--page", type=Path, default=ROOT / "examples/page.html")
    args = parser.parse_args()
    try:
        model = load_model(args.model, device="cpu")
        form = check_format(args.page.name)
        source = FileReader(model.codec).read(read(args.page.read_bytes(), form)).lines
        (translated,) = model.translate_documents(["\n".join(source)], lines=True)
        target = [line.translation for line in translated]
        for i, (english, german, other) in enumerate(zip(source, target, looked_at(model, source, target))):
            note = "" if other is None else f"  (looked at line {other[0] + 1}: {other[1]:.0%})"
            print(f"{i + 1:3d}  {english}\n     {german}{note}")
    except (InputError, OSError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    main()
