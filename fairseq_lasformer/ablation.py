"""The paper's tables of ablations, as runs of one configuration with a few options changed."""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer.checkpoints import load, updates
from fairseq_lasformer.config import MODULES
from fairseq_lasformer.cost import checkpoint_cost, kappas
from fairseq_lasformer.documents import Document
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.hypotheses import read_hypotheses
from fairseq_lasformer.evaluation.scores import score
from fairseq_lasformer.files import atomic_write
from fairseq_lasformer.generate import generate
from fairseq_lasformer.training import override, read_config, train

WINDOW = 20
CHECKPOINT = "checkpoint_last.pt"
# What tables 5, 6 and 7 vary, and the values tried unless others are given.
VARIED = {
    5: ("t", "model.sparsity_threshold", ("0.8", "0.85", "0.9", "0.95", "0.99")),
    6: ("d_s", "model.select_dim", ("16", "32", "64", "128")),
    7: ("r", "model.select_share", ("1", "2", "3", "6")),
}


class Row(NamedTuple):
    """One run of a table: its label, and the options in which it differs from the configuration."""

    label: str
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return "".join(c if c.isalnum() or c in ".-" else "_" for c in self.label)


def rows(table: int, cfg: Any, values: Sequence[str] = ()) -> list[Row]:
    """The runs of one table.

    Args:
        table: 3 (kappa by module: each module alone selecting, and all), 4 (what the method consists of), 5 (t),
            6 (d_s) or 7 (r). values: of table 5, 6 or 7, instead of :data:`VARIED`'s.
    """
    if table == 3:
        dense = Row("Transformer", ("++model.select_modules=none",))
        alone = [Row(f"{m} alone", (f"++model.select_modules={m}",)) for m in MODULES]
        return [dense, *alone, Row("Lasformer")]
    if table == 4:
        return [
            Row("Lasformer"),
            Row(f"window of {WINDOW}", (f"++model.select_window={WINDOW}",)),
            Row("no KL (alpha 0)", ("++criterion.selection_weight=0",)),
            Row("no re-parameter trick", ("++model.select_gradient=none",)),
            Row("no sharing (r 1)", ("++model.select_share=1",)),
        ]
    if table not in VARIED:
        raise InputError(f"--table {table}: the tables are 3, 4, 5, 6 and 7")
    name, option, usual = VARIED[table]
    if table == 7 and not values:
        deepest = max(int(cfg.model.get(f"{side}_layers", 6)) for side in ("encoder", "decoder"))
        usual = tuple(v for v in usual if int(v) <= deepest)
    return [Row(f"{name} {v}", (f"++{option}={v}",)) for v in values or usual]


class Plan(NamedTuple):
    """What the runs of a table have in common.

    Attributes:
        config: configuration file. reference: test set. options: of fairseq-generate. overrides: Hydra's.
    """

    config: Path
    reference: list[Document]
    options: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()

    def key(self, row: Row) -> str:
        """Hash of all that a run's result depends on."""
        told = [self.config.read_text(encoding="utf-8"), self.reference, self.options, self.overrides, row.overrides]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()

    @property
    def data(self) -> Path:
        """The prepared folder: the configuration's, or an override's."""
        given = [
            o.lstrip("+").removeprefix("task.data=").strip("'\"")
            for o in self.overrides
            if o.lstrip("+").startswith("task.data=")
        ]
        return Path(given[-1] if given else str(read_config(self.config).task.data))


def finished(plan: Plan, row: Row, folder: Path) -> dict[str, Any] | None:
    """A run's result, None if it has not been finished.

    Raises:
        InputError: the folder holds a run of other settings.
    """
    mark = folder / "key"
    if mark.exists() and mark.read_text(encoding="utf-8") != plan.key(row):
        raise InputError(
            f"{folder}: holds a run with another configuration, reference or options; remove it, or choose another "
            "--out"
        )
    try:
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def run(plan: Plan, row: Row, folder: Path) -> dict[str, Any]:
    """Trains, translates the test set and scores one run, in a folder of its own; resumes where it stopped.

    Returns:
        ``label``, ``kappa`` by module (1 where all keys are kept, None for a fixed window), ``d_bleu``, ``updates``;
        also in ``result.json``.

    Raises:
        InputError: see :func:`finished`; a step failed.
    """
    if (result := finished(plan, row, folder)) is not None:
        return result
    atomic_write(folder / "key", plan.key(row))
    place = folder.resolve()
    own = [override("checkpoint.save_dir", place), override("hydra.run.dir", place / "hydra")]
    if not (folder / "trained").exists():
        train(plan.config, [*plan.overrides, *row.overrides, *own], folder / "train.log", row.label)
        atomic_write(folder / "trained", "")
    checkpoint, hypotheses = folder / CHECKPOINT, folder / "hypotheses"
    if not hypotheses.exists():
        generate(plan.data, checkpoint, hypotheses, options=plan.options)
    scores = score(read_hypotheses(hypotheses, allow_empty=True), plan.reference)
    state = load(checkpoint)
    windowed = any("select_window" in o for o in (*plan.overrides, *row.overrides))
    result = {
        "label": row.label,
        "kappa": {m: sum(k) / len(k) if k else None if windowed else 1.0 for m, k in kappas(state["model"]).items()},
        "d_bleu": scores["d_bleu"],
        "updates": updates(state),
    }
    atomic_write(folder / "scores.json", json.dumps({"systems": {row.label: scores}}, indent=1) + "\n")
    atomic_write(folder / "result.json", json.dumps(result, indent=1) + "\n")
    return result


def submit(launcher: str, command: Sequence[str]) -> None:
    """Hands one run's command, as one argument, to a launcher such as ``sbatch --gres=gpu:1 --wrap``.

    Raises:
        InputError: the launcher cannot be run, or fails.
    """
    try:
        words = shlex.split(launcher)
        if not words:
            raise ValueError("names no command")
        subprocess.run([*words, shlex.join(command)], check=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as e:
        raise InputError(f"--submit {launcher}: {e}") from e


def text(plan: Plan, table: int, rows: Sequence[Row], folder: Path, length: int) -> str:
    """The table, for a terminal; runs that are not finished have no figures. ``length``: tokens, for the cost."""
    width = max(len(row.label) for row in rows) + 2
    head = f"{f'table {table}':<{width}}" + "".join(f"{f'κ {m}':>11}" for m in MODULES)
    lines = [head + f"{'cost':>9}{'+ proj.':>9}{'d-BLEU':>9}"]
    for row in rows:
        result = finished(plan, row, folder / row.folder)
        if result is None:
            lines.append(f"{row.label:<{width}}  not finished")
            continue
        cost = next(c for c in checkpoint_cost(folder / row.folder / CHECKPOINT, [length]) if c.module == "all")
        shares = "".join(f"{'-' if (k := result['kappa'][m]) is None else f'{k:.1%}':>11}" for m in MODULES)
        costs = f"{cost.ratio:>9.1%}{cost.ratio_with_projections:>9.1%}"
        lines.append(f"{row.label:<{width}}{shares}{costs}{result['d_bleu']:>9.2f}")
    lines.append(
        f"cost: attention's multiply-accumulates, relative to the dense Transformer's, at {length} tokens; + proj.: "
        "with the projections to queries, keys and values"
    )
    return "\n".join(lines)
