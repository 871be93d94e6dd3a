"""Compilation of every Triton kernel for real GPUs on a machine without one: ``make kernels``.

The launch code of ``ops`` runs on meta tensors, under a driver that knows a target and no device; instead of a launch,
each kernel is compiled to machine code by the ``ptxas`` in Triton's wheel, with the signature and constants of a real
run. Prints registers, spilled bytes and shared memory per kernel; exits with 1 if a kernel does not compile or spills
more than ``--max-spill`` bytes per thread.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.pop("TRITON_INTERPRET", None)  # an interpreted kernel has no compiler

import torch
import triton
from triton.backends.nvidia.compiler import get_ptxas

from fairseq_lasformer.ops import (
    KAPPA_ONE,
    PAIRS,
    AttentionMask,
    KeptKeys,
    KeyIndex,
    LineEnds,
    OwnLines,
    OwnShift,
    n_pairs,
)
from fairseq_lasformer.ops.gpu.kernels import bits as triton_bits
from fairseq_lasformer.ops.gpu.kernels import decode as triton_decode
from fairseq_lasformer.ops.gpu.kernels import search as triton_search
from fairseq_lasformer.ops.gpu.kernels import step as triton_step
from fairseq_lasformer.ops.gpu.kernels import straight_through as triton_straight_through
from fairseq_lasformer.ops.gpu.kernels import supervise as triton_supervise
from fairseq_lasformer.ops.gpu.kernels import tiles as triton_tiles
from fairseq_lasformer.ops.gpu.kernels.scores import Rows
from fairseq_lasformer.ops.gpu.kernels.straight_through import HeadRows, Into
from fairseq_lasformer.ops.types import Attended, DropoutMask

HEADS, HEAD_DIM, SELECT_DIM, BEAM = 8, 64, 64, 5  # the base model's
KAPPA = KAPPA_ONE // 20
SHARED_KIB = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # of a block, at most


class Compiled(NamedTuple):
    """A kernel as it would have been launched.

    Attributes:
        name: the kernel's function.
        kernel: Triton's compiled kernel.
        constants: its compile-time constants.
        seconds: compile time; next to nothing if it came from the cache.
    """

    name: str
    kernel: Any
    constants: dict[str, Any]
    seconds: float


class Target(NamedTuple):
    """A GPU that is compiled for.

    Attributes:
        arch: its architecture, such as 90.
        shared: bytes of shared memory that a program may use.
    """

    arch: int
    shared: int


class _NoDevice:
    """A driver with a target and without a device: enough to compile, not to launch."""

    def __init__(self, target: Target) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", target.arch, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> str:
        return f"sm_{self.target.arch}"

    def get_current_stream(self, device: Any) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")


Launch = Callable[..., Any]
"""A launch as it would have been: Triton's function to compile it, the kernel, its arguments by place and by name."""


