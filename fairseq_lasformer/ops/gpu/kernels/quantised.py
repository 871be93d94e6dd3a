"""Decoding in 8 bits on GPUs: linear layers, and keys and values that are quantised as they are written.

Definitions: ``reference.linear_quantised``, ``reference.quantised_heads``, to the last bit: products and sums are not
fused here.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.types import EightBit

INPUTS = 128  # inputs per block of weights
MOST_ROWS = 64  # rows per program
MOST_TILE = 4096  # rows times outputs per program: sm_86 has 99 KiB of shared memory
FULL = 132  # programs that fill a large GPU
_NEAREST = tl.constexpr(12582912.0)  # 1.5 * 2^23: adding and subtracting it rounds a number below 2^22, ties to even


@triton.jit
def _scales(most, finite):
    """Return the factors that scale rows to numbers from -127 to 127, and back: NaN for rows that are not finite."""
    some = finite & (most > 0)
    into = tl.where(some, tl.div_rn(1.0, tl.where(some, most, 1.0)) * 127.0, 0.0)  # as PyTorch divides a scalar
    return into, tl.where(finite, tl.div_rn(most, 127.0), float("nan"))


@triton.jit
def _numbers(x, into, finite):
    """Quantise x [R, K] to 8 bits with factors of its rows."""
    return ((tl.where(finite[:, None], x, 0.0) * into[:, None] + _NEAREST) - _NEAREST).to(tl.int8)


@triton.jit
def _magnitude(x):
    """Return the largest magnitude of each row's finite numbers, and whether all numbers are finite."""
    size = tl.abs(x)
    finite = size < float("inf")  # NaN is not
    return tl.max(tl.where(finite, size, 0.0), 1), tl.min(finite.to(tl.int32), 1)


@triton.jit(do_not_specialize=["n_rows"])
def _linear(
    x, weight, scale, bias, out, n_rows, inputs, outputs,
    BIAS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
    """Compute some outputs of some rows. Each program requantises its rows, which costs less than another launch."""
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INPUTS)
    row = x + i.to(tl.int64)[:, None] * inputs
    most, finite = tl.zeros([ROWS], tl.float32), tl.full([ROWS], 1, tl.int32)
    for begin in range(0, inputs, INPUTS):
        mask = (i[:, None] < n_rows) & ((begin + k)[None, :] < inputs)
        size, all_finite = _magnitude(tl.load(row + (begin + k)[None, :], mask=mask, other=0.0).to(tl.float32))
        most, finite = tl.maximum(most, size), tl.minimum(finite, all_finite)
    into, back = _scales(most, finite != 0)
    sums = tl.zeros([ROWS, OUTPUTS], tl.int32)
    column = weight + n.to(tl.int64)[None, :] * inputs
    for begin in range(0, inputs, INPUTS):
        mask = (i[:, None] < n_rows) & ((begin + k)[None, :] < inputs)
        part = tl.load(row + (begin + k)[None, :], mask=mask, other=0.0).to(tl.float32)
        of_weights = (n[None, :] < outputs) & ((begin + k)[:, None] < inputs)
        weights = tl.load(column + (begin + k)[:, None], mask=of_weights, other=0)
        sums = tl.dot(_numbers(part, into, finite != 0), weights, sums, out_dtype=tl.int32)
    factor = back[:, None] * tl.load(scale + n, mask=n < outputs, other=0.0)[None, :]
    result = sums.to(tl.float32) * factor
    if BIAS:
        result += tl.load(bias + n, mask=n < outputs, other=0.0)[None, :]
    if RELU:
        result = tl.where(result < 0, 0.0, result)  # what is not a number stays so
    at = out + i.to(tl.int64)[:, None] * outputs + n[None, :]
    tl.store(at, result.to(out.dtype.element_ty), mask=(i[:, None] < n_rows) & (n[None, :] < outputs))


@triton.jit
def _append(
    key, value, newest, keys, key_scale, values, value_scale,
    stride, value_stride, capacity, beam, n_heads, width, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the newest key (program 0) or value (1) of a row to its slot."""
    row = tl.program_id(0)
    if tl.program_id(1) == 1:
        key, keys, key_scale, stride = value, values, value_scale, value_stride
    head, d = tl.arange(0, HEADS), tl.arange(0, WIDTH)
    mask = (head[:, None] < n_heads) & (d[None, :] < width)
    at = head[:, None] * width + d[None, :]
    x = tl.load(key + row.to(tl.int64) * stride + at, mask=mask, other=0.0).to(tl.float32)
    most, all_finite = _magnitude(x)
    finite = all_finite != 0
    into, back = _scales(most, finite)
    slot = (row // beam).to(tl.int64) * capacity + tl.load(newest + row % beam)
    tl.store(keys + slot * n_heads * width + at, _numbers(x, into, finite), mask=mask)
    tl.store(key_scale + slot * n_heads + head, back, mask=head < n_heads)


def linear(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, relu: bool = False) -> Tensor:
    """Apply a linear layer in 8 bits, and a ReLU; other arguments and result as in ``reference.linear_quantised``."""
    (n_rows, inputs), n_outputs = x.shape, weight.size(0)
    rows = min(MOST_ROWS, max(16, triton.next_power_of_2(n_rows)))
    by_rows, outputs = triton.cdiv(n_rows, rows), MOST_TILE // max(32, rows)
    while outputs > 16 and by_rows * triton.cdiv(n_outputs, outputs) < FULL:
        outputs //= 2
    out = x.new_empty(n_rows, n_outputs)
    _linear[(triton.cdiv(n_outputs, outputs), by_rows)](
        x, weight, scale, scale if bias is None else bias, out, n_rows, inputs, n_outputs,
        BIAS=bias is not None, RELU=relu, ROWS=rows, OUTPUTS=outputs, INPUTS=INPUTS, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def append(key: Tensor, value: Tensor, newest: Tensor, keys: EightBit, values: EightBit) -> None:
    """Write the newest keys and values of all rows, in 8 bits.

    Args:
        key, value: [R, H*D], rows contiguous.
        newest: int64 [R / N], the slots of an item's rows.
        keys, values: destinations.
    """
    (n_rows, width), (n_items, capacity, n_heads) = key.shape, keys.scale.shape
    padded = triton.next_power_of_2(n_heads), triton.next_power_of_2(width // n_heads)
    _append[(n_rows, 2)](
        key, value, newest, *keys, *values, key.stride(0), value.stride(0), capacity,
        n_rows // n_items, n_heads, width // n_heads,
        HEADS=padded[0], WIDTH=padded[1], enable_fp_fusion=False,
    )  # fmt: skip
