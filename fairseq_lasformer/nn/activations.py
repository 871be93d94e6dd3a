"""Activations of feed-forward networks by fairseq's names, and those that the fast decoder supports."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer.ops import GELU, GELU_TANH, NO_ACTIVATION, RELU, SWISH

Function = Callable[[Tensor], Tensor]


def gelu_tanh(x: Tensor) -> Tensor:
    """Apply GELU with a hyperbolic tangent in place of the error function."""
    return F.gelu(x, approximate="tanh")


def linear(x: Tensor) -> Tensor:
    """Return the argument unchanged."""
    return x


FUNCTIONS: dict[str, Function] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_accurate": gelu_tanh,
    "gelu_fast": gelu_tanh,
    "swish": F.silu,  # fairseq's is a class: calling it with a tensor creates a module
    "linear": linear,
}
"""Activations by the names of ``--activation-fn``; fairseq provides the others."""

KERNELS: dict[Function, int] = {
    F.relu: RELU,
    F.gelu: GELU,
    gelu_tanh: GELU_TANH,
    F.silu: SWISH,
    linear: NO_ACTIVATION,
}
"""Numbers of the activations that :func:`ops.decode_step` supports."""
