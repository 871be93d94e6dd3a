"""The steps of a beam search on GPUs: the best candidates, the hypotheses that go on, and the lines that they are in.

Definitions, to the last bit: the functions of these names in ``ops.search``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from fairseq_lasformer.ops.beams import LineEnds

CHUNK = 4096  # words of a hypothesis per program
MOST_FOUND = (
    1 << 14
)  # candidates of all chunks of an item: one program holds them, and takes minutes to compile for more
MOST_KEPT = 128  # candidates of a step: one program compares all pairs
_NOWHERE = tl.constexpr(2**31 - 1)  # the place of what is not a candidate, after all others


@triton.jit
def _log_softmax(x, out, n_words, CHUNK: tl.constexpr):
    """Store the log probabilities of one row of scores."""
    row, word = tl.program_id(0).to(tl.int64) * n_words, tl.arange(0, CHUNK)
    high, total = tl.full([], float("-inf"), tl.float32), tl.zeros([], tl.float32)
    for begin in range(0, n_words, CHUNK):
        part = tl.load(x + row + begin + word, mask=begin + word < n_words, other=float("-inf")).to(tl.float32)
        new = tl.maximum(high, tl.max(part, 0))
        at = tl.where(new == float("-inf"), 0.0, new)  # -inf minus itself is not a number
        total = total * tl.exp(high - at) + tl.sum(tl.exp(part - at), 0)
        high = new
    norm = high + tl.log(total)
    for begin in range(0, n_words, CHUNK):
        inside = begin + word < n_words
        part = tl.load(x + row + begin + word, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + row + begin + word, part - norm, mask=inside)


@triton.jit
def _next(x, place, value, at):
    """Return the first number after ``value`` at ``at``, from the largest to the smallest and from left to right."""
    later = (x < value) | ((x == value) & (place > at))
    found = tl.max(tl.where(later, x, float("-inf")), 0)
    return found, tl.min(tl.where(later & (x == found), place, _NOWHERE), 0)


@triton.jit
def _best_of_chunk(
    lprobs, past, best, places, item_stride, row_stride, past_item_stride, past_stride, rows, n_words, k,
    PAST: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store the k best candidates of one chunk of a hypothesis's words."""
    row, chunk, chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    item, number = (row // rows).to(tl.int64), row % rows
    word = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = word < n_words
    x = tl.load(lprobs + item * item_stride + number.to(tl.int64) * row_stride + word, mask=inside, other=0.0)
    if PAST:
        x += tl.load(past + item * past_item_stride + number * past_stride)
    x = tl.where(inside & (x == x), x, float("-inf"))
    place = tl.where(inside, number * n_words + word, _NOWHERE)
    value, at = tl.full([], float("inf"), tl.float32), tl.full([], -1, tl.int32)
    out = (row.to(tl.int64) * chunks + chunk) * k
    for i in range(k):
        value, at = _next(x, place, value, at)
        tl.store(best + out + i, value)
        tl.store(places + out + i, at)


@triton.jit
def _best_of_item(best, places, scores, words, parents, n, n_words, k, N: tl.constexpr):
    """Store the k best candidates of an item, of which its chunks' are known."""
    item, i = tl.program_id(0).to(tl.int64), tl.arange(0, N)
    x = tl.load(best + item * n + i, mask=i < n, other=float("-inf"))
    place = tl.load(places + item * n + i, mask=i < n, other=_NOWHERE)
    value, at = tl.full([], float("inf"), tl.float32), tl.full([], -1, tl.int32)
    for j in range(k):
        value, at = _next(x, place, value, at)
        tl.store(scores + item * k + j, value)
        tl.store(words + item * k + j, (at % n_words).to(tl.int64))
        tl.store(parents + item * k + j, (at // n_words).to(tl.int64))


@triton.jit
def _advance(
    scores, words, parents, unused, n_ended,
    next_words, next_scores, next_parents, next_unused, next_ended, ended_parents, chosen, rows,
    beam, k, end, EXHAUSTED: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Continue an item's best candidates, and end the complete ones among the first ``beam``."""
    item, i = tl.program_id(0).to(tl.int64), tl.arange(0, K)
    valid, head = i < k, i < beam
    score = tl.load(scores + item * k + i, mask=valid, other=float("-inf"))
    word = tl.load(words + item * k + i, mask=valid, other=-1)
    parent = tl.load(parents + item * k + i, mask=valid, other=0)
    idle = tl.load(unused + item * beam + i, mask=head, other=0) != 0
    before = tl.load(n_ended + item)
    ended = (word == end) & (score != float("-inf"))
    counted = ended & head & (idle == 0)
    number = counted.to(tl.int32)
    rank = before + tl.cumsum(number, 0)
    after = before + tl.sum(number, 0)
    if EXHAUSTED:
        going = valid & (score != float("-inf")) & (word != end)
        over = (tl.max(going.to(tl.int32), 0) == 0) & (tl.max(number, 0) > 0)
        after = tl.where(over, beam, after)
    tl.store(next_ended + item, after.to(tl.int64))
    ending = tl.where(counted & (rank <= beam), parent, -1)
    tl.store(ended_parents + item * beam + i, ending, mask=head)
    late = ended | (head & idle)
    order = tl.where(valid, i + late.to(tl.int32) * k, 4 * K + i)
    place = tl.sum((order[None, :] < order[:, None]).to(tl.int32), 1)
    on, at = place < beam, item * beam + place
    tl.store(next_words + at, word, mask=on)
    tl.store(next_scores + at, score, mask=on)
    tl.store(next_parents + at, parent, mask=on)
    tl.store(next_unused + at, late, mask=on)
    tl.store(chosen + at, i.to(tl.int64), mask=on)
    tl.store(rows + at, item * beam + parent, mask=on)


@triton.jit(do_not_specialize=["steps"])  # another number in every step
def _restrict_lines(
    lprobs, left, length, sentences, longest, free, left_strides, left_stride, length_strides, length_stride,
    beam, most, n_words, separator, end, steps, last_resort,
    FREE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Exclude words of one chunk of a hypothesis: ends of lines, or all others."""
    row, n = tl.program_id(0), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    item, place = row // beam, row % beam
    after = tl.load(left + item * left_strides + place * left_stride)
    so_far = tl.load(length + item * length_strides + place * length_stride)
    last, begun = after <= 0, so_far > 0
    sentence = tl.minimum(tl.load(sentences + item) - 1 - after, most - 1)
    must = ((so_far >= tl.load(longest + item * most + sentence)) | (2 * after >= steps)) & begun
    no_end, no_separator = (last & begun) == 0, last | (begun == 0)
    if FREE:
        is_free = tl.load(free + item) != 0
        no_end, no_separator, must = no_end & is_free, no_separator & is_free, must & is_free
    is_end, is_separator = n == end, n == separator
    changes = (n < n_words) & ((must | is_end | is_separator).to(tl.int32) != 0)
    at = lprobs + row.to(tl.int64) * n_words + n
    x = tl.load(at, mask=changes, other=0.0)
    if steps > 0:
        x = tl.where((is_end & no_end) | (is_separator & no_separator), float("-inf"), x)
    here = (is_end & last) | (is_separator & (last == 0))
    x = tl.where(must, tl.where(here, tl.maximum(x, last_resort), float("-inf")), x)
    tl.store(at, x, mask=changes)


@triton.jit
def _count_lines(left, length, words, parents, chosen, next_left, next_length, beam, k, separator, BEAM: tl.constexpr):
    """Count the lines, and the tokens of the newest one, of an item's hypotheses that go on."""
    item, i = tl.program_id(0).to(tl.int64), tl.arange(0, BEAM)
    inside = i < beam
    candidate = item * k + tl.load(chosen + item * beam + i, mask=inside, other=0)
    parent = item * beam + tl.load(parents + candidate, mask=inside, other=0)
    ended = tl.load(words + candidate, mask=inside, other=0) == separator
    after = tl.load(left + parent, mask=inside, other=0) - ended.to(tl.int64)
    tl.store(next_left + item * beam + i, after, mask=inside)
    so_far = tl.load(length + parent, mask=inside, other=0) + 1
    tl.store(next_length + item * beam + i, tl.where(ended, 0, so_far), mask=inside)


def log_probabilities(scores: Tensor) -> Tensor:
    """Return float32 log probabilities of scores [R, V], rows contiguous."""
    (n_rows, n_words), out = scores.shape, torch.empty_like(scores, dtype=torch.float32)
    _log_softmax[(n_rows,)](scores, out, n_words, CHUNK=min(CHUNK, triton.next_power_of_2(n_words)), num_warps=8)
    return out


def fits(lprobs: Tensor, k: int) -> bool:
    """Return whether :func:`top_candidates` finds k candidates: not with a beam of hundreds, or of dozens in NLLB."""
    _, rows, n_words = lprobs.shape
    return lprobs.stride(2) == 1 and rows * triton.cdiv(n_words, CHUNK) * k <= MOST_FOUND


def top_candidates(lprobs: Tensor, past: Tensor | None, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return an item's best candidates; see ``ops.search``."""
    n_items, rows, n_words = lprobs.shape
    chunks = triton.cdiv(n_words, CHUNK)
    best = torch.empty(n_items, rows * chunks * k, device=lprobs.device)
    places = torch.empty_like(best, dtype=torch.int32)
    past_strides = (0, 0) if past is None else past.stride()
    _best_of_chunk[(n_items * rows, chunks)](
        lprobs, lprobs if past is None else past, best, places, *lprobs.stride()[:2], *past_strides,
        rows, n_words, k, PAST=past is not None, CHUNK=min(CHUNK, triton.next_power_of_2(n_words)),
    )  # fmt: skip
    scores, words = lprobs.new_empty(n_items, k), torch.empty(n_items, k, dtype=torch.int64, device=lprobs.device)
    parents, n = torch.empty_like(words), best.size(1)
    padded = triton.next_power_of_2(n)
    _best_of_item[(n_items,)](
        best, places, scores, words, parents, n, n_words, k, N=padded, num_warps=4 if padded <= 2048 else 16
    )  # fmt: skip
    return scores, words, parents


def advance(
    scores: Tensor, words: Tensor, parents: Tensor, unused: Tensor, n_ended: Tensor, end: int, ends_exhausted: bool
) -> tuple[Tensor, ...]:
    """Continue the best candidates; see ``ops.search``."""
    (n_items, k), beam = scores.shape, unused.size(1)
    places = torch.empty(5, n_items, beam, dtype=torch.int64, device=scores.device)
    next_words, next_parents, ended_parents, chosen, rows = places
    next_scores = scores.new_empty(n_items, beam)
    next_unused, next_ended = torch.empty_like(unused), torch.empty_like(n_ended)
    _advance[(n_items,)](
        scores, words, parents, unused, n_ended,
        next_words, next_scores, next_parents, next_unused, next_ended, ended_parents, chosen, rows,
        beam, k, end, EXHAUSTED=ends_exhausted, K=triton.next_power_of_2(k),
    )  # fmt: skip
    return next_words, next_scores, next_unused, next_ended, next_parents, ended_parents, chosen, rows


def restrict_lines(lprobs: Tensor, lines: LineEnds, steps: int, free: Tensor | None, last_resort: float) -> None:
    """Exclude ends of lines or all other words, in place; see ``ops.search``."""
    (n_items, beam, n_words), (left, length, sentences, longest, separator, end) = lprobs.shape, lines
    chunk = min(CHUNK, triton.next_power_of_2(n_words))
    _restrict_lines[(n_items * beam, triton.cdiv(n_words, chunk))](
        lprobs, left, length, sentences, longest.contiguous(), sentences if free is None else free.contiguous(),
        *left.stride(), *length.stride(), beam, longest.size(1), n_words, separator, end, steps, last_resort,
        FREE=free is not None, CHUNK=chunk,
    )  # fmt: skip


def count_lines(
    left: Tensor, length: Tensor, words: Tensor, parents: Tensor, chosen: Tensor, separator: int
) -> tuple[Tensor, Tensor]:
    """Return the counts of the hypotheses that go on; see ``ops.search``."""
    n_items, beam = chosen.shape
    next_left, next_length = torch.empty_like(chosen), torch.empty_like(chosen)
    _count_lines[(n_items,)](
        left, length, words, parents, chosen, next_left, next_length, beam, words.size(1), separator,
        BEAM=triton.next_power_of_2(beam),
    )  # fmt: skip
    return next_left, next_length
