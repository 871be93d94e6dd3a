"""The place of a benchmark: device, type of the weights, timing that waits for the device, peak memory."""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from fairseq_lasformer.base.errors import InputError

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class Place(NamedTuple):
    """A device, and the type of the weights on it.

    Attributes:
        device: ``cpu`` or ``cuda``.
        dtype: type of the weights.
    """

    device: torch.device
    dtype: torch.dtype

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the seconds that ``work`` takes, until the device has finished it."""
        self.wait()
        start = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_mib(self) -> float:
        """Return the peak memory in MiB: the allocator's on a GPU, since the last reset; else the process' resident."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 2**20
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


CPU = Place(torch.device("cpu"), torch.float32)


def add_place(parser: argparse.ArgumentParser, rows: str) -> None:
    """Add ``--device``, ``--dtype`` and ``--rows`` (described by ``rows``)."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="default: %(default)s")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights (default: %(default)s)")
    parser.add_argument("--rows", type=int, help=rows)


def place_of(args: argparse.Namespace) -> Place:
    """Return the place that the options name.

    Raises:
        InputError: there is no such device.
    """
    if args.device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: no GPU; leave it out")
    return Place(torch.device(args.device), DTYPES[args.dtype])
