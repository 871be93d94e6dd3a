"""Collection of a translated split's shards as documents in the order of the corpus, and their output."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.examples import ExampleCodec
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.text.documents import Document
from fairseq_lasformer.text.hypotheses import some


class Translation(NamedTuple):
    """A translated split."""

    documents: list[Document]  # the documents, each a list of lines
    # document and line, both from 0, of the lines that went wrong at first and were translated again
    repaired: list[tuple[int, int]]
    flawed: list[tuple[int, int]]  # of those that still reached their limit or repeat themselves
    blanks: tuple[int, ...] = ()  # blank lines before each document in raw form, and after the last; empty if not known


def collect(codec: ExampleCodec, info: SplitInfo, logs: Iterable[Path]) -> Translation:
    """Collect the output of all shards.

    Args:
        codec: codec of the prepared folder.
    """
    texts: dict[int, list[str]] = {}
    repaired: set[tuple[int, int]] = set()
    flawed: set[tuple[int, int]] = set()
    for log in logs:
        with open(log, encoding="utf-8") as lines:
            for line in lines:
                document = json.loads(line)
                number, entries = int(document["document"]), document["lines"]
                texts[number] = [codec.decode_line(tokens) for tokens, *_ in entries]
                repaired |= {(number, i) for i, entry in enumerate(entries) if entry[2]}
                flawed |= {(number, i) for i, entry in enumerate(entries) if entry[3]}
    if missing := [i + 1 for i in range(info.documents) if i not in texts]:
        raise InputError(f"no translation of {len(missing)} document(s): {some(missing)}")
    documents = [texts[i] for i in range(info.documents)]
    if not codec.keeps_boundaries:
        documents = [[" ".join(part for part in document if part)] for document in documents]
    return Translation(documents, sorted(repaired), sorted(flawed), info.blanks)


def summary(done: Translation, form: str) -> str:
    """Summarise for a terminal what a translation contains, and which of its lines went wrong.

    Args:
        form: form of the file, which determines a line's place.
    """
    clauses = [f"{len(done.documents)} documents, {sum(map(len, done.documents))} lines"]
    if done.repaired:
        clauses.append(f"{len(done.repaired)} lines had gone wrong and were translated again")
    if done.flawed:
        blanks = done.blanks or (0, *(1 for _ in done.documents))
        first = [blanks[0]]
        for document, after in zip(done.documents, blanks[1:]):
            first.append(first[-1] + len(document) + after)
        places = [
            f"{first[i] + j + 1}" if form == "raw" else f"{i + 1} (sentence {j + 1})" for i, j in done.flawed[:10]
        ]
        more = f" and {len(done.flawed) - 10} more" if len(done.flawed) > 10 else ""
        where = f"line {', '.join(places)}{more}"
        clauses.append(f"{len(done.flawed)} lines repeat themselves or reached their maximum length: {where}")
    return "; ".join(clauses)
