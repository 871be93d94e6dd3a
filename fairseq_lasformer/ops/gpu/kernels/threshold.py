"""The threshold of a row's highest scores on GPUs, by counting, without a histogram or a sort.

At least k scores of a row are at or above ``low``, fewer than k at or above ``high``. Each turn counts the scores at or
above a guess between them. The first guess is where a normal distribution of the row's mean and deviation has k scores
above it; then its density, and later the straight line between the two counts, correct it. Four to seven turns suffice
for scores with one peak. Guesses in the middle of the remaining numbers bound them for any others: floats are ordered
like integers, see :func:`_order`.
"""

import torch
import triton
import triton.language as tl

from fairseq_lasformer.ops.types import KAPPA_ONE, MIN_KEYS

ALIGNED = 16  # rows of scores begin at multiples of this, so that they are read in large words
_ALIGNED = tl.constexpr(ALIGNED)
_ONE = tl.constexpr(KAPPA_ONE)
_MIN = tl.constexpr(MIN_KEYS)
_LOWEST = tl.constexpr(-0x7F800001)  # of minus infinity, see _order
_ABOVE = tl.constexpr(0x7F800001)  # after that of infinity
_NEWTON = tl.constexpr(2)  # turns after which steps become longer
_LINES = tl.constexpr(7)  # turns after which every other guess halves the remaining numbers
_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def _keep(number, kappa):
    """Compute k_i in 64 bits: kappa is in millionths, and 2,148 keys times 1,000,000 do not fit in 32."""
    return tl.minimum(number, tl.maximum(_MIN, (number.to(tl.int64) * kappa + (_ONE - 1)) // _ONE)).to(tl.int32)


@triton.jit
def _order(x):
    """Return the int32 of a float32 that is ordered like it."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _float(order):
    """Compute the inverse of :func:`_order`."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _row(scores, padding, padded, j, first, last):
    """Load scores of a row: NaN becomes -inf, and a key that is not allowed NaN, which no comparison chooses.

    Allowed are the keys from ``first`` to ``last`` - 1; of the first ``padded``, those whose byte of ``padding`` is 0.
    Scores are read up to the next multiple of :data:`ALIGNED`.
    """
    x = tl.load(scores + j, mask=j < (last + _ALIGNED - 1) // _ALIGNED * _ALIGNED, other=0.0)
    x = tl.where(x == x, x, float("-inf"))
    x = tl.where((j >= first) & (j < last), x, float("nan"))
    if padded > 0:
        x = tl.where(tl.load(padding + j, mask=j < padded, other=0) == 0, x, float("nan"))
    return x


@triton.jit
def _sums(x):
    """Return the sum of the finite scores, and that of their squares."""
    finite = tl.where(tl.abs(x) < float("inf"), x, 0.0)
    return tl.sum(finite, 0), tl.sum(finite * finite, 0)


@triton.jit
def _normal(number, keep, total, squares):
    """Return the score that ``keep`` of ``number`` scores of a normal distribution exceed, and their density there.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.23: the quantile to 4.5e-4.
    """
    n = tl.maximum(number, 1).to(tl.float32)
    mean = total / n
    deviation = tl.sqrt(tl.maximum(squares / n - mean * mean, _TINY))
    above = keep.to(tl.float32) / n
    w = tl.sqrt(-2.0 * tl.log(tl.maximum(tl.minimum(above, 1.0 - above), 1e-7)))
    z = w - (2.515517 + w * (0.802853 + w * 0.010328)) / (1.0 + w * (1.432788 + w * (0.189269 + w * 0.001308)))
    return mean + tl.where(above < 0.5, z, -z) * deviation, n * tl.exp(-0.5 * z * z) * 0.3989423 / deviation


@triton.jit
def _threshold(
    x, scores, padding, padded, first, last, number, keep, total, squares, WHOLE: tl.constexpr, BLOCK: tl.constexpr
):
    """Return the lowest score to keep, whether all scores of that value are kept, and how many of them otherwise.

    Args:
        x: the row's first block of scores, from :func:`_row`; with WHOLE, all of them.
        number: of allowed scores; ``total`` and ``squares``: see :func:`_sums`.
    """
    low, high = tl.full([], _LOWEST, tl.int32), tl.full([], _ABOVE, tl.int32)
    at_low, at_high, turn = number, tl.zeros([], tl.int32), 0
    guess, density = _normal(number, keep, total, squares)
    further = 1.0 / density
    while (at_low != keep) & (high > low + 1):
        order = tl.maximum(low + 1, tl.minimum(high - 1, _order(guess)))
        tried = _float(order)
        count = tl.sum((x >= tried).to(tl.int32), 0)
        if not WHOLE:
            for begin in range(BLOCK, last, BLOCK):
                others = _row(scores, padding, padded, begin + tl.arange(0, BLOCK), first, last)
                count += tl.sum((others >= tried).to(tl.int32), 0)
        enough = count >= keep
        low, at_low = tl.where(enough, order, low), tl.where(enough, count, at_low)
        high, at_high = tl.where(enough, high, order), tl.where(enough, at_high, count)
        turn += 1
        more = (count - keep).to(tl.float32)
        # a little too far, so that the other side is found
        newton = tried + more * tl.where(tl.abs(more) < 3, 1.0, 1.15) * further
        further *= tl.where(turn >= _NEWTON, 2.0, 1.0)
        bottom, share = _float(low), ((at_low - keep).to(tl.float32) + 0.25) / (at_low - at_high)
        line = bottom + (_float(high) - bottom) * share
        both = (at_low != number) & (at_high != 0)
        middle = (turn >= _LINES) & ((turn % 2 == 1) | (both == 0))
        guess = tl.where(middle, _float((low >> 1) + (high >> 1) + (low & high & 1)), tl.where(both, line, newton))
    return _float(low), (at_low == keep).to(tl.int32), keep - at_high


@triton.jit
def _chosen(x, threshold, exact, keep, ties):
    """Return which scores of a block are kept, and the number of its ties.

    Args:
        exact: whether all scores at the threshold are kept; otherwise, ``keep`` of them, from the left.
        ties: number of them in earlier blocks.
    """
    chosen, number = x >= threshold, tl.zeros([], tl.int32)
    if exact == 0:
        tie = x == threshold
        chosen = (x > threshold) | (tie & (ties + tl.cumsum(tie.to(tl.int32), 0) <= keep))
        number = tl.sum(tie.to(tl.int32), 0)
    return chosen, number
