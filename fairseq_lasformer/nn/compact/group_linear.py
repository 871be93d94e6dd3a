"""Group linear transformations, and the expand-reduce units of DeFINE and DeLighT built from them.

Sources: DeFINE (arXiv 1911.12385), sections 3.1-3.2; DeLighT (arXiv 2008.00623), section 3, and its official code.
:func:`paper_sizes` follows the DeLighT paper, :func:`official_sizes` the code where it differs.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lasformer import ops


class GroupLinear(nn.Module):
    """Linear map with a block-diagonal weight: x is split into g groups, each with its own map (in * out / g weights).

    Args:
        in_features: width of the input, all groups together; a multiple of ``groups``.
        out_features: width of the output, all groups together; a multiple of ``groups``.
        groups: number of groups (g); 1 is an ordinary linear layer.
        bias: whether to add a bias.

    Raises:
        ValueError: a width is not a multiple of ``groups``.
    """

    def __init__(self, in_features: int, out_features: int, groups: int, bias: bool = True) -> None:
        super().__init__()
        if in_features % groups or out_features % groups:
            raise ValueError(f"{in_features} and {out_features} features do not divide into {groups} groups")
        self.in_features, self.out_features, self.groups = in_features, out_features, groups
        self.weight = nn.Parameter(torch.empty(groups, in_features // groups, out_features // groups))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        limit = math.sqrt(6.0 * groups / (in_features + out_features))
        nn.init.uniform_(self.weight, -limit, limit)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in] to [..., out]; group i of the output depends only on group i of the input."""
        rows = x.reshape(-1, self.groups, self.in_features // self.groups).transpose(0, 1)
        out = torch.bmm(rows, self.weight).transpose(0, 1).reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Shuffle features: move feature j of group i to position j g + i, so that each next group sees all groups."""
    if groups == 1:
        return x
    return x.unflatten(-1, (groups, -1)).transpose(-1, -2).flatten(-2)


def mix(x: Tensor, y: Tensor, groups: int) -> Tensor:
    """Split and mix: split both inputs into g groups and join them by group, [x_1 ; y_1 ; x_2 ; y_2 ; …]."""
    if groups == 1:
        return torch.cat([x, y], -1)
    return torch.cat([x.unflatten(-1, (groups, -1)), y.unflatten(-1, (groups, -1))], -1).flatten(-2)


class UnitSizes(NamedTuple):
    """Shape of an expand-reduce unit."""

    enter: int  # output width of the linear layer at the start, which is mixed in again at every layer; 0 for none
    widths: tuple[int, ...]  # output width of each group linear transformation, in order
    groups: tuple[int, ...]  # number of groups of each group linear transformation, in order
    leave: int  # output width of the linear layer at the end; 0 for none
    shuffles: bool  # whether each transformation is followed by a feature shuffle
    # whether each transformation is followed by a layer norm over each group (one affine map for all groups)
    norms: bool
    ends_linear: bool = False  # whether the linear layer at the end has no activation

    @property
    def depth(self) -> int:
        """Total number of layers."""
        return len(self.widths) + bool(self.enter) + bool(self.leave)


def _mirrored(half: Sequence[int], n: int) -> list[int]:
    return [*half, *reversed(half[: n - len(half)])]


def round_up(widths: Sequence[float], groups: Sequence[int], minimum: int = 1) -> list[int]:
    """Round each width up to a multiple of its own number of groups, the next layer's, and ``minimum``."""
    multiples = [math.lcm(g, following, minimum) for g, following in zip(groups, [*groups[1:], groups[-1]])]
    return [math.ceil(int(width) / m) * m for width, m in zip(widths, multiples)]


def max_groups(dim: int, official: bool) -> int:
    """Return g_max: floor(d / 32) in the paper, the next power of two in the official code."""
    most = max(1, dim // 32)
    return 2 ** math.ceil(math.log2(most)) if official else most


def _linspace(first: float, last: float, n: int) -> list[int]:
    return [int(first + (last - first) * i / (n - 1)) if n > 1 else int(first) for i in range(n)]


def official_sizes(d_in: int, d_project: int, d_out: int, n: int, width: float, g_max: int) -> UnitSizes:
    """Return the shape of a DExTra unit as in DeLighT's official code: linear layer, N transformations, linear layer.

    Args:
        d_in: width of the input (m).
        d_project: output width of the first linear layer (o).
        d_out: width of the output (o, except in the embedding unit).
        n: number of transformations (N).
        width: width multiplier (w): the widest transformation has w ``d_in`` features.
        g_max: maximum number of groups.
    """
    first = math.ceil(n / 2)
    groups = _mirrored([min(2 ** (i + 1), g_max) for i in range(first)], n)
    widths = _mirrored(_linspace(d_project, width * d_in, first), n)
    widths[-1] = d_out
    return UnitSizes(d_project, tuple(round_up(widths, groups, 8)), tuple(groups), d_out, shuffles=True, norms=True)


def paper_sizes(d_in: int, d_out: int, n: int, width: float, g_max: int) -> UnitSizes:
    """Return the shape of a DeLighT transformation as in the paper (DeLighT, eq 1, 2).

    The first ceil(N / 2) layers expand from m to w m, the others reduce to o. Layer l has min(2^(l - 1), g_max) groups
    while expanding, mirrored while reducing (as printed, eq 2 is not defined for the last layer).

    Args:
        d_in: width of the input (m).
        d_out: width of the output (o).
        n: number of layers (N).
        width: width multiplier (w).
        g_max: maximum number of groups.
    """
    first = math.ceil(n / 2)
    groups = _mirrored([min(2**i, g_max) for i in range(first)], n)
    up = [d_in + (width - 1) * d_in * (i + 1) / first for i in range(first)]
    down = [width * d_in + (d_out - width * d_in) * (i + 1) / max(1, n - first) for i in range(n - first)]
    widths = round_up([*up, *down], groups)
    widths[-1] = d_out
    return UnitSizes(0, tuple(widths), tuple(groups), 0, shuffles=True, norms=True)


def block_sizes(n_min: int, n_max: int, width: float, blocks: int) -> list[tuple[int, float]]:
    """Return N^b (rounded down) and w^b of each block b = 0 … B - 1, from the input up (DeLighT, eq 4).

    Args:
        n_min, n_max: depth of the lowest and of the highest block.
        width: width multiplier of the lowest block.
        blocks: number of blocks (B).
    """
    steps = [b / (blocks - 1) if blocks > 1 else 0.0 for b in range(blocks)]
    spread = n_max - n_min
    return [(int(n_min + spread * s + 1e-9), round(width + spread * s / n_min, 3)) for s in steps]


class ExpandReduce(nn.Module):
    """Unit with the shape of :class:`UnitSizes`: Y^1 = F(X), Y^l = F(mix(X, Y^(l-1))), F a group linear transformation.

    Args:
        sizes: shape of the unit.
        activation: applied after each transformation and linear layer, except after the last one if ``ends_linear``.
        dropout: dropout probability after each transformation.

    Raises:
        ValueError: a width is not divisible by a transformation's number of groups.
    """

    def __init__(
        self, d_in: int, sizes: UnitSizes, activation: Callable[[Tensor], Tensor] = F.silu, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.sizes, self.activation, self.dropout = sizes, activation, dropout
        entered = sizes.enter or d_in
        self.enter = nn.Linear(d_in, entered) if sizes.enter else None
        self.enter_norm = nn.LayerNorm(entered) if sizes.enter and sizes.norms else None
        layers, norms, before = [], [], 0
        for width, groups in zip(sizes.widths, sizes.groups):
            if entered % groups:
                raise ValueError(f"{entered} features do not divide into {groups} groups")
            layers.append(GroupLinear(before + entered, width, groups))
            norms.append(nn.LayerNorm(width // groups) if sizes.norms else nn.Identity())
            before = width
        self.layers, self.norms = nn.ModuleList(layers), nn.ModuleList(norms)
        self.leave = nn.Linear(before + entered, sizes.leave) if sizes.leave else None
        self.leave_norm = nn.LayerNorm(sizes.leave) if sizes.leave and sizes.norms else None

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., d_in] to [..., leave, or the last width]."""
        if self.enter is not None:
            x = self._finish(self.enter(x), self.enter_norm)
        y = None
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms)):
            groups = self.sizes.groups[i]
            y = layer(x if y is None else mix(x, y, groups))
            if self.sizes.shuffles:
                y = shuffle(y, groups)
            y = norm(y.unflatten(-1, (groups, -1))).flatten(-2) if self.sizes.norms else y
            y = self.activation(y)
            y = ops.dropout(y, self.dropout) if self.training and self.dropout else y
        if self.leave is not None:
            y = self.leave(x if y is None else torch.cat([x, y], -1))
            y = y if self.sizes.ends_linear else self._finish(y, self.leave_norm)
        assert y is not None
        return y

    def _finish(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        return self.activation(x if norm is None else norm(x))
