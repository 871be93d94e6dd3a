"""Outputs of a training run that the report shows: log, checkpoint and scores."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.checkpoints.loading import CHECKPOINTS
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.breakdown import MEASURES
from fairseq_lasformer.records import Json, Scores

# "| train_inner | {…}" of fairseq-train, "[train_inner][INFO] - {…}" of fairseq-hydra-train, "{…}" of --log-file
_LOG_LINE = re.compile(r"(?:^|[|\[] ?(?:train_inner|train|valid)(?: \||\]\[INFO\] -) )(\{\".*\})")


_STARTED = "[started] "


class Run(NamedTuple):
    """One run.

    Attributes:
        checkpoint: the checkpoint used for translation (the best, if the run was validated), or None.
        log: JSON lines of its log, by kind (``train_inner``, ``valid``).
        scores: scores from ``lasformer score`` or the demo; empty if there are none.
        start: ``date``, ``command`` and ``machine`` of the last start; empty if the log does not say.
        compared: the bootstrap test of its d-BLEU: ``against`` which system, ``p`` (None for the first), ``interval``
            and ``signature``; empty without one.
    """

    name: str
    checkpoint: Path | None
    log: dict[str, list[dict[str, float]]]
    scores: Scores
    start: Json = {}
    compared: Scores = {}


def started(command: Sequence[str], machine: Json) -> str:
    """Return the line that starts the log of a training; :func:`read_start` reads it."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return _STARTED + json.dumps({"date": now, "command": list(command), "machine": machine}) + "\n"


def read_start(path: Path) -> Json:
    """Return what the log of a training says about its last start; empty if it says nothing."""
    found: Json = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(_STARTED):
            try:
                values = json.loads(line.removeprefix(_STARTED))
            except ValueError:
                continue
            if isinstance(values, dict) and isinstance(values.get("machine"), dict):
                found = values
    return found


def read_log(path: Path) -> dict[str, list[dict[str, float]]]:
    """Return the numbers in a fairseq log written with ``--log-format json``, by kind, in order of updates.

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
        for key, value in [*values.items(), *_by_group(values, prefix)]:
            try:
                numbers[key.removeprefix(prefix)] = float(value)
            except (TypeError, ValueError):
                continue
        if "num_updates" in numbers:
            found.setdefault(kind, {})[numbers["num_updates"]] = numbers
    return {kind: [lines[n] for n in sorted(lines)] for kind, lines in found.items()}


def _by_group(values: Json, prefix: str) -> Iterator[tuple[str, str]]:
    """Take apart what a log line has of every group; see :func:`plugin.log_lines.joined`."""
    for key, word in values.items():
        if not key.endswith("_by_group"):
            continue
        name = key.removeprefix(prefix).removesuffix("_by_group")
        for part in str(word).split(";"):
            module, _, shares = part.partition(":")
            yield from ((f"{name}_{module}_{i}", share) for i, share in enumerate(shares.split(",")))


class _Scores(NamedTuple):
    systems: dict[str, Scores]
    bootstrap: Scores

    def compared(self, name: str) -> Scores:
        """Return the test of one system; see :class:`Run`."""
        tested = self.bootstrap.get("systems", {})
        if name not in tested:
            return {}
        return {**tested[name], "against": next(iter(tested)), "signature": self.bootstrap.get("signature", "")}


def _scores(path: Path) -> _Scores:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        systems, bootstrap = found["systems"], found.get("bootstrap", {})
        if not systems or not all(isinstance(_numbers(scores), dict) for scores in systems.values()):
            raise ValueError("no system's scores")
        for tested in bootstrap.get("systems", {}).values():
            _numbers(tested)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise InputError(f"{path}: not scores written by lasformer score --json ({e})") from e
    return _Scores(systems, bootstrap)


def _numbers(scores: Scores) -> Scores:
    """Return one system's scores, after checking that they have the types of the report: numbers, tables of numbers.

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
            raise ValueError(f"{name} is not a number")
    return scores


def read_runs(paths: Sequence[Path], scores: Path | None = None) -> list[Run]:
    """Read the runs in a list of folders.

    Each folder is either that of a demo (with a ``report.json``; one run per system) or a folder of checkpoints. The
    log and the scores of a folder of checkpoints are ``train.log`` and ``scores.json`` inside it, or ``<name>.log`` and
    ``<name>.json`` next to it (``lasformer score --json``, for one system).

    Args:
        scores: scores of several systems (``lasformer score --json``), by names of the runs; they take precedence. A
            system without a run becomes a run without log and checkpoint.

    Raises:
        InputError: a folder is missing, or is neither; or scores are not what ``lasformer score`` writes.
    """
    runs = []
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder; give folders of checkpoints, or one of examples/demo.py")
        demo = path / "report.json"
        if demo.is_file():
            found = _scores(demo)
            for name in found.systems:
                runs.append(_run(path / name, found, name))
        else:
            runs.append(_run(path, None))
    names = [r.name for r in runs]
    # folders with the same name are distinguished by their paths
    runs = [
        r if names.count(r.name) == 1 or not r.checkpoint else r._replace(name=str(r.checkpoint.parent)) for r in runs
    ]
    if scores is not None:
        found = _scores(scores)
        runs = [
            r._replace(scores=found.systems[r.name], compared=found.compared(r.name)) if r.name in found.systems else r
            for r in runs
        ]
        others = found.systems.keys() - {r.name for r in runs}
        runs += [Run(n, None, {}, s, {}, found.compared(n)) for n, s in found.systems.items() if n in others]
    return runs


def _run(folder: Path, scores: _Scores | None, system: str = "") -> Run:
    name = folder.resolve().name
    beside = folder.resolve().parent

    def first(*candidates: Path) -> Path | None:
        return next((c for c in candidates if c.is_file()), None)

    log = first(folder / "train.log", beside / f"{name}.log")
    checkpoint = next((folder / name for name in CHECKPOINTS if (folder / name).is_file()), None)
    if log is None and checkpoint is None:
        raise InputError(f"{folder}: contains no checkpoint and no train.log; nothing to report")
    if scores is None:
        file = first(folder / "scores.json", beside / f"{name}.json")
        scores = _scores(file) if file else _Scores({}, {})
        system = next(iter(scores.systems), "")
    read = (read_log(log), read_start(log)) if log else ({}, {})
    return Run(name, checkpoint, read[0], scores.systems.get(system, {}), read[1], scores.compared(system))
