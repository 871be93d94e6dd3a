"""Rotation of pairs of dimensions of queries and keys (RoPE, arXiv 2104.09864), see ``nn.rotary``."""

import torch
from torch import Tensor

from fairseq_lasformer.ops.backends import backend_for, current, triton_kernels

PAIRS = 8
"""Number of pairs of a head that are rotated, at most."""


def n_pairs(width: int) -> int:
    """Return the number of pairs that are rotated in a head of so many dimensions: a power of two."""
    return min(PAIRS, 1 << (width // 8).bit_length() - 1) if width >= 8 else 0


def rotate(x: Tensor, rotation: Tensor | None) -> Tensor:
    """Rotate the first dimensions of heads; the first half of them and the second are the parts of the pairs.

    Args:
        x: [..., D], queries or keys.
        rotation: cosines and sines, [..., 8, 2], of the same leading dimensions or such that are expanded; None for
            none. Narrow heads have every second pair, or every fourth.

    Returns:
        [..., D].
    """
    n = n_pairs(x.size(-1))
    if rotation is None or not n:
        return x
    every = PAIRS // n
    cos, sin = rotation[..., every // 2 :: every, :].unbind(-1)
    first, second, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    # of narrow types, in float32: rounded angles would make scores depend on more than the distance
    turned = (first * cos - second * sin).to(x.dtype), (first * sin + second * cos).to(x.dtype)
    return torch.cat([*turned, rest], -1)


def rotate_heads(x: Tensor, n_heads: int, rotation: Tensor | None, backend: str = "reference") -> Tensor:
    """Rotate heads that follow each other: [..., H * D], [..., 8, 2] -> [..., H * D].

    Args:
        backend: one of :data:`BACKENDS`; Triton's kernel, for a decoding step [R, H * D], takes one launch.
    """
    width = x.size(-1) // n_heads
    if rotation is None or not n_pairs(width):
        return x
    in_step = x.dim() == 2 and not torch.is_grad_enabled() and x.dtype != torch.float64
    kernels = triton_kernels("step") if in_step and backend_for(x.device, backend) == "triton" else None
    if kernels is None or x.size(1) > kernels.MOST or x.stride(1) != 1:
        return rotate(x.unflatten(-1, (n_heads, -1)), rotation[..., None, :, :]).flatten(-2)
    with current(x):
        rotated: Tensor = kernels.rotate(x, width, n_pairs(width), rotation.contiguous())
    return rotated
