"""Full passes over the kept keys on GPUs, forward and backward (arXiv 2309.14174, eq 1-3): tiles of all keys, and bits.

The kept keys of a query are scattered, so gathering them costs a GPU more than reading all keys in tiles (unless fewer
than about 1.6 % are kept). The mask has one bit per query-key pair and is shared by the heads. Definition:
``reference.selected_attention``. With P the weights, L their log-normaliser and delta = dO . O:

    dV = P^T dO,   dS = P (dO . V - delta),   dQ = dS K,   dK = dS^T Q

Queries' gradients are summed over tiles of keys, those of keys and values over tiles of queries, each in a separate
kernel: no two programs add to the same sum, so every run gives the same sums.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.gpu.kernels.scores import _LN2, _LOG2E, ANY
from fairseq_lasformer.ops.types import NO_DROPOUT, Attended, DropoutMask

TILE = 64
SHARED = 232_448  # bytes of shared memory per program if there is no GPU to ask: those of sm_90
NARROW_SHARED = 112 * 1024  # GPUs with less (sm_86, sm_89, sm_120: 99 KiB) load fewer tiles of wide heads ahead
MINIMUM_SHARED = 99 * 1024  # for heads wider than 64
TILE_ELEMENTS = 8192  # per tile of queries, keys or values: wider heads get smaller tiles to fit shared memory
_CHANGING = ["n_queries", "n_keys", "reach", "bits_stride", "least"]


@triton.jit
def _kept(bits, i, begin, n_queries, n_keys, bits_stride, BLOCK: tl.constexpr):
    """Return which of the keys ``begin`` to ``begin + BLOCK - 1`` the queries keep; a query's words are loaded once."""
    j = tl.arange(0, BLOCK)
    at = bits + i.to(tl.int64) * bits_stride + begin // 32
    if BLOCK > 64:
        w = tl.arange(0, BLOCK // 32)
        words = tl.load(at[:, None] + w[None, :], mask=(i < n_queries)[:, None] & (begin + 32 * w < n_keys)[None, :])
        bit = tl.full([32], 1, tl.int32) << tl.arange(0, 32)
        return tl.reshape((words[:, :, None] & bit[None, None, :]) != 0, [i.shape[0], BLOCK])
    word = tl.load(at, mask=i < n_queries, other=0)[:, None]
    if BLOCK == 64:
        second = tl.load(at + 1, mask=(i < n_queries) & (begin + 32 + 0 * i < n_keys), other=0)
        word = tl.where((j < 32)[None, :], word, second[:, None])
    bit = tl.full([BLOCK], 1, tl.int32) << (j % 32)  # does not change in a loop
    return (word & bit[None, :]) != 0


@triton.jit
def _noise(row, j, seed, minimum, factor):
    """Return dropout factors for rows [I] (indices among all heads' rows) and keys [J]; see ``dropout.factors``."""
    x = row.to(tl.uint32)[:, None] * tl.full([], 0x9E3779B1, tl.uint32)
    x += j.to(tl.uint32)[None, :] * tl.full([], 0x85EBCA77, tl.uint32) + seed.to(tl.uint32)
    x = (x ^ (x >> 16)) * tl.full([], 0x85EBCA6B, tl.uint32)
    x = (x ^ (x >> 13)) * tl.full([], 0xC2B2AE35, tl.uint32)
    return tl.where((x ^ (x >> 16)) >= minimum.to(tl.uint32), factor, 0.0)


@triton.jit
def _tile(x, i, n, n_heads, width, WIDTH: tl.constexpr):
    """Load rows i of a head's x [n, width], whose stride is the width of all heads; also return their offsets."""
    d = tl.arange(0, WIDTH)
    mask = (i[:, None] < n) & (d[None, :] < width)
    at = i.to(tl.int64)[:, None] * (n_heads * width) + d[None, :]
    return tl.load(x + at, mask=mask, other=0.0), at, mask


@triton.jit
def _read(x, i, n, n_heads, width, WIDTH: tl.constexpr):
    """Load rows as :func:`_tile` does."""
    rows, at, mask = _tile(x, i, n, n_heads, width, WIDTH)
    return rows


@triton.jit
def _own(lines, shift, head, n_heads, i, n_queries, scale):
    """Load the range of each query's own line, and what is added to its scores before they are scaled."""
    here = i < n_queries
    at = lines + (head // n_heads * n_queries + i) * 2
    first = tl.load(at, mask=here, other=0)
    return (
        first,
        first + tl.load(at + 1, mask=here, other=0),
        tl.load(shift + head * n_queries + i, mask=here, other=0.0) / scale,
    )


@triton.jit
def _mine(j, first, after):
    """Return which keys j [J] are those of the own lines of queries [I]: [I, J]."""
    return (j[None, :] >= first[:, None]) & (j[None, :] < after[:, None])


@triton.jit
def _begin(head, n, n_heads, width):
    """Return the offset of a head's first row in [B, n, H, width]."""
    return (head // n_heads * n * n_heads + head % n_heads) * width


@triton.jit(do_not_specialize=_CHANGING)
def _forward(
    q, k, v, bits, lines, shift, out, lse,
    seed, bits_stride, scale, minimum, factor, n_queries, n_keys, reach, n_heads, width,
    OWN: tl.constexpr, DROPOUT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Process one tile of queries of one head against all keys."""
    head = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    bits += head // n_heads * n_queries * bits_stride
    of_queries, of_keys = _begin(head, n_queries, n_heads, width), _begin(head, n_keys, n_heads, width)
    k += of_keys
    v += of_keys
    query, at, mine = _tile(q + of_queries, i, n_queries, n_heads, width, WIDTH)
    if OWN:
        first_own, after_own, added = _own(lines, shift, head, n_heads, i, n_queries, scale)
    high = tl.full([BLOCK_Q], -1e30, tl.float32)
    sums = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, WIDTH], tl.float32)
    stop = tl.minimum(n_keys, (tl.program_id(0) + 1) * BLOCK_Q + reach)
    drawn = tl.load(seed) if DROPOUT else 0
    for begin in range(0, stop, BLOCK_K):
        j = begin + tl.arange(0, BLOCK_K)
        kept = _kept(bits, i, begin, n_queries, n_keys, bits_stride, BLOCK_K)
        key = _read(k, j, n_keys, n_heads, width, WIDTH)
        value = _read(v, j, n_keys, n_heads, width, WIDTH)
        score = tl.dot(query, tl.trans(key), input_precision="tf32x3")
        if OWN:
            score += tl.where(_mine(j, first_own, after_own), added[:, None], 0.0)
        score = tl.where(kept, score, float("-inf"))
        new = tl.maximum(high, tl.max(score, 1) * (scale * _LOG2E))
        weight = tl.exp2(score * (scale * _LOG2E) - new[:, None])
        fade = tl.exp2(high - new)
        sums = sums * fade + tl.sum(weight, 1)
        if DROPOUT:
            weight = weight * _noise(head * n_queries + i, j, drawn, minimum, factor)
        acc = acc * fade[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="tf32x3")
        high = new
    some = sums > 0
    result = acc / tl.where(some, sums, 1.0)[:, None]
    tl.store(out + of_queries + at, result.to(out.dtype.element_ty), mask=mine)
    norm = tl.where(some, (high + tl.log2(tl.where(some, sums, 1.0))) * _LN2, float("inf"))
    tl.store(lse + head * n_queries + i, norm, mask=i < n_queries)


@triton.jit(do_not_specialize=_CHANGING)
def _backward_queries(
    q, k, v, bits, lines, shift, lse, delta, d_out, out, dq, d_shift,
    seed, bits_stride, scale, minimum, factor, n_queries, n_keys, reach, n_heads, width,
    OWN: tl.constexpr, DROPOUT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute gradients of one tile of queries of one head, and delta, which those of keys and values also need."""
    head = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    bits += head // n_heads * n_queries * bits_stride
    of_queries, of_keys = _begin(head, n_queries, n_heads, width), _begin(head, n_keys, n_heads, width)
    k += of_keys
    v += of_keys
    query, at, mine = _tile(q + of_queries, i, n_queries, n_heads, width, WIDTH)
    d_row = _read(d_out + of_queries, i, n_queries, n_heads, width, WIDTH)
    row = _read(out + of_queries, i, n_queries, n_heads, width, WIDTH)
    norm = tl.load(lse + head * n_queries + i, mask=i < n_queries, other=float("inf")) * _LOG2E
    mean = tl.sum(d_row.to(tl.float32) * row.to(tl.float32), 1)
    tl.store(delta + head * n_queries + i, mean, mask=i < n_queries)
    if OWN:
        first_own, after_own, added = _own(lines, shift, head, n_heads, i, n_queries, scale)
        d_own = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, WIDTH], tl.float32)
    stop = tl.minimum(n_keys, (tl.program_id(0) + 1) * BLOCK_Q + reach)
    drawn = tl.load(seed) if DROPOUT else 0
    for begin in range(0, stop, BLOCK_K):
        j = begin + tl.arange(0, BLOCK_K)
        kept = _kept(bits, i, begin, n_queries, n_keys, bits_stride, BLOCK_K)
        key = _read(k, j, n_keys, n_heads, width, WIDTH)
        value = _read(v, j, n_keys, n_heads, width, WIDTH)
        score = tl.dot(query, tl.trans(key), input_precision="tf32x3")
        if OWN:
            score += tl.where(_mine(j, first_own, after_own), added[:, None], 0.0)
        score = tl.where(kept, score, float("-inf"))
        weight = tl.exp2(score * (scale * _LOG2E) - norm[:, None])
        d_weight = tl.dot(d_row, tl.trans(value), input_precision="tf32x3")
        if DROPOUT:
            d_weight = d_weight * _noise(head * n_queries + i, j, drawn, minimum, factor)
        d_score = weight * (d_weight - mean[:, None])
        if OWN:
            d_own += tl.sum(tl.where(_mine(j, first_own, after_own), d_score, 0.0), 1)
        acc += tl.dot(d_score.to(key.dtype), key, input_precision="tf32x3")
    tl.store(dq + of_queries + at, (acc * scale).to(dq.dtype.element_ty), mask=mine)
    if OWN:
        tl.store(d_shift + head * n_queries + i, d_own, mask=i < n_queries)


@triton.jit(do_not_specialize=_CHANGING)
def _backward_keys(
    q, k, v, bits, lines, shift, lse, delta, d_out, dk, dv,
    seed, bits_stride, scale, minimum, factor, n_queries, n_keys, reach, n_heads, width,
    OWN: tl.constexpr, DROPOUT: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute gradients of one tile of keys and values of one head."""
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_K
    j = first + tl.arange(0, BLOCK_K)
    bits += head // n_heads * n_queries * bits_stride
    of_queries, of_keys = _begin(head, n_queries, n_heads, width), _begin(head, n_keys, n_heads, width)
    q += of_queries
    d_out += of_queries
    key, at, theirs = _tile(k + of_keys, j, n_keys, n_heads, width, WIDTH)
    value = _read(v + of_keys, j, n_keys, n_heads, width, WIDTH)
    d_key = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    d_value = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    start = tl.maximum(0, first - reach) // BLOCK_Q * BLOCK_Q
    drawn = tl.load(seed) if DROPOUT else 0
    for begin in range(start, n_queries, BLOCK_Q):
        i = begin + tl.arange(0, BLOCK_Q)
        kept = _kept(bits, i, first, n_queries, n_keys, bits_stride, BLOCK_K)
        query = _read(q, i, n_queries, n_heads, width, WIDTH)
        d_row = _read(d_out, i, n_queries, n_heads, width, WIDTH)
        norm = tl.load(lse + head * n_queries + i, mask=i < n_queries, other=float("inf")) * _LOG2E
        mean = tl.load(delta + head * n_queries + i, mask=i < n_queries, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="tf32x3")
        if OWN:
            first_own, after_own, added = _own(lines, shift, head, n_heads, i, n_queries, scale)
            score += tl.where(_mine(j, first_own, after_own), added[:, None], 0.0)
        score = tl.where(kept, score, float("-inf"))
        weight = tl.exp2(score * (scale * _LOG2E) - norm[:, None])
        d_weight = tl.dot(d_row, tl.trans(value), input_precision="tf32x3")
        dropped = weight
        if DROPOUT:
            noise = _noise(head * n_queries + i, j, drawn, minimum, factor)
            d_weight = d_weight * noise
            dropped = weight * noise
        d_value += tl.dot(tl.trans(dropped.to(d_row.dtype)), d_row, input_precision="tf32x3")
        d_score = weight * (d_weight - mean[:, None])
        d_key += tl.dot(tl.trans(d_score.to(query.dtype)), query, input_precision="tf32x3")
    tl.store(dk + of_keys + at, (d_key * scale).to(dk.dtype.element_ty), mask=theirs)
    tl.store(dv + of_keys + at, d_value.to(dv.dtype.element_ty), mask=theirs)


class _Launch:
    """Launch parameters shared by the kernels of one attention."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        bits: Tensor,
        causal: bool,
        dropout: DropoutMask,
        lines: Tensor | None,
        shift: Tensor | None,
    ) -> None:
        (n_batch, n_heads, self.n_queries, width), self.n_keys = q.shape, k.size(2)
        self.n_heads = n_batch * n_heads
        padded = max(16, triton.next_power_of_2(width))
        # in float32 each product is three of tf32: twice the registers, and more for wide heads
        less = 1 if q.dtype != torch.float32 else 2 if padded <= 64 else 4
        self.rows = max(16, min(TILE, TILE_ELEMENTS // padded) // less)
        self.keys = max(32, self.rows)
        self.scalars = (
            *(dropout.seed_or(bits), bits.stride(1), width**-0.5, int(dropout.p * 2**32), 1.0 / (1.0 - dropout.p)),
            *(self.n_queries, self.n_keys, self.n_keys - self.n_queries if causal else ANY, n_heads, width),
        )
        self.own = (bits, bits) if lines is None or shift is None else (lines, shift.contiguous())
        narrow = padded > 64 and shared_memory(q.device) < NARROW_SHARED
        self.constants = {
            **{"OWN": lines is not None, "DROPOUT": dropout.p > 0, "BLOCK_Q": self.rows, "BLOCK_K": self.keys},
            **{"WIDTH": padded, "num_warps": 8 if padded > 64 else 4, "num_stages": 2 if narrow else 3},
        }

    def by_queries(self) -> tuple[int, int]:
        return triton.cdiv(self.n_queries, self.rows), self.n_heads

    def by_keys(self) -> tuple[int, int]:
        return triton.cdiv(self.n_keys, self.keys), self.n_heads


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Return the bytes of shared memory that a program may use on a GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return SHARED
    about: Any = torch.cuda.get_device_properties(device)
    return int(about.shared_memory_per_block_optin)


def fits(q: Tensor) -> bool:
    """Return whether the tiles of such heads fit the GPU's registers and shared memory."""
    if q.size(3) > 64 and shared_memory(q.device) < MINIMUM_SHARED:
        return False
    return q.dtype in (torch.float16, torch.bfloat16) or (q.dtype == torch.float32 and q.size(3) <= 128)


def laid(x: Tensor) -> Tensor:
    """Return [B, H, N, D] with the heads of a token adjacent in memory, as projections leave them."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x.transpose(1, 2), memory_format=torch.contiguous_format).transpose(1, 2)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bits: Tensor,
    causal: bool,
    dropout: DropoutMask = NO_DROPOUT,
    lines: Tensor | None = None,
    shift: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute attention over the kept keys (eq 3).

    Args:
        q, k, v: [B, H, Q or K, D], from :func:`laid`.
        bits: int32 [B, Q, ceil(K / 32)], contiguous: bit j % 32 of word j // 32 is key j.
        causal: whether no query keeps keys after its own.
        dropout: dropout of the attention weights; its seed is on the device, and below 2^31.
        lines: first key and number of keys of each query's own line, int64 [B, Q, 2]; ``shift``: what is added to their
            scores, float32 [B, H, Q]; None without own lines.

    Returns:
        [B, H, Q, D], with the same layout, 0 for rows without kept keys; the log-normalisers, float32 [B, H, Q], +inf
        for those rows.
    """
    launch = _Launch(q, k, bits, causal, dropout, lines, shift)
    out, lse = _like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _forward[launch.by_queries()](q, k, v, bits, *launch.own, out, lse, *launch.scalars, **launch.constants)
    return out, lse


def backward(
    attended: Attended, bits: Tensor, causal: bool, dropout: DropoutMask, lines: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Compute the gradients of q, k, v and shift, and dO . O [B, H, Q], after :func:`forward` with these arguments."""
    q, k, v, out, d_out, lse, shift = attended
    launch = _Launch(q, k, bits, causal, dropout, lines, shift)
    dq, dk, dv, delta = _like(q), _like(k), _like(v), torch.empty_like(lse)
    d_shift = None if shift is None else torch.empty_like(lse)
    given = (q, k, v, bits, *launch.own, lse, delta, d_out)
    into = (out, dq, delta if d_shift is None else d_shift)
    _backward_queries[launch.by_queries()](*given, *into, *launch.scalars, **launch.constants)
    _backward_keys[launch.by_keys()](*given, dk, dv, *launch.scalars, **launch.constants)
    return dq, dk, dv, d_shift, delta
