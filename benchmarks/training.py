"""Time and memory of training: lasformer compared with fairseq's transformer, base size.

seconds: forward and backward of ``--rows`` documents, all models taking turns in one process, medians. peak GiB: peak
memory of one step, each in a fresh process: resident, or on a GPU that of its allocator. Ratios: seconds relative to
lasformer_dense. kappa as given (default: half-way through training and at its end).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss

from benchmarks.devices import DTYPES, Place, add_place, place_of
from benchmarks.models import VOCABULARY, batch_of, build
from benchmarks.rows import Row, in_turns
from fairseq_lasformer.base.machine import keep_freed
from fairseq_lasformer.nn.bfloat16 import use_bfloat16

BASELINES = ("transformer",)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lengths", default="1024,4096", help="tokens per side (default: %(default)s)")
    parser.add_argument("--kappas", default="0.5,0.05", help="default: %(default)s")
    parser.add_argument(
        "--supervise-rows", default="auto", help="how many queries selectors learn from, or all (default: %(default)s)"
    )
    parser.add_argument(
        "--linear-dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="of lasformer's linear layers on a CPU; fairseq's transformer stays float32 (default: %(default)s)",
    )
    parser.add_argument("--repeat", type=int, default=3, help="default: %(default)s")
    add_place(parser, "documents of a batch (default: 1)")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    keep_freed()  # as in training; every system takes turns in this process
    place, n_documents = place_of(args), args.rows or 1
    systems = {"transformer": ("transformer", 1.0)}
    systems |= {f"lasformer, kappa {k}": ("lasformer", float(k)) for k in args.kappas.split(",")}
    systems["lasformer_dense"] = ("lasformer_dense", 1.0)
    for length in map(int, args.lengths.split(",")):
        case = f"T={length}" if n_documents == 1 else f"{n_documents} x T={length}"
        if args.done.issuperset((case, name) for name in systems):
            continue
        models = {
            name: model_of(*system, args.supervise_rows, args.linear_dtype).to(place.device, place.dtype)
            for name, system in systems.items()
        }
        work = {name: partial(step, model, length, n_documents, place) for name, model in models.items()}
        seconds = in_turns(work, args.repeat, case)
        del models, work
        for name in seconds:
            yield Row(case, name, "seconds", seconds[name])
            yield Row(case, name, "ratio_to_dense", seconds[name] / seconds["lasformer_dense"], compared=False)
        for name, system in systems.items():
            peak = peak_gib(
                *system, length, args.supervise_rows, args.linear_dtype, n_documents, args.device, args.dtype
            )
            yield Row(case, name, "peak GiB", peak)


def criterion(model: torch.nn.Module, sample: dict[str, Any]) -> tuple[torch.Tensor, Any, dict[str, Any]]:
    """Return the loss, alike for all models, as a fairseq criterion does."""
    target, n_tokens = sample["target"], sample["ntokens"]
    logits, extra = model(**sample["net_input"])
    loss, _ = label_smoothed_nll_loss(
        logits.float().log_softmax(-1).view(-1, logits.size(-1)), target.reshape(-1), 0.1, ignore_index=1
    )
    for sums in extra.get("supervision", {}).values():
        loss = loss + 0.01 * n_tokens * sums.kl / sums.queries
    return loss, n_tokens, {}


def step(model: torch.nn.Module, length: int, n_documents: int, place: Place) -> float:
    """Return the seconds of one forward and backward pass over documents of ``length`` tokens on both sides."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(4, VOCABULARY, (n_documents, length + 1), generator=generator).to(place.device)
    sample = batch_of(tokens[:, :-1], tokens[:, :-1], tokens[:, 1:])
    seconds = place.seconds(lambda: criterion(model, sample)[0].backward())
    model.zero_grad(set_to_none=True)
    return seconds


def peak_gib(*of: object) -> float:
    """Return the peak memory, in GiB, of a process that runs one step; arguments as of ``alone``."""
    command = [sys.executable, "-m", "benchmarks.training", *map(str, of)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def model_of(system: str, kappa: float, supervise_rows: str, linear_dtype: str) -> torch.nn.Module:
    """Build a model for training."""
    model = build(system, kappa, supervise_rows)
    if linear_dtype == "bfloat16" and system not in BASELINES:
        use_bfloat16(model)
    return model


def alone(
    system: str, kappa: str, length: str, supervise_rows: str, linear_dtype: str, n: str, device: str, dtype: str
) -> float | None:
    """Run one step; return the peak memory of the process, in GiB."""
    keep_freed()
    place = Place(torch.device(device), DTYPES[dtype])
    model = model_of(system, float(kappa), supervise_rows, linear_dtype).to(place.device, place.dtype)
    step(model, int(length), int(n), place)
    if device == "cuda":
        return place.peak_mib() / 1024
    # not getrusage, where a child process inherits its parent's maximum
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) / 2**20 if found else None


if __name__ == "__main__":
    print(json.dumps(alone(*sys.argv[1:])))
