"""Time and memory of training: lasformer compared with fairseq's transformer, base size, one document.

seconds: forward and backward, all models taking turns in one process, medians. peak GiB: peak resident memory of one
step after the model is built, each in a fresh process. ratio_to_dense: seconds relative to lasformer_dense. kappa as
given (default: half-way through training and at its end).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from benchmarks.models import VOCABULARY, build
from benchmarks.rows import Row, in_turns
from fairseq_lasformer.memory import keep_freed

BASELINES = ("transformer",)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", default="1024,4096", help="tokens per side (default: %(default)s)")
    parser.add_argument("--kappas", default="0.5,0.05", help="default: %(default)s")
    parser.add_argument(
        "--supervise-rows", default="512", help="how many queries selectors learn from, or all (default: %(default)s)"
    )
    parser.add_argument("--repeat", type=int, default=3, help="default: %(default)s")


def measure(args: argparse.Namespace) -> list[Row]:
    keep_freed()  # as in training; every system takes turns in this process
    systems = {"transformer": ("transformer", 1.0)}
    systems |= {f"lasformer, kappa {k}": ("lasformer", float(k)) for k in args.kappas.split(",")}
    systems["lasformer_dense"] = ("lasformer_dense", 1.0)
    rows = []
    for length in map(int, args.lengths.split(",")):
        models = {name: build(*system, supervise_rows=args.supervise_rows) for name, system in systems.items()}
        seconds = in_turns({n: partial(step, m, length) for n, m in models.items()}, args.repeat, f"T={length}")
        del models
        for name, system in systems.items():
            rows.append(Row(f"T={length}", name, "seconds", seconds[name]))
            ratio = seconds[name] / seconds["lasformer_dense"]
            rows.append(Row(f"T={length}", name, "ratio_to_dense", ratio, compared=False))
            rows.append(Row(f"T={length}", name, "peak GiB", peak_gib(*system, length, args.supervise_rows)))
    return rows


def step(model: torch.nn.Module, length: int) -> float:
    """Return the seconds of one forward and backward pass over a document of ``length`` tokens on both sides."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(4, VOCABULARY, (1, length + 1), generator=generator)
    start = time.perf_counter()
    logits, extra = model(tokens[:, :-1], torch.tensor([length]), tokens[:, :-1])
    loss, _ = label_smoothed_nll_loss(
        logits.float().log_softmax(-1).view(-1, logits.size(-1)), tokens[:, 1:].reshape(-1), 0.1, ignore_index=1
    )
    for sums in extra.get("supervision", {}).values():
        loss = loss + 0.01 * length * sums.kl / sums.queries
    loss.backward()
    seconds = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    return seconds


def peak_gib(system: str, kappa: float, length: int, supervise_rows: str) -> float:
    """Return the peak resident memory, in GiB, of a process that runs one step."""
    command = [sys.executable, "-m", "benchmarks.training", system, str(kappa), str(length), supervise_rows]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


if __name__ == "__main__":
    keep_freed()
    step(build(sys.argv[1], float(sys.argv[2]), sys.argv[4]), int(sys.argv[3]))
    # not getrusage, where a child process inherits its parent's maximum
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    print(int(found[1]) / 2**20 if found else "null")
