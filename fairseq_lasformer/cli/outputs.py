"""One check of what a command writes, before it begins: no output is an input, and nothing of others is replaced."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from fairseq_lasformer.errors import InputError

OWN, NEW, SCORES, TABLE, PAGE = "own", "new", "scores", "table", "page"
"""What may stand where an output is written: the command decides; nothing; or a file of the same kind that this
package wrote: scores in JSON, a table of counts, a page of ``lasformer report``."""

_SCORES = {"results", "rows", "systems", "bootstrap", "ctxpro", "suber"}
_HEAD = 4096
"""Number of bytes at the beginning of a file that tell its kind."""


def add_overwrite(parser: argparse.ArgumentParser, writes: Mapping[str, str]) -> None:
    """Add ``--overwrite`` to a command that writes files, unless it has one of its own."""
    if any(kind != OWN for kind in writes.values()) and "--overwrite" not in parser._option_string_actions:
        parser.add_argument(
            "--overwrite",
            action="store_true",
            help="replace existing files (default: only those of the same kind that lasformer wrote)"
            if NEW not in writes.values()
            else "replace existing files",
        )


def check_outputs(args: argparse.Namespace, writes: Mapping[str, str]) -> None:
    """Check what a command writes.

    Args:
        writes: by option, what may stand there, see :data:`OWN`.

    Raises:
        InputError: an output is, or links to, a file that the command reads or writes otherwise; or it exists.
    """
    named = list(_files(args))
    for name, kind in writes.items():
        for path in [path for other, path in named if other == name]:
            for other, file in named:
                if other != name and (name, other) not in _ALLOWED and same_file(path, file):
                    raise InputError(f"{path}: is written, but also {_said(other)}; choose another file")
            free = kind == OWN or getattr(args, "overwrite", False) or path.parts[:2] == ("/", "dev")
            if not free and path.is_file() and not _is_ours(path, kind):
                raise InputError(f"{path}: exists already; --overwrite replaces it")


_ALLOWED = {("out", "translated")}
"""Pairs of an output and an input that may be the same: ``lasformer update`` can work in place."""


def _said(name: str) -> str:
    return {"input": "what is translated", "checkpoints": "one of the checkpoints"}.get(
        name, f"the argument {name.replace('_', '-')}"
    )


def _files(args: argparse.Namespace) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of every argument that is a file, or may become one."""
    for name, value in vars(args).items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, Path) or (isinstance(one, str) and name in ("input", "out", "files")):
                yield name, Path(one)


def same_file(first: Path, second: Path) -> bool:
    """Return whether two paths are the same file, by whatever name; never for folders, which may hold both."""
    if os.path.isdir(first) or os.path.isdir(second):
        return False
    if os.path.exists(first) and os.path.exists(second):
        return os.path.isfile(first) and first.samefile(second)
    try:
        return os.path.realpath(first) == os.path.realpath(second)
    except (OSError, ValueError):
        return False


def _is_ours(path: Path, kind: str) -> bool:
    """Return whether a file is of a kind and, by its beginning, one that this package wrote."""
    from fairseq_lasformer.evaluation.doubts import HEADER

    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD).decode("utf-8", "replace")
        if kind == TABLE:
            return head.startswith(HEADER)
        if kind == PAGE:
            return '<meta name="generator" content="fairseq_lasformer">' in head
        found = json.loads(path.read_text(encoding="utf-8")) if kind == SCORES else None
        return isinstance(found, dict) and bool(found) and set(found) <= _SCORES
    except (OSError, ValueError, RecursionError):
        return False
