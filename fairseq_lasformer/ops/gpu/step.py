"""Operations of a decoding step around attentions and linear layers, in fewer kernels than PyTorch has."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_lasformer.ops import reference
from fairseq_lasformer.ops.backends import backend_for, current, triton_kernels


@torch.no_grad()
def add_norm(
    x: Tensor, added: Tensor, weight: Tensor, bias: Tensor, eps: float, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Add two tensors, and normalise the sum.

    Args:
        x, added: [R, d], of one type.
        weight, bias: [d], of the layer norm.
        eps: added to the variance.
        backend: one of :data:`BACKENDS`.

    Returns:
        The sum in the type of x, and its layer norm, both [R, d].
    """
    kernels = None
    if x.dtype != torch.float64 and backend_for(x.device, backend) == "triton":
        kernels = triton_kernels("step")
    if kernels is None or x.size(1) > kernels.MOST:
        return reference.add_norm(x, added, weight, bias, eps)
    with current(x):
        both: tuple[Tensor, Tensor] = kernels.add_norm(x.contiguous(), added.contiguous(), weight, bias, eps)
    return both


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ReLU(x weight^T + bias) without gradients; on GPUs, cuBLAS applies the ReLU in the product.

    Args:
        x: [R, d].
        weight, bias: [outputs, d] and [outputs].
    """
    return torch._addmm_activation(bias, x, weight.t())


@torch.no_grad()
def append(new: Sequence[Tensor], newest: Tensor, stores: Sequence[Tensor], backend: str = "auto") -> None:
    """Write the newest entries of all rows to their slots, several stores at once.

    Args:
        new: [R, W] each, with widths of their own.
        newest: int64 [R / N], the slots of an item's rows.
        stores: [N, C, W] each, of the same types.
        backend: one of :data:`BACKENDS`.
    """
    kernels = triton_kernels("step") if backend_for(newest.device, backend) == "triton" else None
    alike = len({t.dtype for t in (*new, *stores)}) == 1 and all(t.stride(1) == 1 for t in new)
    rows = all(store.stride()[1:] == (store.size(2), 1) for store in stores)
    if kernels is None or not alike or not rows or len(new) > kernels.TOGETHER:
        reference.append(new, newest, stores)
        return
    with current(newest):
        kernels.append(new, newest, stores)
