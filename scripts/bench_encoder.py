#!/usr/bin/env python3
"""Where a full pass of the encoder gains from reading kept keys alone: seconds of each way, by length and kappa.

    python scripts/bench_encoder.py [--lengths 256,512,1024,2048,4096] [--kappas 0.05,0.1,0.2,0.3,0.5] [--repeat 5]

Base size, one document, float32, on the CPU. ``dense``: lasformer_dense; ``mask``: all scores, a mask; ``slots``: kept
keys alone. The rule that follows stands in fairseq_lasformer/ops/full_pass.py (SPARSE_FROM, SPARSE_SHARE).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from bench_training import VOCABULARY, build  # noqa: E402

from fairseq_lasformer.ops import full_pass  # noqa: E402


@torch.no_grad()
def seconds(model: torch.nn.Module, tokens: torch.Tensor) -> float:
    start = time.perf_counter()
    model.encoder(tokens)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="256,512,1024,2048,4096")
    parser.add_argument("--kappas", default="0.05,0.1,0.2,0.3,0.5")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    dense = build("lasformer_dense", 1.0).eval()
    print(f"{'tokens':>7}{'kappa':>7}{'dense s':>10}{'mask/dense':>12}{'slots/dense':>13}")
    for length in map(int, args.lengths.split(",")):
        tokens = torch.randint(4, VOCABULARY, (1, length))
        for kappa in map(float, args.kappas.split(",")):
            model = build("lasformer", kappa).eval()
            took: dict[str, list[float]] = {"dense": [], "mask": [], "slots": []}
            for turn in range(args.repeat + 1):
                for way, times in took.items():
                    full_pass.SPARSE_FROM, full_pass.SPARSE_SHARE = (1, 1.0) if way == "slots" else (1 << 30, 0.0)
                    spent = seconds(dense if way == "dense" else model, tokens)
                    if turn:  # the first one warms up
                        times.append(spent)
            base, mask, slots = (statistics.median(times) for times in took.values())
            print(f"{length:>7}{kappa:>7.2f}{base:>10.4f}{mask / base:>12.2f}{slots / base:>13.2f}", flush=True)


if __name__ == "__main__":
    main()
