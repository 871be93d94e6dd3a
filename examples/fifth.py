#!/usr/bin/env python3
"""A training set with every fifth document in both languages, and the others in the target language only.

    python examples/fifth.py data-bin/tvsub_zh-en/raw data-bin/tvsub_fifth

It writes OUT/pairs.{zh,en} and OUT/rest.en (--languages zh,en).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.text.documents import join_documents, read_corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path, help="folder of train.SOURCE and train.TARGET")
    parser.add_argument("out", type=Path)
    parser.add_argument("--languages", default="zh,en", help="source and target (default: %(default)s)")
    args = parser.parse_args()
    languages = args.languages.split(",")
    try:
        corpus = read_corpus(*(args.raw / f"train.{language}" for language in languages))
        for side, language in enumerate(languages):
            atomic_write(args.out / f"pairs.{language}", join_documents([d[side] for d in corpus.documents[::5]]))
        rest = [d.target for i, d in enumerate(corpus.documents) if i % 5]
        atomic_write(args.out / f"rest.{languages[1]}", join_documents(rest))
    except InputError as e:
        sys.exit(f"error: {e}")
    kept, lines = corpus.documents[::5], sum(map(len, rest))
    print(f"{len(kept)} documents of {sum(len(d.target) for d in kept)} lines in both languages")
    print(f"{len(rest)} documents of {lines} lines in {languages[1]} alone")


if __name__ == "__main__":
    main()
