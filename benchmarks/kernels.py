"""The CPU kernels one by one, with every instruction set that this processor has, on one thread.

Sizes are those of the base model: a decoding step at beam 5 (products of 5 rows, selection among 4,096 keys, attention
over 5% of them, the best of 8,000 words) and a training step on 1,024 tokens. microseconds: medians, with all
instruction sets taking turns. G/s: billion multiplications and additions per second; GB/s: bytes that must be read.
peak: the same for a large product in PyTorch and a sum of 512 MB, for comparison.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from benchmarks.rows import Row, in_turns
from fairseq_lasformer import ops
from fairseq_lasformer.ops import cpu

BASELINES: tuple[str, ...] = ("avx2",)
ROWS, WIDTH, HEADS, KEYS, TOKENS, KEPT = 5, 512, 8, 4096, 1024, 0.05
COPIES = 6  # of the weights, so they come from the third cache, as in a step of six layers


class Work(NamedTuple):
    """A call of a kernel, its operations, and the bytes that it must read."""

    run: Callable[[int], object]
    operations: float
    bytes: float


def product(rows: int, inputs: int, outputs: int, int8: bool) -> Work:
    x = torch.randn(rows, inputs)
    packed = [ops.pack_linear(torch.randn(outputs, inputs), torch.randn(outputs), int8) for _ in range(COPIES)]
    size = inputs * outputs
    return Work(lambda i: packed[i % COPIES](x), 2 * rows * size, size * (1 if int8 else 4))


def decoding() -> dict[str, Work]:
    kernels = torch.ops.fairseq_lasformer
    kept_keys = round(KEPT * KEYS)
    q, narrow = torch.randn(ROWS, WIDTH), torch.randn(ROWS, 64)
    keys, values, selector = torch.randn(1, KEYS, WIDTH), torch.randn(1, KEYS, WIDTH), torch.randn(1, KEYS, 64)
    start, count = torch.zeros(1, dtype=torch.long), torch.full((1,), KEYS)
    slots = torch.stack([torch.randperm(KEYS)[:kept_keys].sort().values for _ in range(ROWS)]).int()
    kept, words = torch.full((ROWS,), kept_keys, dtype=torch.int32), torch.randn(1, ROWS, 8000)
    return {
        "select, 5 x 4,096": Work(
            lambda _: kernels.topk_indices(narrow, selector, None, start, count, int(KEPT * 1e6)),
            2 * ROWS * KEYS * 64,
            KEYS * 64 * 4,
        ),
        "attend, 5 x 205 of 4,096": Work(
            lambda _: kernels.attend_kept(q, keys, values, slots, kept, HEADS),
            4 * ROWS * kept_keys * WIDTH,
            2 * ROWS * kept_keys * WIDTH * 4,
        ),
        "candidates, 5 x 8,000": Work(lambda _: kernels.top_candidates(words, None, 10), ROWS * 8000, ROWS * 8000 * 4),
    }


def training() -> dict[str, Work]:
    kernels = torch.ops.fairseq_lasformer
    n = round(KEPT * TOKENS)
    q, k, v, d_out = torch.randn(4, 1, HEADS, TOKENS, WIDTH // HEADS)
    slots = torch.rand(TOKENS, TOKENS).argsort(1)[:, :n].sort().values.int().contiguous()
    counts = torch.full((TOKENS,), n, dtype=torch.int32)
    out, lse = kernels.gather_forward(q, k, v, slots, counts, 0.1, 1)
    back = d_out.transpose(1, 2).contiguous()
    once, read = 2 * TOKENS * n * WIDTH, 4 * TOKENS * n * WIDTH
    scores, d = torch.randn(2, 1, HEADS, 128, TOKENS)
    mask, delta = torch.rand(1, 128, TOKENS) < 0.5, torch.randn(1, HEADS, 128)
    mean, norm, size = torch.zeros(1, 128, TOKENS), torch.randn(1, HEADS, 128) + 9, scores.numel()
    start = torch.zeros(TOKENS, dtype=torch.long)
    return {
        "gather forward, 1,024 x 51": Work(
            lambda _: kernels.gather_forward(q, k, v, slots, counts, 0.1, 1), 2 * once, 2 * read
        ),
        "gather backward, 1,024 x 51": Work(
            lambda _: kernels.gather_backward(back, q, k, v, slots, counts, out, lse, 0.1, 1), 5 * once, 4 * read
        ),
        "select, 1,024 x 1,024": Work(
            lambda _: kernels.topk_scored(scores[0, 0].repeat(8, 1), start, start + TOKENS, int(KEPT * 1e6)),
            0,
            TOKENS * TOKENS * 4,
        ),
        "softmax, 8 x 128 x 1,024": Work(lambda _: kernels.row_softmax(scores, mask, mean, 0.1), 0, 4 * size),
        "softmax's gradient": Work(lambda _: kernels.softmax_gradient(scores, mean), 0, 4 * size),
        "kept keys' gradient": Work(
            lambda _: kernels.kept_gradient(scores.copy_(d), d, norm, delta, mask), 0, 3 * 4 * size
        ),
        "mask's gradient": Work(lambda _: kernels.mask_gradient(scores, norm, d, delta, mask, 1.0), 0, 8 * size),
    }


def cases() -> dict[str, Work]:
    shapes = [(ROWS, 512, 512), (ROWS, 512, 2048), (ROWS, 2048, 512), (ROWS, 512, 8000), (160, 512, 2048)]
    products = {
        f"{'int8' if int8 else 'float32'}, {r} x {k:,} x {n:,}": product(r, k, n, int8)
        for int8 in (False, True)
        for r, k, n in shapes
    }
    return products | decoding() | training()


def microseconds(run: Callable[[int], object], least: float = 0.02) -> float:
    """Return the time of a call, from as many calls as take at least ``least`` seconds."""
    calls, passed = 0, 0.0
    start = time.perf_counter()
    while passed < least:
        run(calls)
        calls += 1
        passed = time.perf_counter() - start
    return 1e6 * passed / calls


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeat", type=int, default=9, help="default: %(default)s")
    parser.add_argument("--cases", default="", metavar="TEXT", help="cases whose name contains this text")


@torch.no_grad()
def measure(args: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(1)
    sets = cpu.instruction_sets()

    def with_set(name: str, work: Work) -> float:
        cpu.use_instructions(name)
        return microseconds(work.run)

    x, w, numbers = torch.randn(512, 512), torch.randn(2048, 512), torch.ones(128 << 20)
    work = {
        "G/s": Work(lambda _: F.linear(x, w), 2 * 512 * 512 * 2048, 0),
        "GB/s": Work(lambda _: numbers.sum(), 4 << 27, 0),
    }
    times = in_turns({name: partial(microseconds, each.run) for name, each in work.items()}, args.repeat, "peak")
    yield from (Row("peak", "torch", name, work[name].operations / 1e3 / t, False) for name, t in times.items())
    for case, each in cases().items():
        if args.cases not in case or args.done.issuperset((case, name) for name in sets):
            continue
        times = in_turns({name: partial(with_set, name, each) for name in sets}, args.repeat, case)
        for name, value in times.items():
            yield Row(case, name, "microseconds", value)
            if each.operations:
                yield Row(case, name, "G/s", each.operations / 1e3 / value, compared=False)
            yield Row(case, name, "GB/s", each.bytes / 1e3 / value, compared=False)
    cpu.use_instructions()
