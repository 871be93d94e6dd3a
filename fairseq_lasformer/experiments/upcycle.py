"""``lasformer upcycle``: a dense model becomes one that selects, in a few hundred updates of the selectors alone.

Three stages: a checkpoint with selectors at kappa 1 (:mod:`conversion.dense_start`); the selectors learn from the
frozen model's attention, and kappa falls as far as they hold it; if asked for, everything is trained on documents.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer.checkpoints.loading import identity, load
from fairseq_lasformer.conversion.calibration import scored
from fairseq_lasformer.conversion.dense_start import StartOptions, words_of_options, write_start
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.experiments.pipeline import Experiment
from fairseq_lasformer.experiments.settings import TrainOptions
from fairseq_lasformer.experiments.training import follow
from fairseq_lasformer.files import check_writable
from fairseq_lasformer.resume import Progress, key_of


@dataclass(frozen=True)
class UpcycleOptions:
    """How a dense model is upcycled.

    Attributes:
        updates: of the selectors alone.
        hold: the first of them, in which they learn with kappa at 1.
        train_all: updates of all weights afterwards; kappa then falls in these instead.
        threshold: share of the attention that the kept keys must hold before fewer are kept (t, eq 7).
        lr, train_all_lr: peak learning rates.
        max_tokens, update_freq: as of ``lasformer train``.
        options: further options of fairseq-train.
    """

    updates: int = 500
    hold: int = 200
    train_all: int = 0
    threshold: float = 0.95
    lr: float = 0.002
    train_all_lr: float = 0.0005
    max_tokens: int | None = None
    update_freq: int = 1
    options: tuple[str, ...] = ()

    def check(self) -> None:
        """Rejects impossible values.

        Raises:
            InputError: names the option.
        """
        if not 0 < self.hold < self.updates:
            raise InputError(f"--hold {self.hold}: expected at least 1 and less than --updates {self.updates}")
        if self.train_all < 0:
            raise InputError(f"--train-all {self.train_all}: expected a number of updates, or 0")
        if not 0 < self.threshold <= 1:
            raise InputError(f"--threshold {self.threshold}: expected a share in (0, 1]")

    def selectors(self, model: Mapping[str, Any], start: Path) -> TrainOptions:
        """The training of the selectors alone, which begins with a checkpoint of these model options."""
        falls = self.updates - self.hold
        hold = self.updates if self.train_all else self.hold
        quiet = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
        own = [*words_of_options({**model, **quiet}), "--select-only", "--select-gradient", "none"]
        own += ["--dropout", "0", "--supervise-all-above", "1.0"]
        return self._training(self.updates, self.lr, own, start, hold, falls)

    def everything(self, model: Mapping[str, Any], start: Path) -> TrainOptions:
        """The training of all weights."""
        own = [*words_of_options(model), "--dropout", str(model.get("dropout", 0.0))]
        return self._training(self.train_all, self.train_all_lr, own, start, 0, self.train_all)

    def _training(self, updates: int, lr: float, own: list[str], start: Path, hold: int, falls: int) -> TrainOptions:
        step = min(0.1, max(0.001, 1.5 / falls))  # from 1 to where it belongs in two thirds of the time
        words = ["--finetune-from-model", str(start.resolve()), *own, "--sparsity-mass", "attention"]
        words += ["--sparsity-threshold", str(self.threshold), "--sparsity-step", f"{step:.6f}"]
        words += ["--sparsity-warmup", str(hold)] if hold else []
        # by validation loss, the best model would be the one that has not begun to select
        words += ["--disable-validation", *self.options]
        return TrainOptions(
            arch="lasformer",
            max_update=updates,
            max_tokens=self.max_tokens,
            update_freq=self.update_freq,
            lr=lr,
            warmup=min(50, updates // 4 or 1),
            dropout=0.0,
            word_dropout=0.0,
            tie_embeddings="none",
            options=tuple(words),
        )


def upcycle(checkpoint: Path, data: Path, out: Path, start: StartOptions, options: UpcycleOptions) -> str:
    """Upcycles a model, or resumes where an earlier call stopped.

    Args:
        checkpoint: dense checkpoint of ours, see ``lasformer import`` and ``convert``.
        data: prepared folder of documents.
        out: folder for ``start.pt``, the checkpoints and logs.

    Returns:
        what was reached, for a terminal.

    Raises:
        InputError: the model or an option is unusable, or a training failed.
    """
    options.check()
    begun = out / "start.pt"
    if not checkpoint.is_file():
        raise InputError(f"{checkpoint}: no such checkpoint")
    check_writable(begun)
    progress = Progress(out, key_of("upcycle"))
    progress.open(f"{out}: holds something else; choose another folder")
    told: list[str] = []
    settings = key_of(identity(checkpoint), str(data.resolve()), str(start))
    progress.run("start", lambda: told.append(write_start(checkpoint, data, begun, start)), settings, tell=True)
    model = load(begun)["cfg"]["model"]
    alone = out / "selectors" if options.train_all else out
    stages = [("selectors", options.selectors(model, begun), alone)]
    if options.train_all:
        stages.append(("documents", options.everything(model, alone / "checkpoint_last.pt"), out))
    for name, training, folder in stages:
        command = training.command(data, folder)
        work = lambda c=command, f=folder, t=training, n=name: follow(c, f / "train.log", t.max_update, n)  # noqa: E731
        progress.run(name, work, key_of(settings, shlex.join(command[1:])), tell=True)
    last = out / "checkpoint_last.pt"
    before, after = (scored(path, data) for path in (begun, last))
    shares = ", ".join(f"{name} {share:.1%}" for name, share in after.kappas.items())
    told.append(
        f"{last}: {before.bits:.3f} bits per token before, {after.bits:.3f} after, on the same "
        f"{after.documents} documents of validation; kappa {after.mean_kappa:.1%} ({shares})"
    )
    return "\n".join([line for line in told if line] + [f"next: lasformer translate {out} FILE"])


class UpcycleTraining(NamedTuple):
    """The training of an :class:`Experiment` that upcycles a dense model."""

    checkpoint: Path
    start: StartOptions
    options: UpcycleOptions

    def settings(self, data: Path, folder: Path) -> str:
        return key_of(identity(self.checkpoint), str(data.resolve()), str(self.start), str(self.options))

    def run(self, experiment: Experiment) -> str:
        made = upcycle(self.checkpoint, experiment.data, experiment.folder, self.start, self.options)
        return made.partition("\nnext:")[0]
