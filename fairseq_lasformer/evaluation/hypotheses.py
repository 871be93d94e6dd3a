"""Translated documents on disk, in the order of the input, in one of two forms.

``lines``: one document per line, tabs between its sentences where their boundaries are known. ``raw``: as the input,
one sentence per line and a blank line between documents. A tab cannot occur in the text itself (control characters are
refused on input), so the first form loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fairseq_lasformer.dataset import SplitInfo
from fairseq_lasformer.documents import Document, Span, join_documents, rejoin, split_documents
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import atomic_write
from fairseq_lasformer.text import Codec, Settings, split_at

_HYPOTHESIS = re.compile(r"^H-(\d+)\t[^\t]*\t(.*)$")


FORMS = ("lines", "raw")


def read_hypotheses(path: str | Path, allow_empty: bool = False, n_documents: int | None = None) -> list[Document]:
    """Documents of a hypothesis file.

    Args:
        allow_empty: let a document be empty. n_documents: how many are expected; a file that has not as many lines, but
            as many blocks of lines, is in raw form.

    Raises:
        InputError: not readable, not UTF-8, or (unless allowed) a document is empty.
    """
    try:
        lines = Path(path).read_bytes().decode("utf-8").removeprefix("\ufeff").split("\n")
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except UnicodeDecodeError as e:
        raise InputError(f"{path}: not valid UTF-8 (byte {e.start + 1})") from e
    if lines and not lines[-1]:
        lines.pop()
    lines = [line.removesuffix("\r") for line in lines]
    if n_documents is not None and len(lines) != n_documents:
        blocks = split_documents(line.strip() for line in lines)
        if len(blocks) == n_documents and len(blocks) < len(lines):
            return blocks
    if not allow_empty and (empty := [i + 1 for i, line in enumerate(lines) if not line.strip()]):
        raise InputError(
            f"{path}:{empty[0]}: no hypothesis for document(s) {_some(empty)}; translate them, count them as empty "
            "output with --allow-empty, or, if this is one sentence per line, give as many documents as the reference"
        )
    return [line.split("\t") for line in lines]


def write_hypotheses(path: str | Path, documents: Iterable[Document], form: str = "lines") -> None:
    """The whole file or nothing, in one of :data:`FORMS`."""
    if form == "raw":
        atomic_write(path, join_documents(documents))
    else:
        atomic_write(path, "".join("\t".join(document) + "\n" for document in documents))


def collect(data: str | Path, split: str, logs: Iterable[Path]) -> list[Document]:
    """Detokenised documents, in input order and with their parts rejoined, from what fairseq-generate printed.

    Args:
        data: the prepared folder. split: ``test``, ``test1``, …, ``valid``. logs: outputs of fairseq-generate, whose
            H lines together hold every example once.

    Raises:
        InputError: an example has no hypothesis.
    """
    settings, info = Settings.load(data), SplitInfo.load(data, split)
    if info is None or not info.examples:
        raise InputError(
            f"{data}: holds no documents.{split}.json with examples; prepare the split as --test or --valid"
        )
    found: dict[int, str] = {}
    for log in logs:
        for line in log.read_text(encoding="utf-8").split("\n"):
            if match := _HYPOTHESIS.match(line):
                found.setdefault(int(match[1]), match[2])
    if missing := [i for i in range(len(info.examples)) if i not in found]:
        spans = [Span(*info.examples[i]) for i in missing]
        raise InputError(
            f"no hypothesis for {len(missing)} parts, of document(s) {_some([s.document + 1 for s in spans])}"
        )
    codec = Codec.of(data, settings)
    known = bool(settings.separator) or settings.resolutions == "sentences"
    texts = []
    for i in range(len(info.examples)):
        pieces = split_at(found[i].split(), settings.separator)
        texts.append([codec.decode(" ".join(piece), settings.target_lang) for piece in pieces])
    documents = rejoin([Span(*e) for e in info.examples], texts, info.documents)
    return documents if known else [[" ".join(t for t in document if t)] for document in documents]


def _some(numbers: list[int]) -> str:
    distinct = sorted(set(numbers))
    return ", ".join(map(str, distinct[:10])) + (", ..." if len(distinct) > 10 else "")
