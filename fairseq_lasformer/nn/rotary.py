"""Rotary embedding of line numbers: scores that depend on how many lines away a key is (RoPE, arXiv 2104.09864).

With ``--own-lines``, positions start again with each line, so nothing else tells the neighbour of a line from any
other one. Pairs of dimensions of queries and keys are rotated by angles that grow with the number of the line: their
products depend on the difference of the lines alone. Within a line, nothing changes.

A quarter of a head's dimensions is rotated, at most 8 pairs, whose frequencies are powers of two: the shortest period
is 3 lines, the longest 400; narrow heads have every second one of them, or every fourth. Projections start with
constants there, whose product falls with the distance.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fairseq_lasformer.ops import PAIRS, n_pairs

FASTEST = 2.0
"""Radians per line of the first pair; each further one has half of those before it."""

START = (8.0, 0.0, 8.0, 4.0)
"""What heads add to the score of a key of the same line at the start, in turn; it falls to 0 within some 16 lines."""


def frequencies() -> Tensor:
    """Return the radians per line of each pair, float32 [8]."""
    return FASTEST * 0.5 ** torch.arange(PAIRS)


def rotations(line: Tensor, frequency: Tensor) -> Tensor:
    """Return cosine and sine of the angles of tokens, float32 [..., 8, 2].

    Args:
        line: int64 [...], the number of each token's line in its text.
        frequency: radians per line of each pair, [8].
    """
    # float32 functions differ between processors; of float64 ones, what is left after rounding does not
    angle = line.double()[..., None] * frequency.double()
    return torch.stack([angle.cos(), angle.sin()], -1).float()


def unrotated(weight: Tensor, n_heads: int) -> Tensor:
    """Return a projection's weight [H * D, d] with zeros in the rows of dimensions that are rotated."""
    heads = weight.unflatten(0, (n_heads, -1)).clone()
    heads[:, : 2 * n_pairs(heads.size(1))] = 0.0
    return heads.flatten(0, 1)


def near(n_heads: int, width: int, scores: Sequence[float] = START) -> Tensor:
    """Return the constants of queries, and of keys, with which heads read near lines, float32 [H * D].

    Args:
        width: D.
        scores: what a head adds to the score of a key of the same line, in turn.
    """
    n, constants = n_pairs(width), torch.zeros(n_heads, width)
    each = torch.tensor([scores[head % len(scores)] for head in range(n_heads)]) * math.sqrt(width) / max(1, n)
    constants[:, :n] = each.sqrt()[:, None]
    return constants.flatten()


@torch.no_grad()
def start_near(query: nn.Linear, key: nn.Linear, n_heads: int) -> None:
    """Add :func:`near` to the biases of projections, [d] -> [H * D]."""
    for projection in (query, key):
        projection.bias.add_(near(n_heads, projection.out_features // n_heads).to(projection.bias))
