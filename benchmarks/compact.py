"""Savings and costs of DeFINE and DeLighT: parameters, operations, seconds and scores of demo runs.

Requires runs of examples/demo.py, such as ``--systems lasformer,lasformer_define --out runs/demo_define``. Parameters
and operations are those of the checkpoints, at their kappa; scores are those of the runs. ms per step: forward pass of
the criterion and backward pass, over a few training batches of each system (the same for systems trained on the same
data), with all systems taking turns in one process. The baseline is the system lasformer.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils

from benchmarks.rows import Row, in_turns
from fairseq_lasformer.analysis.cost import checkpoint_cost, parts
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.plugin import register

BASELINES = ("lasformer",)
BATCHES = 4


class System:
    """A trained model of a demo run, with its criterion and some of its training batches."""

    def __init__(self, checkpoint: Path) -> None:
        register()
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
        self.model, self.criterion = models[0], task.build_criterion(cfg.criterion)
        task.load_dataset("train")
        batches = task.get_batch_iterator(
            task.dataset("train"), max_tokens=cfg.dataset.max_tokens, max_positions=self.model.max_positions(), seed=1
        ).next_epoch_itr(shuffle=True)
        self.samples = list(islice(batches, BATCHES))

    def training(self) -> float:
        """Return the seconds per forward and backward pass, averaged over the batches."""
        self.model.train()
        start = time.perf_counter()
        for sample in self.samples:
            self.criterion(self.model, sample)[0].backward()
            self.model.zero_grad(set_to_none=True)
        return (time.perf_counter() - start) / len(self.samples)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", help="folders of demo runs")
    parser.add_argument("--repeat", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=1024, help="tokens per side, for GMAC (default: %(default)s)")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    scores: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for run in args.runs:
        try:
            found = json.loads((run / "report.json").read_text())["systems"]
        except (OSError, ValueError, KeyError) as e:
            raise InputError(f"{run}: no finished demo run (report.json); see examples/demo.py --systems") from e
        for name in found:
            scores.setdefault(name, found[name])
            paths.setdefault(name, run / name / "checkpoint_last.pt")
    # before loading the models, because it rejects invalid checkpoints with a one-line error
    costs = {
        name: next(c for c in checkpoint_cost(path, [args.length]) if c.module == "model")
        for name, path in paths.items()
    }
    systems = {name: System(path) for name, path in paths.items()}
    seconds = in_turns({name: system.training for name, system in systems.items()}, args.repeat, "training")
    for name, system in systems.items():
        figures = {
            "parameters": (float(parts(system.model.named_parameters())["total"]), True),
            f"GMAC at {args.length}": (costs[name].sparse / 1e9, True),
            "ms per step": (1000 * seconds[name], True),
            "d-BLEU": (scores[name]["d_bleu"], False),
            "accuracy %": (100 * scores[name]["accuracy"]["all"], False),
            "kappa": (scores[name]["kappa"], False),
        }
        yield from (Row("demo", name, metric, value, compared) for metric, (value, compared) in figures.items())
