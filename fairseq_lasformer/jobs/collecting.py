"""Collection of a translated split's shards as documents in the order of the corpus, and their output."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.data.examples import ExampleCodec
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.doubts import Facts, Pair, doubts, facts
from fairseq_lasformer.files import atomic_write, beside
from fairseq_lasformer.jobs.shards import seconds_of
from fairseq_lasformer.text.documents import Document
from fairseq_lasformer.text.hypotheses import some, write_hypotheses


class Translation(NamedTuple):
    """A translated split.

    Attributes:
        documents: the documents, each a list of lines.
        repaired: document and line, both from 0, of the lines that went wrong at first and were translated again.
        flawed: of those that still reached their limit or repeat themselves.
        blanks: blank lines before each document in raw form, and after the last; empty if not known.
        sources: the lines of the source, if requested.
        units: name and counts of each shard, if sources were requested.
        doubts: reasons for doubts, by document and line; see :func:`evaluation.doubts.doubts`.
    """

    documents: list[Document]
    repaired: list[tuple[int, int]]
    flawed: list[tuple[int, int]]
    blanks: tuple[int, ...] = ()
    sources: Sequence[Document] = ()
    units: Sequence[tuple[str, Facts]] = ()
    doubts: Mapping[tuple[int, int], tuple[str, ...]] = {}


def collect(codec: ExampleCodec, info: SplitInfo, logs: Iterable[Path]) -> Translation:
    """Collect the output of all shards.

    Args:
        codec: codec of the prepared folder.

    Raises:
        InputError: a document has no translation.
    """
    texts: dict[int, list[str]] = {}
    sources: dict[int, list[str]] = {}
    repaired: set[tuple[int, int]] = set()
    flawed: set[tuple[int, int]] = set()
    units: list[tuple[str, Facts]] = []
    why: dict[tuple[int, int], tuple[str, ...]] = {}
    for log in logs:
        places: list[tuple[int, int]] = []
        pairs: list[Pair] = []
        with open(log, encoding="utf-8") as lines:
            for line in lines:
                document = json.loads(line)
                number, entries = int(document["document"]), document["lines"]
                texts[number] = [codec.decode_line(tokens) for tokens, *_ in entries]
                repaired |= {(number, i) for i, entry in enumerate(entries) if entry[2]}
                flawed |= {(number, i) for i, entry in enumerate(entries) if entry[3]}
                if "source" in document:
                    sources[number] = document["source"]
                    places += [(number, i) for i in range(len(entries))]
                    for source, text, (_, _, *states) in zip(sources[number], texts[number], entries, strict=True):
                        pairs.append(Pair(source, text, *states))
        if pairs:
            reasons = doubts(pairs)
            units.append((log.name, facts(pairs, reasons, _seconds(log))))
            why |= {place: its for place, its in zip(places, reasons) if its}
    if missing := [i + 1 for i in range(info.documents) if i not in texts]:
        raise InputError(f"no translation of {len(missing)} document(s): {some(missing)}")
    documents = [texts[i] for i in range(info.documents)]
    if not codec.keeps_boundaries:
        documents = [[" ".join(part for part in document if part)] for document in documents]
    return Translation(
        documents,
        sorted(repaired),
        sorted(flawed),
        info.blanks,
        [sources[i] for i in range(info.documents)] if sources else (),
        units,
        why,
    )


def _seconds(log: Path) -> float:
    """Return the seconds that a shard took; 0 if the file was lost."""
    try:
        return float(seconds_of(log).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0


def write(out: Path, done: Translation, form: str, keep_doubtful: bool = True) -> None:
    """Write a translation.

    Args:
        form: see :func:`write_hypotheses`.
        keep_doubtful: if not, doubtful lines are left out, and listed in ``OUT.doubtful.tsv`` with their document and
            line (from 1), the reasons, source and translation; ``OUT.source`` has the source of the remaining lines.
    """
    if keep_doubtful:
        write_hypotheses(out, done.documents, form, done.blanks)
        return
    kept = [
        [[line for j, line in enumerate(document) if (i, j) not in done.doubts] for i, document in enumerate(side)]
        for side in (done.sources, done.documents)
    ]
    rows = [
        [str(i + 1), str(j + 1), ", ".join(reasons), done.sources[i][j], done.documents[i][j]]
        for (i, j), reasons in sorted(done.doubts.items())
    ]
    atomic_write(beside(out, ".doubtful.tsv"), "".join("\t".join(row) + "\n" for row in rows))
    write_hypotheses(beside(out, ".source"), [document for document in kept[0] if document], form)
    write_hypotheses(out, [document for document in kept[1] if document], form)


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
