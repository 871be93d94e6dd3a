"""The paper's ablation tables: runs of one configuration with a few options changed."""

import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from fairseq_lasformer.analysis.cost import checkpoint_cost, checkpoint_patterns, mean_kappa
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.checkpoints.loading import load, updates
from fairseq_lasformer.data.subwords import data_identity
from fairseq_lasformer.evaluation.metrics import HEADLINE, METRICS
from fairseq_lasformer.evaluation.probe import Probe, accuracy, judge
from fairseq_lasformer.executors import Report, Worker
from fairseq_lasformer.experiments.pipeline import ConfiguredTraining, Experiment
from fairseq_lasformer.experiments.training import read_config
from fairseq_lasformer.plugin.placement import MODULES
from fairseq_lasformer.text.documents import Document
from fairseq_lasformer.text.hypotheses import read_hypotheses

WINDOW = 20
_OTHER = "{}: contains a run with a different configuration, reference or options; remove it, or choose another --out"
# Options varied in tables 5, 6 and 7 (symbol and option), and their default values.
VARIED = {
    5: ("t", "model.sparsity_threshold", ("0.8", "0.85", "0.9", "0.95", "0.99")),
    6: ("d_s", "model.select_dim", ("16", "32", "64", "128")),
    7: ("r", "model.select_share", ("1", "2", "3", "6")),
}


class Row(NamedTuple):
    """One run of a table: its label, and the options that differ from the configuration."""

    label: str
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        return "".join(c if c.isalnum() or c in ".-" else "_" for c in self.label)


def rows(table: int, cfg: DictConfig, values: Sequence[str] = (), modules: Sequence[str] = MODULES) -> list[Row]:
    """Return the runs of one table.

    Args:
        table: 1 (other ways to attend), 3 (kappa by module: selection in each module alone, and in all of them), 4
            (components of the method), 5 (t), 6 (d_s) or 7 (r).
        values: values to try in table 5, 6 or 7, instead of those in :data:`VARIED`; in table 1, the number of keys.
        modules: modules in which the other ways of table 1 are used; the rest have full attention.
    """
    if tuple(modules) != MODULES and table != 1:
        raise InputError(f"--modules {','.join(modules)}: only in table 1")
    if table == 1:
        if unknown := set(modules) - set(MODULES):
            raise InputError(f"--modules: no module {', '.join(sorted(unknown))}; expected {', '.join(MODULES)}")
        others = [Row(c.label, c.overrides) for c in competitors(_keys(values), modules=modules)]
        return [*others[:1], Row("Lasformer"), *others[1:]]
    if table == 3:
        dense = Row("Transformer", ("++model.select_modules=none",))
        alone = [Row(f"{m} alone", (f"++model.select_modules={m}",)) for m in MODULES]
        return [dense, *alone, Row("Lasformer")]
    if table == 4:
        return [
            Row("Lasformer"),
            Row("literal gradient", ("++model.select_gradient=straight-through",)),
            Row(f"window of {WINDOW}", (f"++model.select_pattern=window:{WINDOW}",)),
            Row("no KL (alpha 0)", ("++criterion.selection_weight=0",)),
            Row("no re-parameter trick", ("++model.select_gradient=none",)),
            Row("no sharing (r 1)", ("++model.select_share=1",)),
            Row("selector input detached", ("++model.select_input=detached",)),
        ]
    if table not in VARIED:
        raise InputError(f"--table {table}: the tables are 1, 3, 4, 5, 6 and 7")
    name, option, usual = VARIED[table]
    if table == 7 and not values:
        deepest = max(int(cfg.model.get(f"{side}_layers", 6)) for side in ("encoder", "decoder"))
        usual = tuple(v for v in usual if int(v) <= deepest)
    return [Row(f"{name} {v}", (f"++{option}={v}",)) for v in values or usual]


def _keys(values: Sequence[str]) -> int:
    if not values:
        return KEYS
    if len(values) > 1 or not values[0].isdecimal() or not int(values[0]):
        raise InputError(f"--values {','.join(values)}: in table 1, expected the number of keys per query, at least 1")
    return int(values[0])


