"""Outputs of a training run: its log, and the checkpoint that translates."""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.checkpoints.loading import CHECKPOINTS

# "| train_inner | {…}" of fairseq-train, "[train_inner][INFO] - {…}" of fairseq-hydra-train, "{…}" of --log-file
_LOG_LINE = re.compile(r"(?:^|[|\[] ?(?:train_inner|train|valid)(?: \||\]\[INFO\] -) )(\{\".*\})")


_STARTED = "[started] "


class Run(NamedTuple):
    """One run: its name, and the checkpoint used for translation, the best if the run was validated."""

    name: str
    checkpoint: Path


def started(command: Sequence[str], machine: Json) -> str:
    """Return the line that starts the log of a training; :func:`read_start` reads it."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return _STARTED + json.dumps({"date": now, "command": list(command), "machine": machine}) + "\n"


def read_start(path: Path) -> Json:
    """Return what the log of a training says about its last start; empty if it says nothing."""
    start: Json = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(_STARTED):
            try:
                values = json.loads(line.removeprefix(_STARTED))
            except ValueError:
                continue
            if isinstance(values, dict) and isinstance(values.get("machine"), dict):
                start = values
    return start


def read_log(path: Path) -> dict[str, list[dict[str, float]]]:
    """Return the numbers in a fairseq log written with ``--log-format json``, by kind, in order of updates.

    If several lines refer to the same update (in a run that was killed and resumed), the last one counts.
    """
    by_kind: dict[str, dict[float, dict[str, float]]] = {}
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
            by_kind.setdefault(kind, {})[numbers["num_updates"]] = numbers
    return {kind: [lines[n] for n in sorted(lines)] for kind, lines in by_kind.items()}


def _by_group(values: Json, prefix: str) -> Iterator[tuple[str, str]]:
    """Take apart what a log line has of every group; see :func:`plugin.log_lines.joined`."""
    for key, word in values.items():
        if not key.endswith("_by_group"):
            continue
        name = key.removeprefix(prefix).removesuffix("_by_group")
        for part in str(word).split(";"):
            module, _, shares = part.partition(":")
            yield from ((f"{name}_{module}_{i}", share) for i, share in enumerate(shares.split(",")))


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read the runs in a list of folders.

    Each folder is one of checkpoints, or contains some (that of ``make demo``).
    """
    runs = []
    for path in paths:
        if not path.is_dir():
            raise InputError(f"{path}: no such folder; give folders of checkpoints, or one of examples/demo.py")
        trainings = [run for folder in (path, *sorted(path.iterdir())) if (run := _run(folder)) is not None]
        if not trainings:
            raise InputError(f"{path}: contains no checkpoint; nothing to report")
        runs += trainings
    names = [run.name for run in runs]
    # folders with the same name are distinguished by their paths
    return [run if names.count(run.name) == 1 else run._replace(name=str(run.checkpoint.parent)) for run in runs]


def _run(folder: Path) -> Run | None:
    checkpoint = next((folder / name for name in CHECKPOINTS if (folder / name).is_file()), None)
    return None if checkpoint is None else Run(folder.resolve().name, checkpoint)
