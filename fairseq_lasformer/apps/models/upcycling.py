"""``lasformer upcycle``: a dense model becomes one that selects, in a few hundred updates of the selectors alone.

A sentence-level model first learns documents, as a dense model. Then selectors are added
(:mod:`conversion.dense_start`) and learn from the frozen model's attention, with kappa at 1. Finally, every kappa falls
as far as a given loss allows (:mod:`conversion.budget`).
"""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.apps.models.budget import write_within_budget
from fairseq_lasformer.apps.models.dense_start import words_of_options, write_start
from fairseq_lasformer.apps.models.start_options import StartOptions, UpcycleOptions
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_writable, remove_folder
from fairseq_lasformer.base.options import check
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.checkpoints.loading import identity, load
from fairseq_lasformer.data.subwords import DataConfig, data_identity
from fairseq_lasformer.evaluation.calibration import scored
from fairseq_lasformer.experiments.pipeline import Experiment
from fairseq_lasformer.experiments.settings import TrainOptions
from fairseq_lasformer.experiments.training import follow


def selector_training(options: UpcycleOptions, start: Path) -> TrainOptions:
    """Return the options for training selectors on the model's present attention; nothing else gets gradients."""
    model = load(start)["cfg"]["model"]
    quiet = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.0)
    words = [*words_of_options({**model, **quiet}), "--select-only", "--select-gradient", "none"]
    words += ["--dropout", "0", "--supervise-rows", "512", "--sparsity-warmup", str(options.updates)]
    return _training(options, options.updates, options.lr, [*words, "--disable-validation"], start)


def dense_training(options: UpcycleOptions, start: Path) -> TrainOptions:
    """Return the options for training the dense model on documents."""
    model = load(start)["cfg"]["model"]
    words = [*words_of_options(model), "--dropout", str(model.get("dropout", 0.0))]
    return _training(options, options.documents, options.documents_lr, words, start)


def _training(options: UpcycleOptions, updates: int, lr: float, special: list[str], start: Path) -> TrainOptions:
    # the learning rate falls to almost 0, which keeps what is learned last
    schedule = ["--lr-scheduler", "polynomial_decay", "--total-num-update", str(updates + updates // 20 + 1)]
    words = ["--finetune-from-model", str(start.resolve()), *special, *schedule, *options.options]
    return TrainOptions(
        arch="lasformer",
        max_update=updates,
        max_tokens=options.max_tokens,
        update_freq=1,
        lr=lr,
        warmup=min(50, updates // 4 or 1),
        dropout=0.0,
        word_dropout=0.0,
        tie_embeddings="none",
        options=tuple(words),
    )


def upcycle(checkpoint: Path, data: Path, out: Path, start: StartOptions, options: UpcycleOptions) -> str:
    """Upcycle a model, or resume where an earlier call stopped.

    Args:
        checkpoint: dense checkpoint of ours, see ``lasformer import`` and ``convert``.
        data: prepared folder of documents.
        out: folder for the checkpoints and logs of all stages.

    Returns:
        a summary for a terminal.
    """
    check(options)
    begun, last = out / "start.pt", out / "checkpoint_last.pt"
    if not checkpoint.is_file():
        raise InputError(f"{checkpoint}: no such checkpoint")
    if start.modules == "none":
        raise InputError("--select-modules none: nothing would select")
    if DataConfig.load(data).resolutions == "sentences":
        raise InputError(
            f"{data}: its examples are single sentences, of which a model learns no context; prepare it with "
            "--resolutions mixture"
        )
    check_writable(begun)
    progress = Progress(out, key_of("upcycle"))
    progress.open(f"{out}: belongs to a different run; choose another folder")
    notes: list[str] = []
    so_far = key_of(identity(checkpoint), data_identity(data), str(start))

    def write(source: Path, made: Path, what: StartOptions) -> None:
        notes.append(write_start(source, data, made, what))

    def train(name: str, training: TrainOptions) -> Path:
        nonlocal so_far
        folder = out / name
        command = training.command(data, folder)
        so_far = key_of(so_far, shlex.join(command[1:]))
        mark = Progress(folder, so_far)
        if not mark.matches:  # made with other options or from another stage's output: fairseq would continue it
            remove_folder(folder)
            mark.begin()
        work = lambda: follow(command, folder / "train.log", training.max_update, name)  # noqa: E731
        progress.run(name, work, so_far, tell=True)
        return folder / "checkpoint_last.pt"

    def fall() -> None:
        written = write_within_budget(learned, data, last, options.budget, options.calibration)
        notes.append(f"kappa: {written.after - written.before:+.4f} bits per token for a budget of {options.budget:g}")

    dense, words = checkpoint, start
    if options.documents:
        longer = out / "dense.pt"
        progress.run("dense", lambda: write(checkpoint, longer, replace(start, modules="none")), so_far, tell=True)
        dense, words = train("documents", dense_training(options, longer)), replace(start, words=None)
    progress.run("start", lambda: write(dense, begun, words), so_far, tell=True)
    learned = train("selectors", selector_training(options, begun))
    progress.run("kappa", fall, key_of(so_far, options.budget, options.calibration), tell=True)
    before, after = (scored(path, data, options.calibration) for path in (begun, last))
    shares = ", ".join(f"{name} {share:.1%}" for name, share in after.kappas.items())
    notes.append(
        f"{last}: {before.bits:.3f} bits per token before, {after.bits:.3f} after, on the same {after.documents} "
        f"documents; kappa {after.mean_kappa:.1%} ({shares})"
    )
    return "\n".join([line for line in notes if line] + [f"next: lasformer translate {out} FILE"])


class UpcycleTraining(NamedTuple):
    """Training of an :class:`Experiment` that upcycles a dense model."""

    checkpoint: Path
    start: StartOptions
    options: UpcycleOptions

    def settings(self, data: Path, folder: Path) -> str:
        return key_of(identity(self.checkpoint), data_identity(data), str(self.start), str(self.options))

    def run(self, experiment: Experiment) -> str:
        checkpoint = upcycle(self.checkpoint, experiment.data, experiment.folder, self.start, self.options)
        return checkpoint.partition("\nnext:")[0]
