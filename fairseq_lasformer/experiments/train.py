"""Training on one's own prepared data: ``lasformer train``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lasformer.analysis.runs import read_log
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.experiments.training import follow
from fairseq_lasformer.files import atomic_write
from fairseq_lasformer.resume import Progress, key_of

PRECISIONS = ("auto", "fp16", "fp32")


@dataclass(frozen=True)
class TrainOptions:
    """How a model is trained. The defaults: the paper's base model (arXiv 2309.14174, 4.2), commonly trained.

    Attributes:
        arch: architecture.
        criterion: loss; default: the one with the KL attention loss, or fairseq's own for fairseq's architectures.
        max_update: number of updates.
        patience: validations without improvement after which the training ends; 0 never ends it early.
        max_tokens: tokens per batch, no less than the longest example; default: at least 4,096.
        update_freq: batches per update.
        lr: peak learning rate, reached after ``warmup`` updates.
        warmup: number of updates.
        dropout, word_dropout: probabilities.
        save_every: updates between checkpoints, at which the model is also validated.
        save_minutes: minutes between checkpoints, on a single worker.
        log_every: updates between log lines.
        precision: one of :data:`PRECISIONS`; ``auto`` is fp16 on a GPU and float32 without one.
        options: further options of fairseq-train; they take precedence.
    """

    arch: str = "lasformer"
    criterion: str | None = None
    max_update: int = 100_000
    patience: int = 10
    max_tokens: int | None = None
    update_freq: int = 8
    lr: float = 0.0007
    warmup: int = 4000
    dropout: float = 0.1
    word_dropout: float = 0.1
    save_every: int = 500
    save_minutes: float = 10.0
    log_every: int = 10
    precision: str = "auto"
    options: tuple[str, ...] = ()

    def command(self, data: Path, out: Path) -> list[str]:
        """The command line of fairseq-train.

        Raises:
            InputError: the data has no training set, or an option is impossible.
        """
        settings, info = DataConfig.load(data), SplitInfo.load(data, "train")
        if info is None:
            raise InputError(f"{data}: holds no training set; prepare it with lasformer prepare --train")
        if self.precision not in PRECISIONS:
            raise InputError(f"--precision {self.precision}: expected one of {', '.join(PRECISIONS)}")
        ours = self.arch.startswith(("lasformer", "delight"))
        longest = max(info.longest)
        tokens = max(4096, longest) if self.max_tokens is None else self.max_tokens
        criterion = self.criterion or (
            "label_smoothed_cross_entropy_with_selection" if ours else "label_smoothed_cross_entropy"
        )
        made: list[Any] = [str(data.resolve()), "--user-dir", Path(__file__).parents[1], "--save-dir", out]
        made += ["--task", "document_translation", "-s", settings.source_lang, "-t", settings.target_lang]
        made += ["--arch", self.arch, "--share-all-embeddings", "--dropout", self.dropout]
        made += ["--word-dropout", self.word_dropout, "--criterion", criterion, "--label-smoothing", 0.1]
        made += ["--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--lr", self.lr]
        made += ["--lr-scheduler", "inverse_sqrt", "--warmup-updates", self.warmup]
        made += ["--max-tokens", tokens, "--update-freq", self.update_freq, "--max-update", self.max_update]
        made += ["--save-interval-updates", self.save_every, "--keep-interval-updates", 1, "--no-epoch-checkpoints"]
        made += ["--save-interval-minutes", self.save_minutes]
        made += ["--log-format", "json", "--log-interval", self.log_every]
        if SplitInfo.load(data, "valid") is None:
            made.append("--disable-validation")
        elif self.patience:
            made += ["--patience", self.patience]
        made += self._device()
        return [str(Path(sys.executable).with_name("fairseq-train")), *map(str, made), *self.options]

    def _device(self) -> list[str]:
        import torch

        if any(option in self.options for option in ("--cpu", "--fp16", "--bf16")):
            return []
        if not torch.cuda.is_available():
            if self.precision == "fp16":
                raise InputError("--precision fp16: there is no GPU here; leave it out, and the CPU trains in float32")
            return ["--cpu"]
        return [] if self.precision == "fp32" else ["--fp16"]


SMALL_CORPUS = 50_000
"""Sentences of a training set below which the defaults are those of :data:`SMALL`."""

SMALL: dict[str, Any] = {
    **{"arch": "lasformer_tiny", "max_update": 5000, "update_freq": 1, "warmup": 500},
    **{"lr": 0.002, "dropout": 0.2, "save_every": 250, "patience": 12},
}
"""Defaults for small corpora: a small model, few updates, a short warm-up, more dropout. Near the demo's."""

_CHOSEN = "small_corpus"  # a file beside the checkpoints: the defaults are those of a small corpus


def chosen_options(data: Path, out: Path, given: dict[str, Any], small: bool | None) -> tuple[TrainOptions, str]:
    """The options of a training: those given, and defaults by the size of the corpus.

    Args:
        data: prepared folder.
        out: folder of the checkpoints; a training that has begun keeps its defaults.
        given: options that were given.
        small: whether the corpus is small; None to decide by its size.

    Returns:
        the options, and a line that says what was chosen; empty if nothing was.
    """
    info = SplitInfo.load(data, "train")
    begun, mark = (out / "checkpoint_last.pt").exists(), out / _CHOSEN
    if small is None:
        small = mark.exists() if begun else info is not None and info.sentences < SMALL_CORPUS
    if not small or info is None:
        return TrainOptions(**given), ""
    if not begun:
        atomic_write(mark, "defaults of a small corpus (lasformer train)\n")
    options = TrainOptions(**SMALL | given)
    changed = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in SMALL.items() if name not in given)
    return (
        options,
        f"small corpus ({info.sentences:,} sentences): {changed}; --no-small-corpus for the base model's defaults",
    )


def train_own(data: Path, out: Path, options: TrainOptions) -> str:
    """Trains on prepared data, or resumes where an earlier call stopped; what was reached, for a terminal.

    Raises:
        InputError: the data or an option is unusable, or the training failed.
    """
    command = options.command(data, out)
    progress = Progress(out, key_of("train"))
    progress.open(f"{out}: holds something else; choose another folder")
    settings = shlex.join(command[1:])
    progress.run("train", lambda: follow(command, out / "train.log", options.max_update, out.name), settings, tell=True)
    return reached(out)


def reached(out: Path) -> str:
    """What a training reached, and what can be done next."""
    log = read_log(out / "train.log") if (out / "train.log").exists() else {}
    last: dict[str, float] = (log.get("train_inner") or [{}])[-1]
    lines = []
    if last:
        kappa = f", kappa {last['kappa']:.2f}" if "kappa" in last else ""
        updates = max(line["num_updates"] for kind in log.values() for line in kind)
        lines.append(f"{out}: {int(updates):,} updates, nll {last['nll_loss']:.2f} bits per token{kappa}")
    validated: Sequence[dict[str, float]] = log.get("valid") or []
    if validated:
        best = min(validated, key=lambda line: line["nll_loss"])
        lines.append(f"best validation: nll {best['nll_loss']:.2f} after {int(best['num_updates']):,} updates")
    return "\n".join([*lines, f"next: lasformer translate {out} FILE", f"      lasformer report {out}"])
