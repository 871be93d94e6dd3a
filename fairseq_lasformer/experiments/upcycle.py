"""``lasformer upcycle``: a dense model becomes one that selects, in a few hundred updates of the selectors alone.

A checkpoint with selectors at kappa 1 (:mod:`conversion.dense_start`); the selectors learn from the frozen model's
attention; every kappa falls as far as a given loss allows (:mod:`conversion.budget`); the selectors learn from the
translation loss which keys matter. Or, if asked for, everything is trained on documents, in which kappa falls.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer.checkpoints.loading import identity, load
from fairseq_lasformer.conversion.budget import write_within_budget
from fairseq_lasformer.conversion.calibration import scored
from fairseq_lasformer.conversion.dense_start import StartOptions, words_of_options, write_start
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.experiments.pipeline import Experiment
from fairseq_lasformer.experiments.settings import TrainOptions
from fairseq_lasformer.experiments.training import follow
from fairseq_lasformer.files import atomic_copy, check_writable
from fairseq_lasformer.resume import Progress, key_of


@dataclass(frozen=True)
class UpcycleOptions:
    """How a dense model is upcycled.

    Attributes:
        updates: of the selectors alone, with kappa at 1.
        adapt: of the selectors alone afterwards, with every kappa where the budget allows it to be.
        budget: bits per token that selecting may cost before the selectors adapt to it.
        train_all: updates of all weights instead, in which kappa falls; 0 for none.
        threshold: of ``train_all``: share of the attention that the kept keys must hold before fewer are kept (t).
        lr, train_all_lr: peak learning rates.
        max_tokens, update_freq: as of ``lasformer train``.
        options: further options of fairseq-train.
    """

    updates: int = 250
    adapt: int = 250
    budget: float = 0.02
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
        if self.updates < 1:
            raise InputError(f"--updates {self.updates}: expected a number of updates, at least 1")
        for name in ("adapt", "train_all"):
            if getattr(self, name) < 0:
                option = f"--{name.replace('_', '-')} {getattr(self, name)}"
                raise InputError(f"{option}: expected a number of updates, or 0")
        if not 0 < self.budget < math.inf:
            raise InputError(f"--budget {self.budget}: expected bits per token, such as 0.02")
        if not 0 < self.threshold <= 1:
            raise InputError(f"--threshold {self.threshold}: expected a share in (0, 1]")

    def learning(self, model: Mapping[str, Any], start: Path) -> TrainOptions:
        """The selectors learn from the attention of the model as it is; nothing else is computed backwards."""
        own = [*_frozen(model), "--select-gradient", "none", "--supervise-all-above", "1.0"]
        return self._training(self.updates, self.lr, own, start, ["--sparsity-warmup", str(self.updates)])

    def adapting(self, model: Mapping[str, Any], start: Path) -> TrainOptions:
        """The selectors learn from the translation loss, too, with kappa as it is."""
        return self._training(self.adapt, self.lr, _frozen(model), start, ["--sparsity-warmup", str(self.adapt)])

    def everything(self, model: Mapping[str, Any], start: Path) -> TrainOptions:
        """All weights are trained, and kappa falls from 1 to where it belongs in two thirds of the time."""
        step = min(0.1, max(0.001, 1.5 / self.train_all))
        own = [*words_of_options(model), "--dropout", str(model.get("dropout", 0.0))]
        rule = ["--sparsity-mass", "attention", "--sparsity-threshold", str(self.threshold)]
        rule += ["--sparsity-step", f"{step:.6f}"]
        return self._training(self.train_all, self.train_all_lr, own, start, rule)

    def _training(self, updates: int, lr: float, own: list[str], start: Path, rule: list[str]) -> TrainOptions:
        # by validation loss, the best model would be the one that has not begun to select
        words = ["--finetune-from-model", str(start.resolve()), *own, *rule, "--disable-validation", *self.options]
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


def _frozen(model: Mapping[str, Any]) -> list[str]:
    """Options of a training of the selectors alone, without dropout."""
    quiet = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    return [*words_of_options({**model, **quiet}), "--select-only", "--dropout", "0"]


def upcycle(checkpoint: Path, data: Path, out: Path, start: StartOptions, options: UpcycleOptions) -> str:
    """Upcycles a model, or resumes where an earlier call stopped.

    Args:
        checkpoint: dense checkpoint of ours, see ``lasformer import`` and ``convert``.
        data: prepared folder of documents.
        out: folder for the checkpoints and logs of all stages.

    Returns:
        what was reached, for a terminal.

    Raises:
        InputError: the model or an option is unusable, or a training failed.
    """
    options.check()
    begun, alone, budgeted = out / "start.pt", out / "selectors", out / "budget.pt"
    if not checkpoint.is_file():
        raise InputError(f"{checkpoint}: no such checkpoint")
    check_writable(begun)
    progress = Progress(out, key_of("upcycle"))
    progress.open(f"{out}: holds something else; choose another folder")
    told: list[str] = []
    so_far = key_of(identity(checkpoint), str(data.resolve()), str(start))
    progress.run("start", lambda: told.append(write_start(checkpoint, data, begun, start)), so_far, tell=True)
    model = load(begun)["cfg"]["model"]

    def train(name: str, training: TrainOptions, folder: Path) -> None:
        nonlocal so_far
        command = training.command(data, folder)
        so_far = key_of(so_far, shlex.join(command[1:]))
        work = lambda: follow(command, folder / "train.log", training.max_update, name)  # noqa: E731
        progress.run(name, work, so_far, tell=True)

    def fall() -> None:
        made = write_within_budget(alone / "checkpoint_last.pt", data, budgeted, options.budget)
        told.append(f"kappa: {made.after - made.before:+.4f} bits per token for a budget of {options.budget:g}")

    train("selectors", options.learning(model, begun), alone)
    last = out / "checkpoint_last.pt"
    if options.train_all:
        train("documents", options.everything(model, alone / "checkpoint_last.pt"), out)
    else:
        so_far = key_of(so_far, options.budget)
        progress.run("kappa", fall, so_far, tell=True)
        if options.adapt:
            train("adaptation", options.adapting(model, budgeted), out)
        else:
            atomic_copy(budgeted, last)
    before, after = (scored(path, data) for path in (begun, last))
    shares = ", ".join(f"{name} {share:.1%}" for name, share in after.kappas.items())
    told.append(
        f"{last}: {before.bits:.3f} bits per token before, {after.bits:.3f} after, on the same {after.documents} "
        f"documents; kappa {after.mean_kappa:.1%} ({shares})"
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
