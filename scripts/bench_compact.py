#!/usr/bin/env python3
"""What DeFINE and DeLighT save and cost: a table of parameters, operations, seconds and scores of demo runs.

    python scripts/demo.py --systems lasformer,lasformer_define --out runs/demo_define
    python scripts/bench_compact.py runs/demo_define [more runs] [--repeat 5] [--length 1024] [--to lasformer]

Parameters and operations are those of the checkpoints, with the kappa they hold, the scores the run's own. Seconds: the
criterion's forward pass and the backward pass over a few batches of what each system was trained on (the same, for
systems of the same data), all systems in turn in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import fairseq_lasformer  # noqa: E402, F401  (registers architecture and task)
from fairseq_lasformer.cost import checkpoint_cost  # noqa: E402
from fairseq_lasformer.errors import InputError  # noqa: E402
from fairseq_lasformer.files import atomic_write  # noqa: E402
from fairseq_lasformer.parameters import parts  # noqa: E402

BATCHES = 4


class System:
    """A trained model of a demo run, with its criterion and some batches it was trained on."""

    def __init__(self, checkpoint: Path) -> None:
        models, cfg, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
        self.model, self.criterion = models[0], task.build_criterion(cfg.criterion)
        task.load_dataset("train")
        batches = task.get_batch_iterator(
            task.dataset("train"), max_tokens=cfg.dataset.max_tokens, max_positions=self.model.max_positions(), seed=1
        ).next_epoch_itr(shuffle=True)
        self.samples = list(islice(batches, BATCHES))

    def training(self) -> float:
        """Seconds of a step's forward and backward pass, the mean over the batches."""
        self.model.train()
        start = time.perf_counter()
        for sample in self.samples:
            self.criterion(self.model, sample)[0].backward()
            self.model.zero_grad(set_to_none=True)
        return (time.perf_counter() - start) / len(self.samples)


def measure(runs: list[Path], repeat: int, length: int, to: str) -> list[dict[str, Any]]:
    """A row a system of the runs, of which ``to`` must be one; one that is in several is taken from the first."""
    scores: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for run in runs:
        try:
            found = json.loads((run / "report.json").read_text())["systems"]
        except (OSError, ValueError, KeyError) as e:
            raise InputError(f"{run}: holds no finished demo run (report.json); see scripts/demo.py --systems") from e
        for name in found:
            scores.setdefault(name, found[name])
            paths.setdefault(name, run / name / "checkpoint_last.pt")
    if to not in scores:
        raise InputError(f"--to {to}: not a system of these runs")
    # before the models: it refuses what is no checkpoint in one line
    costs = {
        name: next(c for c in checkpoint_cost(path, [length]) if c.module == "model") for name, path in paths.items()
    }
    systems = {name: System(path) for name, path in paths.items()}
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for turn in tqdm(range(repeat + 1), unit=" rounds"):
        for name, system in systems.items():
            spent = system.training()
            if turn:  # the first round warms up
                seconds[name].append(spent)
    rows = []
    for name, system in systems.items():
        rows.append(
            {
                "system": name,
                "parameters": parts(system.model)["total"],
                "gmac": costs[name].sparse / 1e9,
                "gmac_dense": costs[name].dense / 1e9,
                "seconds": statistics.median(seconds[name]),
                "d_bleu": scores[name]["d_bleu"],
                "accuracy": scores[name]["accuracy"]["all"],
                "kappa": scores[name]["kappa"],
            }
        )
    return rows


def table(rows: list[dict[str, Any]], length: int, to: str) -> str:
    """For the README: Markdown, with ratios to the system ``to``."""
    first = next(r for r in rows if r["system"] == to)
    lines = [f"| system | parameters | GMAC at {length:,} tokens | ms a step | d-BLEU | context-dependent words | κ |"]
    lines.append("|---|---|---|---|---|---|---|")
    for r in rows:
        cells = [f"`{r['system']}`"]
        cells.append(f"{r['parameters']:,} ({r['parameters'] / first['parameters']:.2f})")
        cells.append(f"{r['gmac']:.2f} ({r['gmac'] / first['gmac']:.2f})")
        cells.append(f"{1000 * r['seconds']:.0f} ({r['seconds'] / first['seconds']:.2f})")
        cells += [f"{r['d_bleu']:.2f}", f"{r['accuracy']:.1%}", f"{r['kappa']:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--to", default="lasformer", help="system that the others are compared with (%(default)s)")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--length", type=int, default=1024, help="tokens of each side, for the operations")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/compact.json"))
    args = parser.parse_args()
    try:
        rows = measure(args.runs, args.repeat, args.length, args.to)
    except InputError as e:
        sys.exit(f"error: {e}")
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cores": os.cpu_count()}
    atomic_write(args.out, json.dumps({"machine": machine, "length": args.length, "rows": rows}, indent=1) + "\n")
    print(table(rows, args.length, args.to))


if __name__ == "__main__":
    main()
