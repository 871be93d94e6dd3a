"""Group linear transformations, and the expand-reduce units that DeFINE and DeLighT are made of.

Sources: DeFINE (1911.12385), sections 3.1-3.2; DeLighT (2008.00623), section 3 and its official code. Where paper and
official code differ, :func:`official_sizes` and :func:`paper_sizes` each say what they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GroupLinear(nn.Module):
    """x split into g groups, each with a linear map of its own: in * out / g weights. One batched product.

    Args:
        in_features, out_features: of all groups together; both multiples of ``groups``. groups 1: a linear layer.

    Raises:
        ValueError: they are not.
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
        """[..., in] -> [..., out]; group i of the output depends on group i of the input alone."""
        rows = x.reshape(-1, self.groups, self.in_features // self.groups).transpose(0, 1)
        out = torch.bmm(rows, self.weight).transpose(0, 1).reshape(*x.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias


def shuffle(x: Tensor, groups: int) -> Tensor:
    """Feature shuffle: feature j of group i goes to place j g + i, so that the next groups see all of these."""
    if groups == 1:
        return x
    return x.unflatten(-1, (groups, -1)).transpose(-1, -2).flatten(-2)


def mix(x: Tensor, y: Tensor, groups: int) -> Tensor:
    """Split and mix: both inputs in g groups, joined group by group, [x_1 ; y_1 ; x_2 ; y_2 ; …]."""
    if groups == 1:
        return torch.cat([x, y], -1)
    return torch.cat([x.unflatten(-1, (groups, -1)), y.unflatten(-1, (groups, -1))], -1).flatten(-2)


class UnitSizes(NamedTuple):
    """The shape of an expand-reduce unit.

    Attributes:
        enter: width after a linear layer at the start, 0 for none; the width that is mixed in again at every layer.
        widths, groups: of each group linear transformation, in order.
        leave: width after a linear layer at the end, 0 for none.
        shuffles, norms: whether each transformation is followed by a feature shuffle, and by a layer norm over each
            group (with one affine for all groups).
        ends_linear: whether the linear layer at the end has no activation.
    """

    enter: int
    widths: tuple[int, ...]
    groups: tuple[int, ...]
    leave: int
    shuffles: bool
    norms: bool
    ends_linear: bool = False

    @property
    def depth(self) -> int:
        """Layers in all."""
        return len(self.widths) + bool(self.enter) + bool(self.leave)


def _mirrored(half: Sequence[int], n: int) -> list[int]:
    return [*half, *reversed(half[: n - len(half)])]


def round_up(widths: Sequence[float], groups: Sequence[int], least: int = 1) -> list[int]:
    """Widths of a unit's transformations, each raised to a multiple of its own groups, the next ones' and ``least``."""
    multiples = [math.lcm(g, following, least) for g, following in zip(groups, [*groups[1:], groups[-1]])]
    return [math.ceil(int(width) / m) * m for width, m in zip(widths, multiples)]


def max_groups(dim: int, official: bool) -> int:
    """g_max: floor(d / 32) in the paper, in the official code the next power of two."""
    most = max(1, dim // 32)
    return 2 ** math.ceil(math.log2(most)) if official else most


def _linspace(first: float, last: float, n: int) -> list[int]:
    return [int(first + (last - first) * i / (n - 1)) if n > 1 else int(first) for i in range(n)]


def official_sizes(d_in: int, d_project: int, d_out: int, n: int, width: float, g_max: int) -> UnitSizes:
    """A DExTra unit as in DeLighT's official code: linear, N transformations, linear.

    Args:
        d_in, d_project, d_out: m, o and the output's width (o, but in the embedding unit). n: N. width: multiplier w
            of ``d_in``, the widest. g_max: largest number of groups.
    """
    first = math.ceil(n / 2)
    groups = _mirrored([min(2 ** (i + 1), g_max) for i in range(first)], n)
    widths = _mirrored(_linspace(d_project, width * d_in, first), n)
    widths[-1] = d_out
    return UnitSizes(d_project, tuple(round_up(widths, groups, 8)), tuple(groups), d_out, shuffles=True, norms=True)


def paper_sizes(d_in: int, d_out: int, n: int, width: float, g_max: int) -> UnitSizes:
    """A DeLighT transformation as in the paper (eq 1, 2): ceil(N / 2) layers expand from m to w m, the others reduce to
    o. Layer l has min(2^(l - 1), g_max) groups while it expands, mirrored while it reduces (as printed, eq 2 is not
    defined for the last layer)."""
    first = math.ceil(n / 2)
    groups = _mirrored([min(2**i, g_max) for i in range(first)], n)
    up = [d_in + (width - 1) * d_in * (i + 1) / first for i in range(first)]
    down = [width * d_in + (d_out - width * d_in) * (i + 1) / max(1, n - first) for i in range(n - first)]
    widths = round_up([*up, *down], groups)
    widths[-1] = d_out
    return UnitSizes(0, tuple(widths), tuple(groups), 0, shuffles=True, norms=True)


def block_sizes(n_min: int, n_max: int, width: float, blocks: int) -> list[tuple[int, float]]:
    """Block-wise scaling (DeLighT, eq 4): N^b (rounded down) and w^b of each block b = 0 … B - 1, from the input up."""
    steps = [b / (blocks - 1) if blocks > 1 else 0.0 for b in range(blocks)]
    spread = n_max - n_min
    return [(int(n_min + spread * s + 1e-9), round(width + spread * s / n_min, 3)) for s in steps]


class ExpandReduce(nn.Module):
    """The unit of :class:`UnitSizes`: Y^1 = F(X), Y^l = F(mix(X, Y^(l-1))), F a group linear transformation.

    Args:
        d_in: width of the input. activation: after each transformation and the linear layers, but for a last one that
            ``ends_linear``.

    Raises:
        ValueError: a width does not divide into a transformation's groups.
    """

    def __init__(
        self, d_in: int, sizes: UnitSizes, activation: Callable[[Tensor], Tensor] = F.silu, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.sizes, self.activation, self.dropout = sizes, activation, dropout
        own = sizes.enter or d_in
        self.enter = nn.Linear(d_in, own) if sizes.enter else None
        self.enter_norm = nn.LayerNorm(own) if sizes.enter and sizes.norms else None
        layers, norms, before = [], [], 0
        for width, groups in zip(sizes.widths, sizes.groups):
            if own % groups:
                raise ValueError(f"{own} features do not divide into {groups} groups")
            layers.append(GroupLinear(before + own, width, groups))
            norms.append(nn.LayerNorm(width // groups) if sizes.norms else nn.Identity())
            before = width
        self.layers, self.norms = nn.ModuleList(layers), nn.ModuleList(norms)
        self.leave = nn.Linear(before + own, sizes.leave) if sizes.leave else None
        self.leave_norm = nn.LayerNorm(sizes.leave) if sizes.leave and sizes.norms else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., d_in] -> [..., leave, or the last width]."""
        if self.enter is not None:
            x = self._finish(self.enter(x), self.enter_norm)
        y = None
        for i, (layer, norm) in enumerate(zip(self.layers, self.norms)):
            groups = self.sizes.groups[i]
            y = layer(x if y is None else mix(x, y, groups))
            if self.sizes.shuffles:
                y = shuffle(y, groups)
            y = norm(y.unflatten(-1, (groups, -1))).flatten(-2) if self.sizes.norms else y
            y = F.dropout(self.activation(y), self.dropout, self.training)
        if self.leave is not None:
            y = self.leave(x if y is None else torch.cat([x, y], -1))
            y = y if self.sizes.ends_linear else self._finish(y, self.leave_norm)
        assert y is not None
        return y

    def _finish(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        return self.activation(x if norm is None else norm(x))
