"""Results of an alignment: a corpus in raw form, tables of what was paired and what was not, and a page to look at."""

from __future__ import annotations

import html
import os
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lasformer.apps.pairing.splitting import SPLITS, AlignedDocument, Division
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.text.documents import join_documents

if TYPE_CHECKING:
    from fairseq_lasformer.apps.pairing.align import AlignedFile

_TABLES = _COUNTS, _LEFT_OUT, _SHOWN = "alignment.tsv", "left_out.tsv", "alignment.html"

SHOWN, ROWS = 10, 60
"""Number of documents on the page, and of lines of each."""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Aligned documents</title>
<link rel="icon" href="data:,">
<style>
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1f; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
td { vertical-align: top; padding: .3rem .8rem; border-top: 1px solid #ddd; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.5rem 0 .5rem; overflow-wrap: anywhere; }
p { color: #555; }
@media (prefers-color-scheme: dark) { body { background: #16161a; color: #e6e6ea; } td { border-color: #3a3a42; }
p { color: #aaa; } }
</style>
</head>
<body>
<h1>Aligned documents</h1>
"""


def names_of(languages: tuple[str, str]) -> list[str]:
    """Return the names of the files of an alignment."""
    return [*_TABLES, *(f"{which}.{ending}" for which in reversed(SPLITS) for ending in ("names", *languages))]


def check_new(out: Path, languages: tuple[str, str], ours: Container[str] = ()) -> None:
    """Reject a folder that already holds a corpus, or other files by the names of an alignment's.

    Args:
        ours: names of files that a killed run has begun to write.
    """
    names = {path.name for which in SPLITS for path in out.glob(f"{which}.*")}
    names |= {name for name in names_of(languages) if os.path.lexists(out / name)}
    if others := sorted((name in _TABLES, name) for name in names if name not in ours):
        raise InputError(f"{out}: already contains {others[0][1]}; remove it, or name another folder")


def write(
    out: Path,
    languages: tuple[str, str],
    files: Sequence[AlignedFile],
    division: Division,
    damaged: Sequence[str],
) -> str:
    """Write everything; the training set comes last, so that a folder with one is complete.

    Args:
        damaged: a line about each file that could not be read.

    Returns:
        the counts, in words.
    """
    counts = [
        (file.document.name, *file.blocks, file.paired, file.equal, *(n - file.paired for n in file.blocks))
        for file in files
    ]
    head = ("file", *(f"blocks {x}" for x in languages), "pairs", "equal", *(f"left out {x}" for x in languages))
    atomic_write(out / _COUNTS, _table([head, *counts]))
    left = [(file.document.name, *one) for file in files for one in file.left]
    unread = [("", "", "file", line, "") for line in damaged]
    atomic_write(out / _LEFT_OUT, _table([("file", "language", "what", "why", "text"), *left, *unread]))
    atomic_write(out / _SHOWN, _page(_to_show(division), languages))
    for which in reversed(SPLITS):
        documents = division.documents[which]
        atomic_write(out / f"{which}.names", "".join(" ".join(document.name.split()) + "\n" for document in documents))
        for side, language in enumerate(languages):
            text = join_documents([pair[side] for pair in document.pairs] for document in documents)
            atomic_write(out / f"{which}.{language}", text)
    return _summary(files, division, languages, damaged)


def _table(rows: Iterable[Sequence[object]]) -> str:
    return "".join("\t".join(" ".join(str(cell).split()) for cell in row) + "\n" for row in rows)


def _to_show(division: Division) -> list[AlignedDocument]:
    """Return documents spread over the corpus."""
    everything = [document for which in SPLITS for document in division.documents[which]]
    step = max(1, len(everything) // SHOWN)
    return everything[::step][:SHOWN]


def _page(documents: Sequence[AlignedDocument], languages: tuple[str, str]) -> str:
    pieces = [_PAGE]
    for document in documents:
        pieces.append(f"<h2>{html.escape(document.name)}</h2>\n<table>\n")
        for pair in document.pairs[:ROWS]:
            cells = (
                f'<td lang="{html.escape(x)}" dir="auto">{html.escape(text)}</td>' for x, text in zip(languages, pair)
            )
            pieces.append(f"<tr>{''.join(cells)}</tr>\n")
        pieces.append("</table>\n")
        if len(document.pairs) > ROWS:
            pieces.append(f"<p>and {len(document.pairs) - ROWS} more lines</p>\n")
    return "".join([*pieces, "</body>\n</html>\n"])


def _summary(
    files: Sequence[AlignedFile], division: Division, languages: tuple[str, str], damaged: Sequence[str]
) -> str:
    paired, equal = sum(file.paired for file in files), sum(file.equal for file in files)
    lines = [f"{len(files)} files, {paired} pairs of blocks, {equal} of them equal"]
    for side, language in enumerate(languages):
        n = sum(file.blocks[side] for file in files)
        lines.append(f"{language}: {n} blocks = {paired} in pairs + {n - paired} left out")
    untranslated = sum(one.what == "pair" for file in files for one in file.left)
    sentences = sum(one.what == "sentence" for file in files for one in file.left)
    lines.append(
        f"left out: {untranslated} untranslated pairs, {sentences} sentences without a partner, {division.frame} lines "
        f"of the documents' frame, {division.equal} equal lines of dev and test, {division.repeated} lines of training "
        "that dev or test has"
    )
    for which in SPLITS:
        documents = division.documents[which]
        lines.append(f"{which}: {len(documents)} documents, {sum(len(d.pairs) for d in documents)} lines")
    if division.empty:
        lines.append(f"{len(division.empty)} documents have no line left, such as {division.empty[0]}")
    if damaged:
        lines.append(f"not read: {len(damaged)} files (left_out.tsv), such as {damaged[0]}")
    return "\n".join(lines)