@dataclass(frozen=True)
class Ablation:
    """Settings shared by the runs of a table."""

    config: Path
    reference: list[Document]  # reference of the test set
    options: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()  # context-dependent words of the reference, by which runs are also judged

    @cached_property
    def cfg(self) -> DictConfig:
        """Composed configuration."""
        return read_config(self.config)

    def progress(self, row: Row, folder: Path) -> Progress:
        """Return the progress of a run, keyed by everything its result depends on, but not by where it was started."""
        config: Any = OmegaConf.to_container(self.cfg)
        config["task"]["data"] = data_identity(self.data)
        config["common"].pop("user_dir", None)
        config["checkpoint"].pop("save_dir", None)
        probes = (self.probes,) if self.probes else ()
        return Progress(folder, key_of(config, self.reference, self.options, self.overrides, row.overrides, *probes))

    def experiment(self, row: Row, folder: Path) -> Experiment:
        """Return the experiment of one run, in its own folder."""
        overrides = (*self.overrides, *row.overrides)
        training = ConfiguredTraining(self.config, overrides)
        return Experiment(row.label, training, self.data, folder, self.options)

    @property
    def data(self) -> Path:
        """Prepared folder: the one given by an override, or else by the configuration."""
        given = [
            o.lstrip("+").removeprefix("task.data=").strip("'\"")
            for o in self.overrides
            if o.lstrip("+").startswith("task.data=")
        ]
        return Path(given[-1] if given else str(self.cfg.task.data))


def finished(ablation: Ablation, row: Row, folder: Path) -> Scores | None:
    """Return the result of a run; None if it has not finished."""
    ablation.progress(row, folder).check(_OTHER.format(folder))
    try:
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def run(ablation: Ablation, row: Row, folder: Path) -> Scores:
    """Train one run in its own folder, translate the test set and score it; resume where it stopped.

    Args:
        ablation: settings shared by the runs.

    Returns:
        ``label``, ``kappa`` by module (1 for full attention, None for patterns without a kappa), the headline metric,
        ``updates``, ``seconds`` of training and, with probes, what :func:`accuracy` returns; also written to
        ``result.json``.
    """
    if (result := finished(ablation, row, folder)) is not None:
        return result
    progress, experiment = ablation.progress(row, folder), ablation.experiment(row, folder)
    progress.open(_OTHER.format(folder))
    experiment.run(progress)
    scores, state = experiment.score(ablation.reference), load(experiment.checkpoint)
    result = {
        "label": row.label,
        "kappa": {module: mean_kappa(patterns) for module, patterns in checkpoint_patterns(state).items()},
        HEADLINE: scores[HEADLINE],
        "updates": updates(state),
        "seconds": state["extra_state"].get("previous_training_time"),
    }
    if ablation.probes:
        translated = read_hypotheses(experiment.translation, allow_empty=True)
        result |= accuracy(ablation.probes, judge(ablation.probes, translated, ablation.reference))
    atomic_write(folder / "result.json", json.dumps(result, indent=1) + "\n")
    return result


class AblationRun(Worker[Row, Scores]):
    """Worker that does the runs of a table, each in its own folder.

    Args:
        ablation: settings shared by the runs.
        folder: folder that contains the folders of the runs.
    """

    def __init__(self, ablation: Ablation, folder: Path) -> None:
        self.ablation, self.folder = ablation, folder

    def __call__(self, item: Row, report: Report) -> Scores:
        result = run(self.ablation, item, self.folder / item.folder)
        report(1)
        return result


def submit(launcher: str, command: Sequence[str]) -> None:
    """Pass the command of one run, as a single argument, to a launcher such as ``sbatch --gres=gpu:1 --wrap``.

    Args:
        launcher: command line of the launcher.
    """
    try:
        words = shlex.split(launcher)
        if not words:
            raise ValueError("names no command")
        subprocess.run([*words, shlex.join(command)], check=True)
    except (OSError, ValueError, subprocess.CalledProcessError) as e:
        raise InputError(f"--submit {launcher}: {e}") from e


LENGTH = 1024
"""Number of tokens for which a table shows the cost."""


