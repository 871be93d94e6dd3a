#!/usr/bin/env python3
"""Upcycling on the demo's corpus: what a dense model retains when it selects, and what a sentence model learns.

    python examples/upcycling.py [--out runs/upcycling] [--seeds 1,2,3] [--budget 0.01] [override ...]

For each seed it trains a dense document model, a sentence model and, for comparison, a Lasformer from scratch
(configs/systems.yaml). It upcycles the first two into models that select (lasformer upcycle), translates the test
documents with all five, and prints a table. A killed run resumes where it stopped. Overrides
(``optimization.max_update=50``) apply to the three trainings from scratch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import demo

from fairseq_lasformer.apps.models.start_options import StartOptions, UpcycleOptions
from fairseq_lasformer.apps.models.upcycling import UpcycleTraining
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write, hold
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.experiments.pipeline import Experiment

SCRATCH = ("dense", "sentence", "lasformer")
FROM = {"dense_upcycled": "dense", "sentence_upcycled": "sentence"}
START = StartOptions(dim=32)  # as configs/demo_paper.yaml


def options(name: str, args: argparse.Namespace, seed: int) -> UpcycleOptions:
    """Return the options of upcycling a model; a sentence model learns documents first."""
    return UpcycleOptions(
        updates=args.updates,
        budget=args.budget,
        documents=args.document_updates if FROM[name] == "sentence" else 0,
        lr=0.005,
        documents_lr=0.005,
        max_tokens=1800,
        options=("--seed", str(seed), "--clip-norm", "1.0", "--cpu", "--disable-validation"),
    )


def experiments(args: argparse.Namespace, out: Path, seed: int) -> list[Experiment]:
    """Return all systems of a seed, starting models first."""
    runs, folder = [], out / f"seed{seed}"
    for system in SCRATCH:
        made = demo.experiment(system, folder, [*args.overrides, f"common.seed={seed}"], demo.PAPER)
        runs.append(replaced(made, data=out / "data" / demo.data_of(system, demo.PAPER), name=f"{system}, seed {seed}"))
    for name, start in FROM.items():
        training = UpcycleTraining(folder / start / "checkpoint_last.pt", START, options(name, args, seed))
        runs.append(
            Experiment(
                name=f"{name}, seed {seed}",
                training=training,
                data=out / "data" / "mixture",
                folder=folder / f"{start}_upcycled",
                generation=demo.TRANSLATE,
                best=True,  # translated again after further training
                shards=2,
                jobs=2,
            )
        )
    return runs


def replaced(experiment: Experiment, **changes: Any) -> Experiment:
    return Experiment(**{**vars(experiment), **changes})


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as a table, one system per line."""
    lines = ["| system | d-BLEU | context-dependent words | κ, mean | seconds of training |", "|---|---|---|---|---|"]
    for row in rows:
        accuracy, kappa = row["accuracy"]["all"], row["kappa"]
        cells = (row["system"], f"{row['d_bleu']:.2f}", f"{accuracy:.1%}", f"{kappa:.1%}", f"{row['seconds']:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=demo.ROOT / "runs" / "upcycling")
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--seeds", default="1,2,3")
    text = "of lasformer upcycle (default: %(default)s)"
    parser.add_argument("--updates", type=int, default=500, help=text)
    parser.add_argument("--budget", type=float, default=0.01, help=text)
    parser.add_argument(
        "--document-updates", type=int, default=1650, help="of the sentence model (default: %(default)s)"
    )
    parser.add_argument(
        "--systems", default=",".join((*SCRATCH, *FROM)), help="some of the systems (default: %(default)s)"
    )
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args()
    out = args.out.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
        hold(out / ".lock", "this example")
        progress = Progress(out, key_of("upcycling", args.documents, args.overrides))
        progress.open(f"{out}: belongs to a different run; choose another folder with --out")
        raw, rows = demo.make_corpus(progress, out, args.documents, demo.PAPER), []
        for seed in map(int, args.seeds.split(",")):
            for run in experiments(args, out, seed):
                if run.name.rpartition(", seed")[0] not in args.systems.split(","):
                    continue
                run.run(progress, tell=True, say=lambda text: print(text, file=sys.stderr))
                found = demo.evaluate(raw, [run], {})["systems"][run.name]
                rows.append({"system": run.name, "seconds": progress.seconds[f"train {run.name}"], **found})
                atomic_write(out / "results.json", json.dumps(rows, indent=1) + "\n")
                print(f"{rows[-1]['system']}: {rows[-1]['d_bleu']:.2f}, {rows[-1]['accuracy']['all']:.1%}", flush=True)
    except InputError as e:
        sys.exit(f"error: {e}")
    print(table(rows))


if __name__ == "__main__":
    main()
