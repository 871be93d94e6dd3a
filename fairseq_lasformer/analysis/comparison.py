"""Comparison table of runs: models, training and scores."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.analysis.cost import MODULES, checkpoint_patterns, mean_kappa, of_ours
from fairseq_lasformer.analysis.runs import Run
from fairseq_lasformer.checkpoints.loading import architecture, load
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.metrics import HEADLINE, METRICS
from fairseq_lasformer.machine import describe
from fairseq_lasformer.records import Json, Scores, State

SIGNIFICANT = 0.05
HIGHER, LOWER, NEAR_ONE = "higher", "lower", "near one"


class ComparisonRow(NamedTuple):
    """One row of the table.

    Attributes:
        cells: a text for each run.
        values: the number in each cell, if they can be compared; otherwise empty.
        better: :data:`HIGHER`, :data:`LOWER` or :data:`NEAR_ONE`; empty if none is better.
    """

    label: str
    cells: list[str]
    values: list[float | None] = []
    better: str = ""

    @property
    def best(self) -> int | None:
        """Index of the best run; None if no single run is best."""
        known = {i: v for i, v in enumerate(self.values) if v is not None}
        if len(known) < 2 or not self.better:
            return None
        distance: dict[str, Callable[[float], float]] = {
            HIGHER: lambda v: -v, LOWER: lambda v: v, NEAR_ONE: lambda v: abs(v - 1),
        }  # fmt: skip
        ranked = sorted(known, key=lambda i: distance[self.better](known[i]))
        first, second = (distance[self.better](known[i]) for i in ranked[:2])
        return ranked[0] if first < second else None


def comparison(runs: Sequence[Run]) -> str:
    """Return the table as HTML; empty if nothing is known about any run."""
    made = [*zip(("Model", "Training"), _facts(runs)), ("Scores", scores(runs))]
    groups = [(name, [row for row in rows if any(c != "–" for c in row.cells)]) for name, rows in made]
    groups = [(name, rows) for name, rows in groups if rows]
    if not groups:
        return ""
    head = "".join(f"<th scope=col>{html.escape(run.name)}</th>" for run in runs)
    body = ""
    for name, rows in groups:
        body += f"<tbody><tr class=group><th scope=rowgroup colspan={len(runs) + 1}>{name}</th></tr>"
        body += "".join(map(_row, rows)) + "</tbody>"
    return f"<table><thead><tr><td></td>{head}</tr></thead>{body}</table>{_legend(runs, groups[-1][1])}"


def _row(row: ComparisonRow) -> str:
    cells = (f"<td{' class=best' if i == row.best else ''}>{html.escape(c)}</td>" for i, c in enumerate(row.cells))
    return f"<tr><th scope=row>{html.escape(row.label)}</th>{''.join(cells)}</tr>"


def _legend(runs: Sequence[Run], last: Sequence[ComparisonRow]) -> str:
    """Return the meaning of bold and stars, if there are any."""
    lines = []
    if any(row.best is not None for row in last):
        lines.append("Bold: the best in a row.")
    tests = [run.compared for run in runs if run.compared.get("p") is not None]
    if tests:
        lines.append(
            f"±: half of the 95 % interval. *: differs from {tests[0]['against']} (p < {SIGNIFICANT}, paired bootstrap "
            f"over documents, {tests[0]['signature']})."
        )
    elif len([run for run in runs if run.scores]) > 1:
        lines.append(
            "For significance tests: lasformer score --bootstrap --json FILE, then lasformer report --scores FILE."
        )
    return f"<p class=note>{html.escape(' '.join(lines))}</p>" if lines else ""


def scores(runs: Sequence[Run]) -> list[ComparisonRow]:
    """Return the rows of scores."""

    def row(label: str, form: str, better: str, get: Callable[[Scores], float | None]) -> ComparisonRow:
        values = [get(run.scores) for run in runs]
        return ComparisonRow(label, ["–" if v is None else form.format(v) for v in values], values, better)

    rows = [row(metric.label, "{:.2f}", HIGHER, lambda s, k=key: s.get(k)) for key, metric in METRICS.items()]  # type: ignore[misc]
    headline = list(METRICS).index(HEADLINE)
    rows[headline] = rows[headline]._replace(
        cells=[c + _significance(run.compared) for c, run in zip(rows[headline].cells, runs)]
    )
    rows.append(row("length relative to the reference", "{:.3f}", NEAR_ONE, lambda s: s.get("length_ratio")))
    for what in ("omitted", "added"):
        counted = lambda s, w=what: None if "omissions" not in s else float(len(s["omissions"][w]))  # noqa: E731
        rows.append(row(f"lines {what}", "{:.0f}", LOWER, counted))
    for kind in dict.fromkeys(k for run in runs for k in run.scores.get("accuracy", {})):
        label = "words that need context, right" if kind == "all" else f"… {kind}"
        rows.append(row(label, "{:.1%}", HIGHER, lambda s, k=kind: s.get("accuracy", {}).get(k)))  # type: ignore[misc]
    for part in ("TC", "CP", "PT", "TCP"):
        rows.append(row(part, "{:.1f}", HIGHER, lambda s, p=part: s.get("tcp", {}).get(p)))  # type: ignore[misc]
    return rows


def _significance(compared: Scores) -> str:
    if not compared:
        return ""
    p = compared.get("p")
    return f" ± {compared.get('interval', 0.0):.2f}" + ("*" if p is not None and p < SIGNIFICANT else "")


def _facts(runs: Sequence[Run]) -> tuple[list[ComparisonRow], list[ComparisonRow]]:
    """Return what the checkpoints and logs say about the models and their training."""
    each = [({}, {}) if run.checkpoint is None else _of_checkpoint(load(run.checkpoint)) for run in runs]
    logs = [_of_log(run) for run in runs]
    training = [found[1] | logged for found, logged in zip(each, logs)]
    return _rows([found[0] for found in each]), _rows(training)


def _rows(facts: Sequence[dict[str, str]]) -> list[ComparisonRow]:
    labels = dict.fromkeys(label for found in facts for label in found)
    return [ComparisonRow(label, [found.get(label, "–") for found in facts]) for label in labels]


def _of_checkpoint(state: State) -> tuple[dict[str, str], dict[str, str]]:
    cfg = state.get("cfg") or {}
    model, task, optimization = (_plain(cfg.get(part)) for part in ("model", "task", "optimization"))
    dataset, common = _plain(cfg.get("dataset")), _plain(cfg.get("common"))
    name = architecture(state) or "unknown"
    if name.startswith("lasformer") and "dense" not in name and not any("selector" in key for key in state["model"]):
        name = f"{name}, dense (no selectors)"
    about = {"architecture": name, "parameters": f"{parameters(state['model']):,}"}
    if "encoder_layers" in model:
        about["layers"] = f"{model['encoder_layers']} + {model['decoder_layers']}, width {model['encoder_embed_dim']}"
    if of_ours(state):
        patterns = checkpoint_patterns(state)
        for module in MODULES:
            share = mean_kappa([p for p in patterns[module] if p.adaptive])
            if share is not None:
                about[f"κ, {module}"] = f"{share:.1%}"
    training = {}
    if task.get("data"):
        training = _of_data(Path(str(task["data"]).split(":")[0]))
    updates = (state.get("optimizer_history") or [{}])[-1].get("num_updates")
    if updates is not None:
        most = optimization.get("max_update") or 0
        training["updates"] = f"{updates:,}" + (f" of {most:,}" if most > updates else "")
    seconds = (state.get("extra_state") or {}).get("previous_training_time")
    if seconds:
        training["time"] = duration(seconds)
    if dataset.get("max_tokens"):
        freq = (optimization.get("update_freq") or [1])[-1]
        training["tokens per batch"] = f"{dataset['max_tokens']:,}" + (f" × {freq}" if freq > 1 else "")
    if "seed" in common:
        training["precision, seed"] = (
            f"{'fp16' if common.get('fp16') else 'bf16' if common.get('bf16') else 'fp32'}, {common['seed']}"
        )
    return about, training


def _of_data(folder: Path) -> dict[str, str]:
    found = {"data": f"{folder.parent.name}/{folder.name}"}
    try:
        info = SplitInfo.load(folder, "train")
    except InputError:
        info = None
    if info is not None:
        found["documents, sentences"] = f"{info.documents:,}, {info.sentences:,}"
    return found


def _of_log(run: Run) -> dict[str, str]:
    found = {}
    valid = [line for line in run.log.get("valid", []) if "nll_loss" in line]
    if valid:
        best = min(valid, key=lambda line: line["nll_loss"])
        found["best validation"] = f"{best['nll_loss']:.2f} bits per token after {best['num_updates']:,.0f} updates"
    speeds = [line["wps"] for line in run.log.get("train_inner", []) if line.get("wps")]
    if speeds:
        found["speed"] = f"{statistics.median(speeds):,.0f} tokens/s"
    if run.start:
        found["started"] = str(run.start.get("date", ""))[:16].replace("T", " ")
        found["machine"] = describe(run.start["machine"])
    if run.checkpoint is not None:
        written = datetime.fromtimestamp(run.checkpoint.stat().st_mtime, UTC).astimezone()
        found["checkpoint"] = f"{run.checkpoint.name}, {written:%Y-%m-%d %H:%M}"
    return found


def parameters(weights: State) -> int:
    """Return the number of parameters in a model's state; shared ones count once."""
    counted: dict[int, int] = {}
    for name, weight in weights.items():
        if not weight.is_floating_point() or name.endswith((".version", "._float_tensor")):
            continue
        # a checkpoint written on a GPU contains several copies of what is shared: the embedding tables
        twins = [name.replace("decoder.embed_tokens", "encoder.embed_tokens")]
        if name.endswith("output_projection.weight"):
            twins += [other for other in weights if ".embed_tokens." in other]
        known = (weights[twin] for twin in twins if twin != name and twin in weights)
        if not any(weight.shape == twin.shape and weight.equal(twin) for twin in known):
            counted[weight.data_ptr()] = weight.numel()
    return sum(counted.values())


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds, to two units."""
    hours, minutes, rest = int(seconds // 3600), int(seconds % 3600 // 60), round(seconds % 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _plain(values: object) -> Json:
    return dict(values) if isinstance(values, dict) else dict(vars(values)) if hasattr(values, "__dict__") else {}
