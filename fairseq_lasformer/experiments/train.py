"""Training on prepared data: ``lasformer train``."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from fairseq_lasformer.analysis.runs import read_log
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.subwords import data_identity
from fairseq_lasformer.experiments.card import write_card
from fairseq_lasformer.experiments.settings import SMALL, SMALL_CORPUS, TrainOptions
from fairseq_lasformer.experiments.training import follow

_CHOSEN = "small_corpus"  # a file next to the checkpoints: the defaults are those of a small corpus


def chosen_options(data: Path, out: Path, given: Json, small: bool | None) -> tuple[TrainOptions, str]:
    """Return the options of a training: those given, and defaults by the size of the corpus.

    Args:
        out: folder of the checkpoints; a training that has begun keeps its defaults.
        small: whether the corpus is small; None to decide by its size, or not if another architecture is given: the
            values belong together.

    Returns:
        the options, and a line that says what was chosen; empty if nothing was.
    """
    info = SplitInfo.load(data, "train")
    begun, mark = (out / "checkpoint_last.pt").exists(), out / _CHOSEN
    if small is None:
        small = mark.exists() if begun else info is not None and info.sentences < SMALL_CORPUS
        other = given.get("arch", SMALL["arch"])
        if small and not begun and other != SMALL["arch"]:  # the other values were chosen for that model
            return TrainOptions(**given), f"small corpus, but --arch {other}: the base model's defaults"
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
    """Train on prepared data, or resume where an earlier call stopped; return a summary for a terminal."""
    command = options.command(data, out)
    progress = Progress(out, key_of("train"))
    progress.open(f"{out}: belongs to a different run; choose another folder")
    progress.bind("data", data_identity(data), other_data(out, data))
    settings = shlex.join(command[1:])
    progress.run("train", lambda: follow(command, out / "train.log", options.max_update, out.name), settings, tell=True)
    write_card(out, data)
    return reached(out)


def other_data(out: Path, data: Path) -> str:
    """Return the refusal to go on with a training of data that has been replaced."""
    return (
        f"{out}: was trained on other data than {data} holds now, which was prepared from other text or with other "
        "options since; choose another folder for the model"
    )


def reached(out: Path) -> str:
    """Return a summary of what a training reached, and the next commands."""
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
    return "\n".join([*lines, f"next: lasformer translate {out} FILE"])
