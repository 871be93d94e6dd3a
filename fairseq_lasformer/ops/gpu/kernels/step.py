"""Small operations of a decoding step in one kernel each: a residual connection and its norm, rotation, the cache.

Definitions: ``reference.add_norm``, ``reference.append``, ``rotary.rotate``.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

TOGETHER = 3
"""Largest number of entries that one launch writes."""

MOST = 4096
"""Largest width: a row is held by one program."""


@triton.jit
def _add_norm(x, added, weight, bias, total, normed, width, eps, WIDTH: tl.constexpr):
    """Store one row's x + added, rounded to its type, and the layer norm of that."""
    row, d = tl.program_id(0).to(tl.int64) * width, tl.arange(0, WIDTH)
    inside = d < width
    value = tl.load(x + row + d, mask=inside, other=0.0).to(tl.float32)
    value = (value + tl.load(added + row + d, mask=inside, other=0.0).to(tl.float32)).to(total.dtype.element_ty)
    tl.store(total + row + d, value, mask=inside)
    value = value.to(tl.float32)
    centred = tl.where(inside, value - tl.sum(value, 0) / width, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    gain = tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(normed + row + d, centred * scale * gain + shift, mask=inside)


def add_norm(x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + added and its layer norm; arguments as in ``reference.add_norm``, contiguous."""
    n_rows, width = x.shape
    total, normed = torch.empty_like(x), torch.empty_like(x)
    padded = triton.next_power_of_2(width)
    _add_norm[(n_rows,)](
        x, added, weight, bias, total, normed, width, eps, WIDTH=padded, num_warps=max(1, min(8, padded // 256))
    )  # fmt: skip
    return total, normed


@triton.jit
def _rotate(x, rotation, out, stride, n, width, WIDTH: tl.constexpr, PAIRS: tl.constexpr, TURNS: tl.constexpr):
    """Store one row's heads, whose first 2 * PAIRS dimensions are rotated by every (TURNS / PAIRS)-th angle."""
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    inside, place = d < n, d % width
    turned, second = inside & (place < 2 * PAIRS), place >= PAIRS
    value = tl.load(x + row * stride + d, mask=inside, other=0.0).to(tl.float32)
    partner = tl.where(second, d - PAIRS, d + PAIRS)
    other = tl.load(x + row * stride + partner, mask=turned, other=0.0).to(tl.float32)
    every: tl.constexpr = TURNS // PAIRS
    angle = rotation + row * (2 * TURNS) + 2 * (place % PAIRS * every + every // 2)
    cos, sin = tl.load(angle, mask=turned, other=1.0), tl.load(angle + 1, mask=turned, other=0.0)
    tl.store(out + row * n + d, value * cos + tl.where(second, other, -other) * sin, mask=inside)


def rotate(x: Tensor, width: int, pairs: int, rotation: Tensor) -> Tensor:
    """Return heads of ``width`` dimensions, [R, n], rotated by float32 [R, 8, 2]; the columns of x are adjacent."""
    n_rows, n = x.shape
    out, padded = x.new_empty(n_rows, n), triton.next_power_of_2(n)
    _rotate[(n_rows,)](
        x, rotation, out, x.stride(0), n, width, WIDTH=padded, PAIRS=pairs, TURNS=rotation.size(1),
        num_warps=max(1, min(8, padded // 256)),
    )  # fmt: skip
    return out


_SIZES = [f"{name}{i}" for name in ("stride", "room", "width") for i in range(TOGETHER)]


@triton.jit(do_not_specialize=_SIZES)  # a branch cannot choose between a constant and a number
def _write(
    new0, new1, new2, newest, store0, store1, store2, stride0, stride1, stride2, room0, room1, room2,
    width0, width1, width2, beam, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the newest entry of a row to its slot: of the first store (program 0), the second or the third."""
    row, which = tl.program_id(0), tl.program_id(1)
    new, store, stride, room, width = new0, store0, stride0, room0, width0
    if which == 1:
        new, store, stride, room, width = new1, store1, stride1, room1, width1
    if which == 2:
        new, store, stride, room, width = new2, store2, stride2, room2, width2
    d = tl.arange(0, WIDTH)
    inside = d < width
    entry = tl.load(new + row.to(tl.int64) * stride + d, mask=inside)
    slot = tl.load(newest + row % beam).to(tl.int64)
    tl.store(store + (row // beam).to(tl.int64) * room + slot * width + d, entry, mask=inside)


def append(new: Sequence[Tensor], newest: Tensor, stores: Sequence[Tensor]) -> None:
    """Write up to :data:`TOGETHER` entries of all rows; arguments as in ``reference.append``, rows contiguous."""
    n_rows, last = new[0].size(0), len(new) - 1
    every = [(new[min(i, last)], stores[min(i, last)]) for i in range(TOGETHER)]
    _write[(n_rows, len(new))](
        *(entries for entries, _ in every), newest, *(store for _, store in every),
        *(entries.stride(0) for entries, _ in every), *(store.stride(0) for _, store in every),
        *(entries.size(1) for entries, _ in every), n_rows // stores[0].size(0),
        WIDTH=triton.next_power_of_2(max(entries.size(1) for entries in new)),
    )  # fmt: skip