def text(ablation: Ablation, table: int, rows: Sequence[Row], folder: Path) -> str:
    """Format the table for a terminal; unfinished runs have no figures.

    Args:
        ablation: settings shared by the runs.
        table: number of the table.
        folder: folder that contains the folders of the runs.
    """
    width = max(len(row.label) for row in rows) + 2
    head = f"{f'table {table}':<{width}}" + "".join(f"{f'κ {m}':>11}" for m in MODULES)
    right = f"{'context':>9}{'seconds':>9}" if ablation.probes else ""
    lines = [head + f"{'cost':>9}{'+ proj.':>9}{METRICS[HEADLINE].column:>9}{right}"]
    for row in rows:
        try:
            result = finished(ablation, row, folder / row.folder)
        except InputError:
            lines.append(f"{row.label:<{width}}  of a different configuration, reference or options")
            continue
        if result is None:
            lines.append(f"{row.label:<{width}}  not finished")
            continue
        cost = next(
            c
            for c in checkpoint_cost(ablation.experiment(row, folder / row.folder).checkpoint, [LENGTH])
            if c.module == "all"
        )
        shares = "".join(f"{'-' if (k := result['kappa'][m]) is None else f'{k:.1%}':>11}" for m in MODULES)
        costs = f"{cost.ratio:>9.1%}{cost.ratio_with_projections:>9.1%}"
        if ablation.probes:
            right = f"{result['accuracy']['all']:>9.1%}{result['seconds'] or 0:>9.0f}"
        lines.append(f"{row.label:<{width}}{shares}{costs}{result[HEADLINE]:>9.2f}{right}")
    lines.append(
        f"cost: attention's multiply-accumulates, relative to the dense Transformer's, at {LENGTH:,} tokens; + proj.: "
        "with the projections to queries, keys and values"
        + "; context: correct words among those that depend on an earlier sentence; seconds: training time"
        * bool(ablation.probes)
    )
    return "\n".join(lines)


KEYS = 80
"""Keys per query: as many as Lasformer keeps of a document of average length on the demo corpus."""


class Competitor(NamedTuple):
    """A way to attend: its label, and its model options."""

    label: str
    pattern: str
    modules: str = ",".join(MODULES)

    @property
    def overrides(self) -> tuple[str, ...]:
        return (
            f"++model.select_pattern='{self.pattern}'",
            f"++model.select_modules='{self.modules}'",
            "++criterion.selection_weight=0",
        )


def competitors(keys: int = KEYS, length: int = 0, modules: Sequence[str] = MODULES) -> list[Competitor]:
    """Return all other ways to attend, with about ``keys`` keys per query.

    Args:
        length: tokens of the texts (default: four times ``keys``).
        modules: where they are used; the rest has full attention. ``linformer`` is never used in the decoder.

    Global tokens, random keys and buckets get a share of ``keys``. Ways without keys have as many rows or features.
    """
    buckets = 2 * max(1, round((length or 4 * keys) / keys))
    numbers = [
        ("full", ""),
        ("window", str(keys)),
        ("sparse_strided", f"stride={max(1, keys * 2 // 5)}"),
        ("sparse_fixed", f"stride={max(3, keys * 4 // 5)},summary=3"),
        ("transformer_xl", f"segment={max(1, keys * 2 // 3)}"),
        ("longformer", f"window={max(1, keys // 2)}"),
        ("etc", f"window={max(1, keys // 2)}"),
        ("bigbird", f"window={max(1, keys * 3 // 4)},global=2,random={max(1, keys // 5)}"),
        ("reformer", f"buckets={buckets},rounds=2"),
        ("performer", f"features={keys}"),
        ("rfa", f"features={max(1, keys // 2)}"),
        ("luna", f"rows={max(1, keys // 2)}"),
    ]
    ways = [
        Competitor(name if name != "full" else "Transformer", f"{name}:{n}".rstrip(":"), ",".join(modules))
        for name, n in numbers
    ]
    linformer = ",".join(m for m in modules if m != "decoder") or "none"
    return [*ways, Competitor("linformer", f"linformer:rows={keys},length={max(2048, length)}", linformer)]
