"""The pipeline from configuration to scores: train, average, translate, score. Each stage resumes where it stopped.

The demo, the ablation tables and the rows of the paper's main table are all runs of this pipeline.
"""

from __future__ import annotations

import filecmp
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lasformer.checkpoints.loading import average
from fairseq_lasformer.data.documents import Document
from fairseq_lasformer.data.hypotheses import read_hypotheses
from fairseq_lasformer.evaluation import tcp
from fairseq_lasformer.evaluation.scores import score
from fairseq_lasformer.experiments.training import override, train
from fairseq_lasformer.files import atomic_write
from fairseq_lasformer.jobs.generate import generate
from fairseq_lasformer.resume import Progress


@dataclass(frozen=True)
class Experiment:
    """One system, trained and evaluated in a folder of its own.

    Attributes:
        name: name of the system, for progress bars and tables.
        config: configuration file of the training.
        data: prepared folder.
        folder: folder of the checkpoints and, unless specified otherwise, of everything else.
        overrides: Hydra overrides of the training.
        generation: options of fairseq-generate.
        averaged: number of checkpoints before the last that are averaged with it; None uses the last checkpoint alone.
        shards, jobs: shards of the translation, and how many are translated in parallel; see :func:`generate`.
        log: log file of the training; by default, ``train.log`` in the folder.
        hypotheses: file for the translations; by default, ``hypotheses`` in the folder.
        hydra: folder for Hydra's files; by default, ``hydra`` in the folder.
    """

    name: str
    config: Path
    data: Path
    folder: Path
    overrides: tuple[str, ...] = ()
    generation: tuple[str, ...] = ()
    averaged: int | None = None
    shards: int = 4
    jobs: int = 1
    log: Path | None = None
    hypotheses: Path | None = None
    hydra: Path | None = None

    @property
    def checkpoint(self) -> Path:
        """The checkpoint used for translation."""
        return self.folder / ("checkpoint_last.pt" if self.averaged is None else "averaged.pt")

    @property
    def translation(self) -> Path:
        """The translated test set, one document per line."""
        return self.hypotheses or self.folder / "hypotheses"

    def stages(self) -> list[str]:
        """Names of the stages, in order."""
        names = ["train", "translate"] if self.averaged is None else ["train", "average", "translate"]
        return [f"{name} {self.name}" for name in names]

    def run(self, progress: Progress, stages: Sequence[str] = (), tell: bool = False) -> None:
        """Runs the stages that are not done yet.

        Args:
            progress: progress of the experiment.
            stages: some of :meth:`stages`; all of them if empty.
            tell: see :meth:`Progress.run`.

        Raises:
            InputError: a stage failed.
        """
        work = {"train": self._train, "average": self._average, "translate": self._translate}
        average = "" if self.averaged is None else str(self.averaged)
        settings = {"train": "", "average": average, "translate": " ".join((average, *self.generation)).strip()}
        for stage in stages or self.stages():
            kind = stage.split()[0]
            progress.run(stage, work[kind], settings[kind], tell)

    def score(self, references: Sequence[Document], annotations: tuple[Path, Path] | None = None) -> dict[str, Any]:
        """Scores the translation and writes the scores to ``scores.json``; see :func:`score`.

        Args:
            references: reference documents.
            annotations: candidates and tokenised reference of TCP, which is then among the scores as ``tcp``.
        """
        hypotheses = read_hypotheses(self.translation, allow_empty=True)
        scores = score(hypotheses, references)
        if annotations is not None:
            scores["tcp"] = tcp.evaluate(hypotheses, *annotations)
        atomic_write(self.folder / "scores.json", json.dumps({"systems": {self.name: scores}}, indent=1) + "\n")
        return scores

    def _train(self) -> None:
        folder = self.folder.resolve()
        places = [override("task.data", self.data.resolve()), override("checkpoint.save_dir", folder)]
        places.append(override("hydra.run.dir", (self.hydra or folder / "hydra").resolve()))
        train(self.config, [*self.overrides, *places], self.log or self.folder / "train.log", self.name)

    def _average(self) -> None:
        last = self.folder / "checkpoint_last.pt"
        earlier = sorted(self.folder.glob("checkpoint_*_*.pt"), key=_updates)[-self.averaged :] if self.averaged else []
        if earlier and filecmp.cmp(earlier[-1], last, shallow=False):
            earlier.pop()
        average([*earlier, last], self.checkpoint)  # kappa is taken from the last one

    def _translate(self) -> None:
        options = list(self.generation)
        generate(self.data, self.checkpoint, self.translation, shards=self.shards, options=options, jobs=self.jobs)


def _updates(checkpoint: Path) -> int:
    """The number of updates in ``checkpoint_EPOCH_UPDATES.pt``."""
    found = re.fullmatch(r"checkpoint_\d+_(\d+)\.pt", checkpoint.name)
    return int(found[1]) if found else -1
