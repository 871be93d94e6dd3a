"""The pipeline from configuration to scores: train, average, translate, score. Each stage resumes where it stopped.

The demo, the ablation tables, the rows of the paper's main table and ``lasformer run`` are all runs of this pipeline.
"""

from __future__ import annotations

import filecmp
import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.base.records import Json, Scores
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.checkpoints.loading import average, chosen, identity
from fairseq_lasformer.data.subwords import data_identity
from fairseq_lasformer.evaluation import tcp
from fairseq_lasformer.evaluation.scores import score
from fairseq_lasformer.experiments.card import write_card
from fairseq_lasformer.experiments.settings import TrainOptions
from fairseq_lasformer.experiments.train import other_data, train_own
from fairseq_lasformer.experiments.training import override, train
from fairseq_lasformer.jobs.collecting import summary
from fairseq_lasformer.jobs.generate import generate
from fairseq_lasformer.text.documents import Document
from fairseq_lasformer.text.hypotheses import read_hypotheses


class Training(Protocol):
    """Training of a model."""

    def settings(self, data: Path, folder: Path) -> str:
        """Return the settings that the training depends on, besides those that identify its folder."""
        ...

    def run(self, experiment: Experiment) -> str:
        """Train, or resume where an earlier call stopped; return a summary for a terminal."""
        ...


class ConfiguredTraining(NamedTuple):
    """Training by a configuration file of fairseq-hydra-train."""

    config: Path
    overrides: tuple[str, ...] = ()
    hydra: Path | None = None  # folder for Hydra's files; by default, `hydra` in the folder of the checkpoints

    def settings(self, data: Path, folder: Path) -> str:
        return ""

    def run(self, experiment: Experiment) -> str:
        folder = experiment.folder.resolve()
        places = [override("task.data", experiment.data.resolve()), override("checkpoint.save_dir", folder)]
        places.append(override("hydra.run.dir", (self.hydra or folder / "hydra").resolve()))
        train(self.config, [*self.overrides, *places], experiment.log or folder / "train.log", experiment.name)
        return ""


class OptionsTraining(NamedTuple):
    """Training by the options of ``lasformer train``."""

    options: TrainOptions

    def settings(self, data: Path, folder: Path) -> str:
        return shlex.join(self.options.command(data, folder)[1:])

    def run(self, experiment: Experiment) -> str:
        return train_own(experiment.data, experiment.folder, self.options).partition("\nnext:")[0]


@dataclass(frozen=True)
class Experiment:
    """One system, trained and evaluated in its own folder."""

    name: str  # name of the system, for progress bars and tables
    training: Training
    data: Path
    folder: Path  # folder of the checkpoints and, unless specified otherwise, of everything else
    generation: tuple[str, ...] = ()
    # number of checkpoints before the last that are averaged with it; None uses one checkpoint alone
    averaged: int | None = None
    best: bool = False  # whether, without averaging, the best checkpoint is used instead of the last
    ema: bool = False  # whether the moving average in that checkpoint is used instead of its weights
    # shards, jobs: shards of the translation, and how many are translated in parallel; see `generate`
    shards: int = 4
    jobs: int = 1
    log: Path | None = None  # log file of the training; by default, `train.log` in the folder
    hypotheses: Path | None = None  # file for the translations; by default, `hypotheses` in the folder
    form: str = "lines"  # form of that file, see `generate`

    @property
    def checkpoint(self) -> Path:
        """Checkpoint used for translation."""
        return self.folder / "averaged.pt" if self._averages else self._trained

    @property
    def _averages(self) -> bool:
        return self.averaged is not None or self.ema

    @property
    def _trained(self) -> Path:
        """Checkpoint that results from training, without averaging."""
        return chosen(self.folder) if self.best else self.folder / "checkpoint_last.pt"

    @property
    def translation(self) -> Path:
        """Translated test set, one document per line."""
        return self.hypotheses or self.folder / "hypotheses"

    def stages(self) -> list[str]:
        """Return the names of the stages, in order."""
        names = ["train", "average", "translate"] if self._averages else ["train", "translate"]
        return [f"{name} {self.name}" for name in names]

    def run(
        self,
        progress: Progress,
        stages: Sequence[str] = (),
        tell: bool = False,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        """Run the stages that are not done yet.

        Args:
            stages: some of :meth:`stages`; all of them if empty.
            tell: see :meth:`Progress.run`.
            say: called with the message of a stage.
        """
        progress.bind(f"data {self.name}", data_identity(self.data), other_data(self.folder, self.data))
        work = {"train": self._train, "average": self._average, "translate": self._translate}
        for stage in stages or self.stages():
            kind = stage.split()[0]

            def do(kind: str = kind) -> None:
                if text := work[kind]():
                    say(text)

            progress.run(stage, do, self._settings(kind), tell)

    def _settings(self, stage: str) -> str:
        """Return the settings that a stage depends on, besides those that identify the folder."""
        average = "" if self.averaged is None else str(self.averaged)
        if stage == "train":
            return self.training.settings(self.data, self.folder)
        if stage == "average":
            return average if self.averaged is not None else key_of("ema", identity(self._trained))
        settings = " ".join((average, *self.generation)).strip()
        return key_of(settings, identity(self.checkpoint)) if self.best else settings

    def score(self, references: Sequence[Document], annotations: tuple[Path, Path] | None = None) -> Scores:
        """Score the translation and write the scores to ``scores.json``; see :func:`score`.

        Args:
            annotations: candidates and tokenised reference of TCP, which is then among the scores as ``tcp``.
        """
        many = len(references) if self.form == "raw" else None
        hypotheses = read_hypotheses(self.translation, allow_empty=True, n_documents=many)
        scores = score(hypotheses, references)
        if annotations is not None:
            scores["tcp"] = tcp.evaluate(hypotheses, *annotations)
        atomic_write(self.folder / "scores.json", json.dumps({"systems": {self.name: scores}}, indent=1) + "\n")
        write_card(self.folder, self.data)
        return scores

    def _train(self) -> str:
        return self.training.run(self)

    def _average(self) -> str:
        if self.averaged is None:
            average([self._trained], self.checkpoint, ema=True)
            return ""
        last = self.folder / "checkpoint_last.pt"
        earlier = sorted(self.folder.glob("checkpoint_*_*.pt"), key=_updates)[-self.averaged :] if self.averaged else []
        if earlier and filecmp.cmp(earlier[-1], last, shallow=False):
            earlier.pop()
        average([*earlier, last], self.checkpoint)  # kappa is taken from the last one
        return ""

    def _translate(self) -> str:
        work: Json = {"shards": self.shards, "options": self.generation, "jobs": self.jobs, "form": self.form}
        done = generate(self.data, self.checkpoint, self.translation, **work)
        return "" if done is None else f"{self.translation}: {summary(done, self.form)}"


def _updates(checkpoint: Path) -> int:
    """Return the number of updates in ``checkpoint_EPOCH_UPDATES.pt``."""
    match = re.fullmatch(r"checkpoint_\d+_(\d+)\.pt", checkpoint.name)
    return int(match[1]) if match else -1