@contextlib.contextmanager
def without_device(target: Target, launch: Launch) -> Iterator[None]:
    """Let a function do what is to be done instead of launching kernels, for a GPU that need not be there."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    tiles: Any = importlib.import_module("fairseq_lasformer.ops.gpu.kernels.tiles")
    real, asked, before = JITFunction.run, tiles.shared_memory, None

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        return launch(real, function, args, {**kwargs, "grid": grid, "warmup": True})

    with contextlib.suppress(RuntimeError):  # there is no driver without a GPU
        before = driver.active
    JITFunction.run, tiles.shared_memory = run, lambda device: target.shared
    driver.set_active(_NoDevice(target))
    try:
        yield
    finally:
        JITFunction.run, tiles.shared_memory = real, asked
        driver.set_active(before)


@contextlib.contextmanager
def compiling(arch: int) -> Iterator[list[Compiled]]:
    """Compile kernels for a GPU architecture (80, 90, …) where they would be launched, and collect them."""
    found: list[Compiled] = []

    def launch(real: Any, function: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        start = time.perf_counter()
        kernel = real(function, *args, **named)
        constants = {name: value for name, value in named.items() if name.isupper()}
        found.append(Compiled(function.fn.__name__, kernel, constants, time.perf_counter() - start))
        return kernel

    with without_device(Target(arch, SHARED_KIB[arch] * 1024), launch):
        yield found


def _meta(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def decode(dtype: torch.dtype, rows: int, length: int, own: bool, kappa: int = KAPPA) -> None:
    """Run selection, attention and a norm of one step over ``length`` positions, of the translation or the source."""
    n_items, capacity, width = max(1, rows // BEAM), max(length, 64) * (1 + own), HEADS * HEAD_DIM
    table = _meta(rows, length, dtype=torch.int32) if own else None
    index = KeyIndex(table, *(_meta(n_items, dtype=torch.int64) for _ in range(2)), length)
    if kappa < KAPPA_ONE:
        keys = _meta(n_items, capacity, SELECT_DIM, dtype=dtype)
        kept = triton_decode.topk_indices(_meta(rows, SELECT_DIM, dtype=dtype), keys, index, kappa)
    else:
        assert table is not None
        kept = KeptKeys(table, _meta(rows, dtype=torch.int32))
    keys = _meta(n_items, capacity, width, dtype=dtype)
    x, weight = _meta(rows, width, dtype=dtype), _meta(width, dtype=dtype)
    triton_decode.attend_kept(x, keys, keys, kept, HEADS)
    if kappa < KAPPA_ONE:  # the same with own lines
        lines = OwnLines(*(_meta(rows, dtype=torch.int64) for _ in range(2)))
        scored = _meta(n_items, capacity, SELECT_DIM, dtype=dtype)
        kept = triton_decode.topk_indices(_meta(rows, SELECT_DIM, dtype=dtype), scored, index, kappa, lines)
        triton_decode.attend_kept(x, keys, keys, kept, HEADS, OwnShift(lines, _meta(rows, HEADS, dtype=torch.float32)))
    triton_step.add_norm(x, x, weight, weight, 1e-5)
    newest, selector_keys = _meta(rows // n_items, dtype=torch.int64), _meta(n_items, capacity, SELECT_DIM, dtype=dtype)
    products = _meta(rows, 3 * width + 2 * SELECT_DIM, dtype=dtype).split([width] * 3 + [SELECT_DIM] * 2, 1)
    turned = _meta(rows, PAIRS, 2, dtype=torch.float32)
    triton_step.rotate(products[0], HEAD_DIM, n_pairs(HEAD_DIM), turned)
    triton_step.append([*products[1:3], products[4]], newest, [keys, keys, selector_keys])


def search(dtype: torch.dtype, items: int, words: int, given: bool, beam: int = BEAM) -> None:
    """Run the search of one step: lines that end, candidates of ``words`` words, hypotheses that go on."""
    k, number = 2 * beam, _meta(items, dtype=torch.int64)
    lprobs, counts = _meta(items, beam, words, dtype=torch.float32), _meta(items, beam, dtype=torch.int64)
    lines = LineEnds(counts, counts, number, _meta(items, 40, dtype=torch.int64), 4, 2)
    triton_search.log_probabilities(_meta(items * beam, words, dtype=dtype))
    free = _meta(items, 1, dtype=torch.bool) if given else None
    triton_search.restrict_lines(lprobs, lines, 100, free, -1e4)
    past = _meta(items, beam, dtype=torch.float32) if given else None
    assert triton_search.fits(lprobs, k)
    candidates = triton_search.top_candidates(lprobs, past, k)
    unused = _meta(items, beam, dtype=torch.bool)
    on = triton_search.advance(*candidates, unused, _meta(items, 1, dtype=torch.int64), 2, given)
    triton_search.count_lines(counts, counts, *candidates[1:], on[6], 4)


def encode(dtype: torch.dtype, length: int, heads: int = HEADS, width: int = HEAD_DIM) -> None:
    """Run selection and attention in tiles over one document of ``length`` tokens, in inference and in training."""
    q, bits = _meta(1, heads, length, width, dtype=dtype), _meta(1, length, -(-length // 32), dtype=torch.int32)
    selector, padding = _meta(1, length, SELECT_DIM, dtype=dtype), _meta(1, length, dtype=torch.bool)
    lines = OwnLines(*(_meta(1, length, dtype=torch.int64) for _ in range(2)))
    for mask in AttentionMask(padding, False), AttentionMask(None, True), AttentionMask(None, True, own=lines):
        triton_bits.select_block(selector, selector, mask, 0, length, _meta(dtype=torch.int64), bits)
    if not triton_tiles.fits(q):
        return
    triton_tiles.forward(q, q, q, bits, False)
    dropout = DropoutMask(0.1, _meta(1, dtype=torch.int64))
    out, lse = triton_tiles.forward(q, q, q, bits, True, dropout)
    triton_tiles.backward(Attended(q, q, q, out, out, lse), bits, True, dropout)
    own = lines.pairs, _meta(1, heads, length, dtype=torch.float32)
    out, lse = triton_tiles.forward(q, q, q, bits, True, dropout, *own)
    triton_tiles.backward(Attended(q, q, q, out, out, lse, own[1]), bits, True, dropout, own[0])


def teach(dtype: torch.dtype, length: int, heads: int = HEADS, width: int = HEAD_DIM, sampled: int = 512) -> None:
    """Run supervision and the straight-through gradient, from a sample of the queries of one document."""
    q, k = _meta(1, heads, sampled, width, dtype=dtype), _meta(1, heads, length, width, dtype=dtype)
    sel_q, sel_k = _meta(1, 1, sampled, SELECT_DIM, dtype=dtype), _meta(1, 1, length, SELECT_DIM, dtype=dtype)
    bits, d_loss = _meta(1, sampled, -(-length // 32), dtype=torch.int32), _meta(dtype=torch.float32)
    exact = dtype == torch.float16
    if not triton_tiles.fits(q):
        return
    padded, seed = _meta(1, length, dtype=torch.bool), _meta(1, dtype=torch.int64)
    for padding, causal, reverse, dropout_p in ((padded, False, True, 0.0), (None, True, False, 0.1)):
        where, dropout = Rows(AttentionMask(padding, causal), 3, 8), DropoutMask(dropout_p, seed)
        mean, norms = triton_supervise.mean_attention([q, q], [k, k], None, where)
        rows, norm = triton_supervise.sums(sel_q, sel_k, mean, bits, None, where, reverse)
        sums = triton_supervise.Sums(rows, norm, norms)
        triton_supervise.targets(sel_q, sel_k, mean, sums, d_loss, dtype, where, reverse)
        heads, selector = Into(q, k, False), Into(sel_q, sel_k, False)
        triton_straight_through.softmax_gradient(q, k, norms[0], mean, heads, exact, where)
        triton_straight_through.mask_gradient(HeadRows(q, q, k, k, norms[0], norms[0], 0, length), True, dropout, where)
        triton_straight_through.softmax_gradient(sel_q, sel_k, None, mean, selector, False, where)


CASES: dict[str, Callable[[torch.dtype], None]] = {
    **{
        f"step, {rows} rows, {length} positions of the {'translation' if own else 'source'}": (
            lambda dtype, rows=rows, length=length, own=own: decode(dtype, rows, length, own)
        )
        for rows, length in ((5, 64), (5, 1000), (5, 4096), (160, 4096), (5, 16384), (5, 65536))
        for own in (True, False)
    },
    "search, 1 item": lambda dtype: search(dtype, 1, 32000, False),
    "search, 32 items, given beginnings": lambda dtype: search(dtype, 32, 32000, True),
    "search, the widest beam of 32,000 words": lambda dtype: search(dtype, 1, 32000, False, 32),
    "search, the widest beam": lambda dtype: search(dtype, 1, 4096, False, 64),
    "step, 5 rows, 4096 positions, all kept": lambda dtype: decode(dtype, 5, 4096, True, KAPPA_ONE),
    "full pass, 1000 tokens": lambda dtype: encode(dtype, 1000),
    "full pass, 4096 tokens": lambda dtype: encode(dtype, 4096),
    "full pass, one head of 128": lambda dtype: encode(dtype, 4096, 1, 128),
    "full pass, one head of 256": lambda dtype: encode(dtype, 4096, 1, 256),  # in float32, plain PyTorch
    "full pass, 4 heads of 32": lambda dtype: encode(dtype, 4096, 4, 32),
    "teacher, 4096 tokens": lambda dtype: teach(dtype, 4096),
    "teacher, 65536 tokens": lambda dtype: teach(dtype, 65536, sampled=4096),
    "teacher, 20 tokens": lambda dtype: teach(dtype, 20, sampled=20),
    "teacher, one head of 128": lambda dtype: teach(dtype, 4096, 1, 128),
    "teacher, one head of 256": lambda dtype: teach(dtype, 4096, 1, 256),  # in float32, plain PyTorch
}


def resources(kernel: Any, arch: int) -> dict[str, int]:
    """Return a kernel's registers and spilled bytes per thread, by ptxas, and its shared memory in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(kernel.asm["ptx"])
        suffix = "a" if arch >= 90 else ""
        command = [get_ptxas(arch).path, "-v", f"--gpu-name=sm_{arch}{suffix}", str(path), "-o", f"{path}.cubin"]
        if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
            command.append("--regAllocOptLevel=2")  # as Triton itself calls it
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    found = {"shared": int(kernel.metadata.shared)}
    for name, pattern in (("registers", r"Used (\d+) registers"), ("spilled", r"(\d+) bytes spill stores")):
        hit = re.search(pattern, said)
        found[name] = int(hit[1]) if hit else 0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="80,90", help="default: %(default)s")
    parser.add_argument("--dtypes", default="float16,bfloat16,float32", help="default: %(default)s")
    parser.add_argument("--only", default="", help="a pattern of the cases to compile; default: all")
    parser.add_argument("--max-spill", type=int, default=256, help="bytes per thread (default: %(default)s)")
    args = parser.parse_args()
    if unknown := set(args.arch.split(",")) - set(map(str, SHARED_KIB)):
        sys.exit(f"error: --arch {','.join(sorted(unknown))}: known: {', '.join(map(str, SHARED_KIB))}")
    failed = 0
    print(f"Triton {triton.__version__}\n{'':80}registers  spilled  shared  seconds")
    for arch in map(int, args.arch.split(",")):
        for case, call in CASES.items():
            for dtype in args.dtypes.split(",") if re.search(args.only, case) else ():
                try:
                    with compiling(arch) as found:
                        call(getattr(torch, dtype))
                except Exception as e:  # the others are compiled even if this one fails
                    failed += 1
                    print(f"sm_{arch} {dtype} {case}: failed, {type(e).__name__}: {str(e).splitlines()[0]}", flush=True)
                    continue
                for compiled in found:
                    used = resources(compiled.kernel, arch)
                    bad = used["spilled"] > args.max_spill or used["shared"] > SHARED_KIB[arch] * 1024
                    failed += bad
                    print(
                        f"{f'sm_{arch} {dtype} {compiled.name} ({case})':80}{used['registers']:9}{used['spilled']:9}"
                        f"{used['shared']:8}{compiled.seconds:9.1f}{'  too much' if bad else ''}",
                        flush=True,
                    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
