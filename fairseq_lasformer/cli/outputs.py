"""One check of what a command writes, before it begins: no output is an input, and nothing of others is replaced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import EXPLANATION, FIGURES, OWN, PAGE, SCORES, TABLE, Option, options_of
from fairseq_lasformer.base.targets import head, is_page, same_file

_KEYS = {
    SCORES: {"systems", "bootstrap", "ctxpro"},
    EXPLANATION: {"words", "lines", "cxmi", "by_distance"},
}


def check_outputs(options: Any) -> None:
    """Check what a command writes, see :data:`options.OWN`."""
    declared = options_of(type(options))
    named = [(one.name, path) for one in declared for path in _paths(one, getattr(options, one.name))]
    for name, kind in [(one.name, one.spec.writes) for one in declared if one.spec.writes]:
        for path in [path for other, path in named if other == name]:
            for other, file in named:
                if other != name and same_file(path, file):
                    raise InputError(f"{path}: is written, but also {_said(other)}; choose another file")
            keys = {options.figures} if kind == FIGURES else _KEYS.get(kind, set())
            free = kind == OWN or getattr(options, "overwrite", False) or path.parts[:2] == ("/", "dev")
            if not free and path.is_file() and not _is_ours(path, kind, keys):
                raise InputError(f"{path}: exists already; --overwrite replaces it")


def _said(name: str) -> str:
    return {"input": "what is translated", "checkpoints": "one of the checkpoints"}.get(
        name, f"the argument {name.replace('_', '-')}"
    )


def _paths(one: Option, value: Any) -> list[Path]:
    """Return the files that an option names."""
    values = value if isinstance(value, tuple) else () if value is None else (value,)
    return [Path(path) for path in values if one.base is Path or one.spec.place]


def _is_ours(path: Path, kind: str, keys: set[str]) -> bool:
    """Return whether a file is of a kind and, by its beginning or its keys in JSON, one that this package wrote."""
    from fairseq_lasformer.evaluation.doubts import HEADER

    try:
        if kind == TABLE:
            return head(path).startswith(HEADER)
        if kind == PAGE:
            return is_page(path)
        record = json.loads(path.read_text(encoding="utf-8")) if keys else None
        return isinstance(record, dict) and bool(record) and set(record) <= keys
    except (OSError, ValueError, RecursionError):
        return False
