"""Times of the operations of a training step on a GPU, for ``python -m benchmarks.gpu``: device time, base size.

Selection; attention in tiles; supervision by one layer, from all queries or a sample; what the straight-through
gradient adds; each with its backward pass, beside PyTorch's attention over all keys.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks.devices import Place
from benchmarks.rows import Row
from fairseq_lasformer import ops
from fairseq_lasformer.ops import AttentionMask, KeptKeys, KeyIndex, RowSample, StraightThrough, Teachers

HEADS, HEAD_DIM, SELECT_DIM, KAPPA, BEAM = 8, 64, 64, 50_000, 5
SIZES = ((4, 4096), (1, 8192), (32, 512))


def device_ms(place: Place, work: Callable[[], object], repeat: int = 10) -> float:
    """Return the median milliseconds of a call on the device; on a CPU, of its only call."""
    if place.device.type == "cpu":
        return 1000 * place.seconds(work)
    for _ in range(2):
        work()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeat + 1)]
    torch.cuda._sleep(20_000_000)  # the host is ahead of the device, so that its launches do not count
    events[0].record()
    for event in events[1:]:
        work()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(events, events[1:]))


def full_passes(place: Place, n_batch: int, length: int, causal: bool) -> Iterator[tuple[str, float]]:
    """Yield milliseconds of the operations of full passes over ``n_batch`` documents."""
    new = partial(torch.randn, device=place.device, dtype=place.dtype)
    width = HEADS * HEAD_DIM

    def heads() -> torch.Tensor:  # as projections leave them
        x = new(n_batch, length, width).view(n_batch, length, HEADS, HEAD_DIM).transpose(1, 2)
        return x.requires_grad_()

    q, k, v = heads(), heads(), heads()
    sel_q, sel_k = (new(n_batch, length, SELECT_DIM).requires_grad_() for _ in range(2))
    mask = AttentionMask(None, causal)
    select = partial(ops.topk_bitmask, sel_q, sel_k, mask, KAPPA)
    bits = select()
    yield "select", device_ms(place, select)
    d_out = torch.randn_like(q)

    def both(name: str, forward: Callable[[], torch.Tensor], leaves: tuple[torch.Tensor, ...]) -> Iterator:
        yield name, device_ms(place, forward)
        out = forward()
        gradient = d_out if out.dim() else torch.ones_like(out)
        yield (
            f"{name} backward",
            device_ms(place, lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True, allow_unused=True)),
        )

    yield from both("tiles", lambda: ops.tiled_attention(q, k, v, bits, mask), (q, k, v))
    yield from both("sdpa", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal), (q, k, v))
    for name, stride in (("all queries", 1), ("512 queries", max(1, n_batch * length // 512))):
        sample = RowSample(0, stride)
        through = StraightThrough(sel_q, sel_k, True, sample)
        yield from both(
            f"tiles, straight-through, {name}",
            partial(ops.tiled_attention, q, k, v, bits, mask, through),
            (q, k, v, sel_q, sel_k),
        )
        teachers = Teachers([q], [k])

        def supervise(sample: RowSample = sample, teachers: Teachers = teachers) -> torch.Tensor:
            return ops.tiled_supervise(sel_q, sel_k, teachers, bits, mask, sample).kl

        yield from both(f"supervise, {name}", supervise, (sel_q, sel_k, q, k))


def step_selection(place: Place, n_rows: int, length: int) -> Callable[[], KeptKeys | None]:
    """Return the selection of a decoding step among ``length`` positions of the translation."""
    n_items = n_rows // BEAM
    table = torch.arange(length, dtype=torch.int32, device=place.device).repeat(n_rows, 1)
    start = torch.zeros(n_items, dtype=torch.long, device=place.device)
    index = KeyIndex(table, start, torch.full_like(start, length), length)
    q = torch.randn(n_rows, SELECT_DIM, device=place.device, dtype=place.dtype)
    keys = torch.randn(n_items, length, SELECT_DIM, device=place.device, dtype=place.dtype)
    return partial(ops.topk_indices, q, keys, index, KAPPA, "triton")


def operations(place: Place, quick: bool) -> Iterator[Row]:
    """Yield the milliseconds of all operations."""
    for n_batch, length in ((1, 64),) if quick else SIZES:
        for causal in (True, False):
            case = f"{n_batch} x {length}{', causal' if causal else ''}"
            for name, ms in full_passes(place, n_batch, length, causal):
                yield Row(case, name, "ms", ms, compared=False)
    for n_rows, length in ((5, 64),) if quick else ((160, 4096), (160, 8192), (5, 4096)):
        ms = device_ms(place, step_selection(place, n_rows, length))
        yield Row(f"step, {n_rows} rows, T={length}", "select", "ms", ms, compared=False)
