#!/usr/bin/env python3
"""Smaller models on the demo's corpus: the cost of sharing, dropping and pruning, in one table.

    python examples/smaller.py [--out runs/smaller] [--jobs 2] [override ...]

It trains the demo's Lasformer with four layers on each side (lasformer_deep of configs/systems.yaml) unchanged, with
--tie-groups, and with --group-drop 0.2. It prunes the first to half its heads and the third to half its decoder
(lasformer prune), and trains these two further. Then it compares all of them, in 32 and in 8 bits
(examples/students.py). A killed run resumes where it stopped. Overrides
(``optimization.max_update=50``) apply to the three trainings from scratch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import demo

from fairseq_lasformer.apps.models.dense_start import words_of_options
from fairseq_lasformer.apps.models.prune import prune
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import hold
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.experiments.pipeline import ConfiguredTraining
from fairseq_lasformer.experiments.settings import TrainOptions
from fairseq_lasformer.experiments.train import train_own
from fairseq_lasformer.experiments.training import systems_of

TRAINED = {
    "whole": (),
    "tied": ("+model.tie_groups=true",),
    "dropping": ("+model.group_drop=0.2",),
}
"""Models trained from scratch, and how each differs from lasformer_deep of configs/systems.yaml."""

PRUNED = {
    "half_the_heads": ("whole", {"heads": "encoder=1,decoder=1,cross=1"}),
    "half_the_decoder": ("dropping", {"groups": "decoder.0"}),
}
"""Pruned models: the model that each is made from, and how."""

FURTHER = ("half_the_heads", "half_the_decoder")
"""Pruned models that are trained further."""


def further(start: Path, updates: int) -> TrainOptions:
    """Return the options that train a pruned model further."""
    model = load(start)["cfg"]["model"]
    own = ["--finetune-from-model", str(start), *words_of_options(model), "--clip-norm", "1.0", "--cpu"]
    own += ["--lr-scheduler", "polynomial_decay", "--total-num-update", str(updates + updates // 20 + 1)]
    return TrainOptions(
        arch="lasformer",
        max_update=updates,
        max_tokens=1800,
        update_freq=1,
        lr=0.002,
        warmup=min(50, updates // 4 or 1),
        dropout=0.0,
        word_dropout=0.0,
        tie_embeddings="none",
        options=(*own, "--disable-validation"),
    )


def make(name: str, out: Path, updates: int, overrides: list[str]) -> None:
    """Train a model and the models made from it, or resume; each step runs once."""
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(folder, key_of("compression", updates, overrides))
    progress.open(f"{folder}: belongs to a different run; choose another folder with --out")
    data, deep = out / "data" / "mixture", systems_of(demo.PAPER)["lasformer_deep"]
    training = ConfiguredTraining(demo.PAPER, (*deep, *TRAINED[name], *overrides), folder / "hydra")
    run = demo.experiment("lasformer_deep", folder, ())
    run = type(run)(**{**vars(run), "name": name, "training": training, "data": data})
    progress.run("train", lambda: training.run(run) and None, tell=True)
    own = {cut: how for cut, (start, how) in PRUNED.items() if start == name}
    for cut, how in own.items():
        progress.run(f"prune {cut}", lambda p=out / f"{cut}.pt", h=how: print(prune(run.checkpoint, p, **h)), tell=True)
    for made in FURTHER:
        if made in own:
            start = out / f"{made}.pt"
            progress.run(
                f"train {made}", lambda m=made, s=start: train_own(data, out / m, further(s, updates)), tell=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=demo.ROOT / "runs" / "smaller")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at the same time (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=400, help="updates of pruned models (default: %(default)s)")
    parser.add_argument("--only", default=",".join(TRAINED), help="trainings from scratch (default: %(default)s)")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args()
    trained = args.only.split(",")
    if wrong := [name for name in trained if name not in TRAINED]:
        parser.error(f"--only {wrong[0]}: choose from {', '.join(TRAINED)}")
    out = args.out.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
        hold(out / ".lock", "this example")
        progress = Progress(out, key_of("compression", args.documents))
        progress.open(f"{out}: belongs to a different run; choose another folder with --out")
        raw = demo.make_corpus(progress, out, args.documents, demo.PAPER)
        work = partial(make, out=out, updates=args.updates, overrides=args.overrides)
        with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:  # one Hydra per process
            list(pool.map(work, trained))
    except InputError as e:
        sys.exit(f"error: {e}")
    models = {name: out / name / "lasformer_deep" / "checkpoint_last.pt" for name in trained}
    own = [cut for cut, (start, _) in PRUNED.items() if start in trained]
    models |= {f"{cut},_as_cut": out / f"{cut}.pt" for cut in own}
    models |= {made: out / made / "checkpoint_last.pt" for made in FURTHER if made in own}
    for dtype in ("float32", "int8"):
        words = [str(raw), *(f"{name}={path}" for name, path in models.items()), "--data", str(out / "data/mixture")]
        words += ["--decode-dtype", dtype, "--out", str(out / f"{dtype}.json")]
        print(f"\n{dtype}:", flush=True)
        subprocess.run([sys.executable, str(Path(__file__).with_name("students.py")), *words], check=True)


if __name__ == "__main__":
    main()
