"""Encoder prefill: seconds of dense attention, masked attention and gathered keys or tiles, by length and kappa.

Base size. dense: lasformer_dense; mask: all scores, with a mask; gather: kept keys only (CPU); tiles: all keys in
tiles, with a bitmask (GPU). It determines the thresholds INFERENCE_FROM and INFERENCE_SHARE in
fairseq_lasformer/ops/choice.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.devices import Place, add_place, place_of
from benchmarks.models import VOCABULARY, build
from benchmarks.rows import Row, in_turns
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.ops import choice

BASELINES = ("dense",)
THRESHOLDS = {"dense": (1 << 30, 0.0), "mask": (1 << 30, 0.0), "gather": (1, 1.0)}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", default="256,512,1024,2048,4096", help="default: %(default)s")
    parser.add_argument("--kappas", default="0.05,0.1,0.2,0.3,0.5", help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=5, help="default: %(default)s")
    add_place(parser, "documents of a batch (default: 1)")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    place, n_documents = place_of(args), args.rows or 1
    ways = ("dense", "mask", "tiles" if args.device == "cuda" else "gather")
    dense = build("lasformer_dense").eval().to(place.device, place.dtype)
    for length in map(int, args.lengths.split(",")):
        tokens = torch.randint(4, VOCABULARY, (n_documents, length)).to(place.device)
        for kappa in map(float, args.kappas.split(",")):
            case = f"T={length} kappa={kappa}" if n_documents == 1 else f"{n_documents} x T={length} kappa={kappa}"
            if args.done.issuperset((case, way) for way in ways):
                continue
            models = {"dense": dense}
            for way in ways[1:]:
                run = RunOptions("reference" if args.device == "cuda" and way == "mask" else "auto")
                models[way] = build("lasformer", kappa, run=run).eval().to(place.device, place.dtype)
            work = {way: partial(seconds, model, tokens, way, place) for way, model in models.items()}
            yield from (Row(case, way, "seconds", s) for way, s in in_turns(work, args.repeat, case).items())


@torch.no_grad()
def seconds(model: torch.nn.Module, tokens: torch.Tensor, way: str, place: Place) -> float:
    """Return the seconds of one encoder pass."""
    choice.INFERENCE_FROM, choice.INFERENCE_SHARE = THRESHOLDS.get(way, THRESHOLDS["mask"])
    return place.seconds(lambda: model.encoder(tokens))
