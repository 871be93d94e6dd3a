"""Activations of feed-forward networks by fairseq's names, and those that the fast decoder computes."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer.ops import GELU, GELU_TANH, NO_ACTIVATION, RELU, SWISH

Function = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU with a hyperbolic tangent in place of the error function."""
    return F.gelu(x, approximate="tanh")


def linear(x: Tensor) -> Tensor:
    """The argument itself."""
    return x


FUNCTIONS: dict[str, Function] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_accurate": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "swish": F.silu,  # fairseq's is a class, whose call with a tensor makes a module
    "linear": linear,
}
"""By the names of ``--activation-fn``; those of fairseq that are not here are its own."""

KERNELS: dict[Function, int] = {
    F.relu: RELU,
    F.gelu: GELU,
    gelu_tanh: GELU_TANH,
    F.silu: SWISH,
    linear: NO_ACTIVATION,
}
"""Numbers of those that :func:`ops.decode_step` computes."""
