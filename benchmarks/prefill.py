"""Encoder prefill: seconds of dense attention, masked attention and gathered keys, by length and kappa.

Base size, one document, float32, on the CPU. dense: lasformer_dense; mask: all scores, with a mask; gather: kept keys
only. The thresholds derived from it are SPARSE_FROM and SPARSE_SHARE in fairseq_lasformer/ops/prefill.py.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import torch

from benchmarks.models import VOCABULARY, build
from benchmarks.rows import Row, in_turns
from fairseq_lasformer.ops import prefill

BASELINES = ("dense",)
THRESHOLDS = {"dense": (1 << 30, 0.0), "mask": (1 << 30, 0.0), "gather": (1, 1.0)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", default="256,512,1024,2048,4096", help="default: %(default)s")
    parser.add_argument("--kappas", default="0.05,0.1,0.2,0.3,0.5", help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=5, help="default: %(default)s")


def measure(args: argparse.Namespace) -> list[Row]:
    dense, rows = build("lasformer_dense").eval(), []
    for length in map(int, args.lengths.split(",")):
        tokens = torch.randint(4, VOCABULARY, (1, length))
        for kappa in map(float, args.kappas.split(",")):
            model, case = build("lasformer", kappa).eval(), f"T={length} kappa={kappa}"
            ways = {way: partial(seconds, dense if way == "dense" else model, tokens, way) for way in THRESHOLDS}
            rows += [Row(case, way, "seconds", s) for way, s in in_turns(ways, args.repeat, case).items()]
    return rows


@torch.no_grad()
def seconds(model: torch.nn.Module, tokens: torch.Tensor, way: str) -> float:
    """Return the seconds of one encoder pass."""
    prefill.SPARSE_FROM, prefill.SPARSE_SHARE = THRESHOLDS[way]
    start = time.perf_counter()
    model.encoder(tokens)
    return time.perf_counter() - start
