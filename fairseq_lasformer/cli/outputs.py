"""One check of what a command writes, before it begins: no output is an input, and nothing of others is replaced."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.options import OWN, PAGE, SCORES, TABLE, Option, options_of

_SCORES = {"results", "rows", "systems", "bootstrap", "ctxpro"}
_HEAD = 4096
"""Number of bytes at the beginning of a file that tell its kind."""


def check_outputs(options: Any) -> None:
    """Check what a command writes, see :data:`options.OWN`."""
    declared = options_of(type(options))
    named = [(one.name, path) for one in declared for path in _paths(one, getattr(options, one.name))]
    for name, kind in [(one.name, one.spec.writes) for one in declared if one.spec.writes]:
        for path in [path for other, path in named if other == name]:
            for other, file in named:
                if other != name and same_file(path, file):
                    raise InputError(f"{path}: is written, but also {_said(other)}; choose another file")
            free = kind == OWN or getattr(options, "overwrite", False) or path.parts[:2] == ("/", "dev")
            if not free and path.is_file() and not _is_ours(path, kind):
                raise InputError(f"{path}: exists already; --overwrite replaces it")


def _said(name: str) -> str:
    return {"input": "what is translated", "checkpoints": "one of the checkpoints"}.get(
        name, f"the argument {name.replace('_', '-')}"
    )


def _paths(one: Option, value: Any) -> list[Path]:
    """Return the files that an option names."""
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    return [Path(path) for path in values if one.base is Path or one.spec.place]


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
