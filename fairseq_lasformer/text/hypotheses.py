"""Translated documents on disk, in input order, in one of two forms.

``lines``: one document per line, with tabs between its sentences if their boundaries are known. ``raw``: like the
input, one sentence per line and a blank line between documents. A tab cannot occur in the text itself (control
characters are rejected on input), so the first form is lossless.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.text.documents import Document, join_documents, split_documents

FORMS = ("lines", "raw")
NOTHING = "⁇"
"""Placeholder for a translation without text in raw form; sentencepiece's sign for what is unknown."""


def read_hypotheses(path: str | Path, allow_empty: bool = False, n_documents: int | None = None) -> list[Document]:
    """Read the documents of a hypothesis file.

    Args:
        allow_empty: allow empty documents.
        n_documents: expected number of documents; a file with a different number of lines, but this number of blocks of
            lines, is taken to be in raw form.

    Raises:
        InputError: the file cannot be read or is not UTF-8, or (unless allowed) a document is empty.
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
            f"{path}:{empty[0]}: no hypothesis for document(s) {some(empty)}; translate them, count them as empty "
            "output with --allow-empty, or, if this is one sentence per line, give as many documents as the reference"
        )
    return [line.split("\t") for line in lines]


def write_hypotheses(
    path: str | Path, documents: Iterable[Document], form: str = "lines", blanks: Sequence[int] = ()
) -> None:
    """Write the file, completely or not at all, in one of :data:`FORMS`.

    In raw form, where an empty line ends a document, a sentence without text is written as :data:`NOTHING`, and blank
    lines are placed according to ``blanks``, see :func:`join_documents`.
    """
    if form == "raw":
        atomic_write(path, join_documents(([s if s.strip() else NOTHING for s in d] for d in documents), blanks))
    else:
        atomic_write(path, "".join("\t".join(document) + "\n" for document in documents))


def some(numbers: list[int]) -> str:
    """Format the ten smallest distinct numbers as text."""
    distinct = sorted(set(numbers))
    return ", ".join(map(str, distinct[:10])) + (", ..." if len(distinct) > 10 else "")
