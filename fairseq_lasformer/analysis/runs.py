"""The outputs of a training run that the report shows: its log, its last checkpoint and its scores."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.places import MEASURES
from fairseq_lasformer.inference.checkpoints import CHECKPOINTS

# "| train_inner | {…}" of fairseq-train, "[train_inner][INFO] - {…}" of fairseq-hydra-train, "{…}" of --log-file
_LOG_LINE = re.compile(r"(?:^|[|\[] ?(?:train_inner|train|valid)(?: \||\]\[INFO\] -) )(\{\".*\})")


class Run(NamedTuple):
    """One run.

    Attributes:
        name: name of the run.
        checkpoint: its last checkpoint, or None.
        log: JSON lines of its log, by kind (``train_inner``, ``valid``).
        scores: scores from ``lasformer score`` or the demo; empty if there are none.
    """

    name: str
    checkpoint: Path | None
    log: dict[str, list[dict[str, float]]]
    scores: dict[str, Any]


def read_log(path: Path) -> dict[str, list[dict[str, float]]]:
    """The numbers in a fairseq log written with ``--log-format json``, by kind, in order of updates.

    If several lines refer to the same update (in a run that was killed and resumed), the last one counts.
    """
    found: dict[str, dict[float, dict[str, float]]] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not (match := _LOG_LINE.search(line)):
            continue
        try:
            values = json.loads(match[1])
        except ValueError:
            continue  # an incomplete line of a killed run
        kind = next((k for k in ("valid", "train") if f"{k}_loss" in values), "train_inner")
        prefix = f"{kind}_"
        numbers = {}
        for key, value in values.items():
            try:
                numbers[key.removeprefix(prefix)] = float(value)
            except (TypeError, ValueError):
                continue
        if "num_updates" in numbers:
            found.setdefault(kind, {})[numbers["num_updates"]] = numbers
    return {kind: [lines[n] for n in sorted(lines)] for kind, lines in found.items()}


def _checkpoint(folder: Path) -> Path | None:
    return next((folder / n for n in reversed(CHECKPOINTS) if (folder / n).is_file()), None)


def _scores(path: Path) -> dict[str, Any]:
    try:
        systems = json.loads(path.read_text(encoding="utf-8"))["systems"]
        if not systems or not all(isinstance(_numbers(scores), dict) for scores in systems.values()):
            raise ValueError("no system's scores")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
        raise InputError(f"{path}: not scores written by lasformer score --json ({e})") from e
    return systems


def _numbers(scores: dict[str, Any]) -> dict[str, Any]:
    """One system's scores, after checking that they are of the types the report shows: numbers and tables of numbers.

    Raises:
        ValueError: a score is of another type.
    """
    for name, value in scores.items():
        inner = list(value.values()) if isinstance(value, dict) else [value]
        if name in MEASURES:  # tables of tables
            inner = [number for scores in inner for number in scores.values()]
        elif name == "omissions":
            inner = [number for places in inner for place in places for number in place]
        text = name == "signatures"
        if not all(v is None or isinstance(v, str if text else int | float) for v in inner):
            raise ValueError(f"{name} is no number")
    return scores


def read_runs(paths: list[Path]) -> list[Run]:
    """Reads the runs in a list of folders.

    Each folder is either that of a demo (with a ``report.json``; one run per system) or a folder of checkpoints. The
    log and the scores of a folder of checkpoints are ``train.log`` and ``scores.json`` inside it, or ``<name>.log`` and
    ``<name>.json`` next to it (``lasformer score --json``, for one system).

    Raises:
        InputError: a folder is missing, or is neither.
    """
    runs = []
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder; give folders of checkpoints, or one of examples/demo.py")
        demo = path / "report.json"
        if demo.is_file():
            for name, scores in _scores(demo).items():
                runs.append(_run(path / name, scores))
        else:
            runs.append(_run(path, None))
    names = [r.name for r in runs]
    # folders with the same name are distinguished by their paths
    return [
        r if names.count(r.name) == 1 or not r.checkpoint else r._replace(name=str(r.checkpoint.parent)) for r in runs
    ]


def _run(folder: Path, scores: dict[str, Any] | None) -> Run:
    name = folder.resolve().name
    beside = folder.resolve().parent

    def first(*candidates: Path) -> Path | None:
        return next((c for c in candidates if c.is_file()), None)

    log = first(folder / "train.log", beside / f"{name}.log")
    checkpoint = _checkpoint(folder)
    if log is None and checkpoint is None:
        raise InputError(f"{folder}: holds no checkpoint and no train.log; nothing to report")
    if scores is None:
        file = first(folder / "scores.json", beside / f"{name}.json")
        scores = next(iter(_scores(file).values())) if file else {}
    return Run(name, checkpoint, read_log(log) if log else {}, scores)
