"""Decoding steps on GPUs: score, select, attend, combine. Definitions: ``reference.topk_indices``, ``attend_kept``.

Nothing here reads a value back from the device, so a step never synchronises: grids are sized by the number of
positions, known on the host, and the number of keys that a row keeps is computed on the device. With
``TRITON_INTERPRET=1`` the kernels run on the CPU, which is how they are tested without a GPU. Rows, slots and widths
are those of :class:`KeyIndex`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_lasformer.ops.backends import current
from fairseq_lasformer.ops.gpu.kernels.select import select
from fairseq_lasformer.ops.gpu.kernels.threshold import ALIGNED
from fairseq_lasformer.ops.types import KeptKeys, KeyIndex, OwnLines, OwnShift

SCORE_BLOCK = 128
SCORE_PROGRAMS = 264  # two for each multiprocessor of a large GPU
ATTEND_BLOCK = 32
ATTEND_WARPS = 2  # with 4, and their registers, 160 rows with 8 heads are more programs than an H100 takes at once
PROGRAMS = 1056  # enough to fill a large GPU; with fewer rows and heads, each row's keys are split among programs


@triton.jit(do_not_specialize=["table_stride", "end"])
def _score(
    q, keys, table, start, n_keys, scores,
    query_stride, item_stride, row_stride, table_stride, scale, width, end, beam, together, each,
    TABLE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Store scores[r, j] = scale q[r] . keys[slot(r, j)], -inf where position j is not allowed.

    A program takes ``together`` rows of one item, and reads keys again only where a row's slots are not those of the
    row before: hypotheses share most of their past, and all of the source.
    """
    first_row = tl.program_id(0).to(tl.int64) * together
    item = first_row // beam
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    first = tl.load(start + first_row // each)
    allowed = (j >= first) & (j < first + tl.load(n_keys + first_row // each))
    slot = j
    if TABLE:
        slot = tl.load(table + first_row * table_stride + j, mask=allowed, other=0)
    d = tl.arange(0, WIDTH)
    inside = allowed[:, None] & (d[None, :] < width)
    keys += item * item_stride
    key = tl.load(keys + slot.to(tl.int64)[:, None] * width + d[None, :], mask=inside, other=0.0)
    for n in range(together):
        row = first_row + n
        if TABLE:  # noqa: SIM102 - a constant
            if n > 0:
                its = tl.load(table + row * table_stride + j, mask=allowed, other=0)
                if tl.max((its != slot).to(tl.int32), 0) != 0:
                    slot = its
                    key = tl.load(keys + slot.to(tl.int64)[:, None] * width + d[None, :], mask=inside, other=0.0)
        query = tl.load(q + row * query_stride + d, mask=d < width, other=0.0).to(tl.float32) * scale
        score = tl.sum(key.to(tl.float32) * query[None, :], 1)
        tl.store(scores + row * row_stride + j, tl.where(allowed, score, float("-inf")), mask=j < end)


@triton.jit(do_not_specialize=["slot_stride", "room"])
def _after_own(
    first,
    count,
    table,
    slots,
    kept,
    to,
    number,
    table_stride,
    slot_stride,
    room,
    TABLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store the slots of a row's own line, and after them those kept."""
    row = tl.program_id(0).to(tl.int64)
    begin, own = tl.load(first + row).to(tl.int32), tl.load(count + row).to(tl.int32)
    more = tl.load(kept + row)
    to += row * room
    tl.store(number + row, own + more)
    for i in range(0, own, BLOCK):
        n = i + tl.arange(0, BLOCK)
        slot = begin + n
        if TABLE:
            slot = tl.load(table + row * table_stride + slot, mask=n < own, other=0)
        tl.store(to + n, slot, mask=n < own)
    for i in range(0, more, BLOCK):
        n = i + tl.arange(0, BLOCK)
        tl.store(to + own + n, tl.load(slots + row * slot_stride + n, mask=n < more, other=0), mask=n < more)


@triton.jit
def _attend(
    q, keys, values, slots, kept, own_first, own_count, shift, part, top, total,
    query_stride, item_stride, slot_stride, scale, head_width, beam, splits,
    OWN: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Process one split of a row's kept keys, one head: weighted sum of values, maximum and sum of weights.

    With all heads in one program, too few programs fit a multiprocessor, and nothing is read ahead. With WHOLE, there
    is one split, and ``part`` is the result.
    """
    row, split, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n_heads = tl.num_programs(2)
    width = n_heads * head_width
    item = row // beam
    number = tl.load(kept + row).to(tl.int32)
    share = (number + splits - 1) // splits
    begin, stop = split * share, tl.minimum(number, split * share + share)
    d = tl.arange(0, WIDTH)
    inside = d < head_width
    at = head * head_width + d
    query = tl.load(q + row.to(tl.int64) * query_stride + at, mask=inside, other=0.0).to(tl.float32) * scale
    store = item.to(tl.int64) * item_stride
    slots += row.to(tl.int64) * slot_stride
    if OWN:
        line = tl.load(own_first + row).to(tl.int32)
        after = line + tl.load(own_count + row).to(tl.int32)
        added = tl.load(shift + row.to(tl.int64) * n_heads + head)
    high = tl.full([], -1e30, tl.float32)
    sums = tl.zeros([], tl.float32)
    acc = tl.zeros([WIDTH], tl.float32)
    for i in tl.range(begin, stop, BLOCK, num_stages=3):
        n = i + tl.arange(0, BLOCK)
        valid = n < stop
        slot = tl.load(slots + n, mask=valid, other=0).to(tl.int64)
        address = store + slot[:, None] * width + at[None, :]
        mask = valid[:, None] & inside[None, :]
        key = tl.load(keys + address, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(values + address, mask=mask, other=0.0).to(tl.float32)
        score = tl.sum(key * query[None, :], 1)
        if OWN:
            score += tl.where((n >= line) & (n < after), added, 0.0)
        score = tl.where(valid, score, -1e30)
        new = tl.maximum(high, tl.max(score, 0))
        weight = tl.where(valid, tl.exp(score - new), 0.0)
        fade = tl.exp(high - new)
        sums = sums * fade + tl.sum(weight, 0)
        acc = acc * fade + tl.sum(value * weight[:, None], 0)
        high = new
    place = row.to(tl.int64) * splits + split
    if WHOLE:
        acc /= tl.where(sums > 0, sums, 1.0)
    else:
        tl.store(top + place * n_heads + head, high)
        tl.store(total + place * n_heads + head, sums)
    tl.store(part + place * width + at, acc, mask=inside)


@triton.jit
def _combine(part, top, total, out, head_width, splits, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    """Combine the splits of one head of a row; 0 if the row has no keys."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n_heads = tl.num_programs(1)
    width = n_heads * head_width
    s, d = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    here, inside = s < splits, d < head_width
    at = (row * splits + s) * n_heads + head
    high = tl.load(top + at, mask=here, other=-1e30)
    factor = tl.exp(high - tl.max(high, 0))
    sums = tl.sum(tl.load(total + at, mask=here, other=0.0) * factor, 0)
    address = (row * splits + s)[:, None] * width + head * head_width + d[None, :]
    parts = tl.load(part + address, mask=here[:, None] & inside[None, :], other=0.0)
    result = tl.sum(parts * factor[:, None], 0) / tl.where(sums > 0, sums, 1.0)
    tl.store(out + row * width + head * head_width + d, result, mask=inside)


def try_out(device: torch.device) -> None:
    """Launch a kernel to check that Triton works.

    Raises:
        RuntimeError: the GPU is too old for the kernels.
    """
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        raise RuntimeError(f"they need compute capability 8.0; this GPU has {major}.{minor}")
    smallest_step(device)


def smallest_step(device: torch.device) -> None:
    """Launch the kernels of a selection as small as possible."""
    q, keys = torch.zeros(1, 16, device=device), torch.zeros(1, 16, 16, device=device)
    one = torch.ones(1, dtype=torch.int64, device=device)
    with current(q):
        topk_indices(q, keys, KeyIndex(None, one, one, 16), 1)


def topk_indices(q: Tensor, keys: Tensor, paths: KeyIndex, kappa: int, own: OwnLines | None = None) -> KeptKeys:
    """Select the kept keys of one decoding step; arguments and result as in ``reference.topk_indices``."""
    if own is None:
        return _topk(q, keys, paths, kappa, q.size(0) // keys.size(0))
    # the others, one after another: a table without the own line, and an index for each row
    n_rows, device = q.size(0), q.device
    position = torch.arange(paths.end, device=device)
    position = position + (position >= own.first[:, None]) * own.n_keys[:, None]
    table = position.int() if paths.table is None else paths.table.gather(1, position.clamp_max(paths.end - 1))
    start, n_keys = (t.repeat_interleave(n_rows // t.numel()) for t in paths[1:3])
    kept = _topk(q, keys, KeyIndex(table, start, n_keys - own.n_keys, paths.end), kappa, 1)
    room = paths.end + kept.indices.size(1)
    slots = torch.full((n_rows, room), -1, dtype=torch.int32, device=device)
    number = torch.empty_like(kept.counts)
    given, stride = (slots, 0) if paths.table is None else (paths.table, paths.table.stride(0))
    _after_own[(n_rows,)](
        own.first, own.n_keys, given, *kept, slots, number, stride, kept.indices.stride(0), room,
        TABLE=paths.table is not None, BLOCK=SCORE_BLOCK,
    )  # fmt: skip
    return KeptKeys(slots, number)


def _topk(q: Tensor, keys: Tensor, paths: KeyIndex, kappa: int, each: int) -> KeptKeys:
    """Select the kept keys; start and number of the index are those of ``each`` rows."""
    n_rows, width = q.shape
    beam, end = n_rows // keys.size(0), paths.end
    scores = torch.empty(n_rows, triton.cdiv(end, ALIGNED) * ALIGNED, device=q.device)[:, :end]
    table, blocks = scores if paths.table is None else paths.table, triton.cdiv(end, SCORE_BLOCK)
    # one after the other, rows of an item take longer: only where programs are many
    together = beam if each > 1 and keys.size(0) * blocks >= SCORE_PROGRAMS else 1
    _score[(n_rows // together, blocks)](
        q, keys, table, paths.start, paths.n_keys, scores, q.stride(0), keys.stride(0), scores.stride(0),
        0 if paths.table is None else table.stride(0), width**-0.5, width, end, beam, together, each,
        TABLE=paths.table is not None, BLOCK=SCORE_BLOCK, WIDTH=triton.next_power_of_2(width),
    )  # fmt: skip
    return select(scores, paths, each, kappa)


def attend_kept(
    q: Tensor, keys: Tensor, values: Tensor, slots: KeptKeys, n_heads: int, shift: OwnShift | None = None
) -> Tensor:
    """Compute attention of rows over their kept keys; arguments and result as in ``reference.attend_kept``."""
    n_rows, width = q.shape
    head_width, stride = width // n_heads, slots.indices.stride(0)
    longest = triton.cdiv(slots.indices.size(1), ATTEND_BLOCK)
    splits = min(32, max(1, min(PROGRAMS // (n_rows * n_heads), longest)))
    padded = triton.next_power_of_2(head_width)
    out, whole = q.new_empty(n_rows, width), splits == 1
    part = out if whole else torch.empty(n_rows, splits, width, device=q.device)
    top, total = (out, out) if whole else torch.empty(2, n_rows, splits, n_heads, device=q.device)
    own = (slots.counts, slots.counts, q) if shift is None else (*shift.lines, shift.value.contiguous())
    _attend[(n_rows, splits, n_heads)](
        q, keys, values, *slots, *own, part, top, total, q.stride(0), keys.stride(0), stride,
        head_width**-0.5, head_width, n_rows // keys.size(0), splits, OWN=shift is not None, BLOCK=ATTEND_BLOCK,
        WIDTH=padded, WHOLE=whole, num_warps=ATTEND_WARPS,
    )  # fmt: skip
    if whole:
        return out
    _combine[(n_rows, n_heads)](
        part, top, total, out, head_width, splits, SPLITS=triton.next_power_of_2(splits), WIDTH=padded, num_warps=1
    )
    return out
