"""The common row format of all benchmarks, its table and JSON file, and interleaved measurement."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from tqdm import tqdm

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.base.machine import machine


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        case: the conditions, the same for all systems, such as ``T=4096``.
        system: the measured system.
        metric: ``seconds``, ``steps/s``, ``peak GiB``, …
        value: value of the metric.
        compared: whether the table shows its ratio to the baselines.
        about: further facts.
    """

    case: str
    system: str
    metric: str
    value: float
    compared: bool = True
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """A key unique among the rows of a benchmark."""
        return self.case, self.system, self.metric


def in_turns(work: Mapping[str, Callable[[], float]], repeat: int, what: str) -> dict[str, float]:
    """Return the median of ``repeat`` measurements of each system; systems take turns, after one warm-up round.

    Args:
        work: for each system, a function that returns one measurement.
        repeat: number of measured rounds.
        what: description for the progress bar.
    """
    figures: dict[str, list[float]] = {name: [] for name in work}
    for turn in tqdm(range(repeat + 1), desc=what, unit=" rounds"):
        for name, call in work.items():
            figure = call()
            if turn:
                figures[name].append(figure)
    return {name: statistics.median(values) for name, values in figures.items()}


def save(
    path: Path,
    benchmark: str,
    rows: Sequence[Row],
    options: Mapping[str, str],
    ratios: Mapping[str, str] | None = None,
) -> None:
    """Write ``{"benchmark", "machine", "options", "rows"}`` as JSON.

    Args:
        path: the file.
        benchmark: its name.
        rows: the figures.
        options: of the command that measured them.
        ratios: entries that every compared row gets, and the system whose figure for the same case is the divisor.
    """
    values = {(row.case, row.system, row.metric): row.value for row in rows}
    written = []
    for row in rows:
        entry = asdict(row)
        entry |= entry.pop("about")
        for name, system in (ratios or {}).items():
            base = values.get((row.case, system, row.metric))
            if row.compared and base:
                entry[name] = row.value / base
        written.append(entry)
    report = {"benchmark": benchmark, "machine": machine(), "options": dict(options), "rows": written}
    atomic_write(path, json.dumps(report, indent=1) + "\n")


def load(path: Path, benchmark: str, options: Mapping[str, str]) -> list[Row]:
    """Return the rows of an interrupted run of the same command on the same machine; none if there was no run.

    The last system's rows are left out, because it may have been interrupted between two figures.

    Raises:
        InputError: the file is from a different benchmark, options or machine, or damaged.
    """
    if not path.exists():
        return []
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        names = {field.name for field in fields(Row)} - {"about"}
        entries = [{k: v for k, v in entry.items() if not k.startswith("ratio_to_")} for entry in report["rows"]]
        rows = [Row(**{k: e[k] for k in names}, about={k: v for k, v in e.items() if k not in names}) for e in entries]
        same = {"benchmark": benchmark, "options": dict(options), "machine": machine()}
        other = [what for what, value in same.items() if report[what] != value]
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InputError(f"{path}: not the rows of a benchmark ({type(e).__name__}: {e}); leave out --resume") from None
    if other:
        raise InputError(f"{path}: differs in {' and '.join(other)}; leave out --resume, or choose another --out")
    return [row for row in rows if (row.case, row.system) != (rows[-1].case, rows[-1].system)]


def table(rows: Sequence[Row], baselines: Sequence[str]) -> str:
    """Format one line per case and system, one column per metric, and ratios to every baseline of the same case."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    values = {(row.case, row.system, row.metric): row for row in rows}
    lines = [["case", "system"]]
    present = [b for b in baselines if any(row.system == b for row in rows)]
    for metric in metrics:
        compared = any(row.compared for row in rows if row.metric == metric)
        lines[0] += [metric, *(f"/{b}" for b in present if compared)]
    for case, system in dict.fromkeys((row.case, row.system) for row in rows):
        line = [case, system]
        for metric in metrics:
            row = values.get((case, system, metric))
            line.append("-" if row is None else f"{row.value:.4g}")
            if any(r.compared for r in rows if r.metric == metric):
                bases = [values.get((case, baseline, metric)) for baseline in present]
                line += ["-" if row is None or b is None else f"{row.value / b.value:.2f}" for b in bases]
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))).rstrip()
        for line in lines
    )
