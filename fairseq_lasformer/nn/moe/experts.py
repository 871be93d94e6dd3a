"""The experts: ``Linear-ReLU-Linear`` without bias, d -> h -> d (arXiv 1701.06538, section 2 and appendix E)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm
from torch.utils.checkpoint import checkpoint

from fairseq_lasformer.ops import FunctionContext

BACKENDS = ("auto", "grouped", "loop")


class Experts(nn.Module):
    """Feed-forward networks of experts ``first`` to ``first + n_local - 1`` of a layer with ``n_experts``.

    They are initialised like ``nn.Linear``, each from its own seed, so that the weights do not depend on how a layer's
    experts are distributed over workers.

    Args:
        dim: width of the states (d).
        ffn_dim: hidden width of one expert (h).
        n_experts: number of experts of the layer (n).
        first: index of this worker's first expert.
        n_local: number of this worker's experts; default: all.
        recompute: recompute hidden activations in the backward pass instead of storing them (appendix D).
        backend: ``grouped`` (one product over all experts, PyTorch's ``grouped_mm``), ``loop`` (one product per expert,
            the definition), or ``auto``: grouped on GPUs in bfloat16 if the widths are multiples of 8 (for float16 and
            float32, PyTorch itself falls back to a loop).
    """

    def __init__(
        self,
        dim: int,
        ffn_dim: int,
        n_experts: int,
        first: int = 0,
        n_local: int | None = None,
        recompute: bool = False,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.n_experts, self.first = n_experts, first
        self.n_local = n_experts if n_local is None else n_local
        self.recompute, self.backend = recompute, backend
        self.w1 = nn.Parameter(torch.empty(self.n_local, dim, ffn_dim))
        self.w2 = nn.Parameter(torch.empty(self.n_local, ffn_dim, dim))
        seed = int(torch.randint(2**31, (), device="cpu"))
        with torch.no_grad():
            for i in range(self.n_local):
                generator = torch.Generator().manual_seed(seed + first + i)
                for w in (self.w1[i], self.w2[i]):
                    w.uniform_(-(w.size(0) ** -0.5), w.size(0) ** -0.5, generator=generator)
        for w in (self.w1, self.w2):
            w.param_group = "expert"  # type: ignore[attr-defined]

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, local_metadata: Any, strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Load this worker's experts from a checkpoint, which contains all experts of the layer."""
        for name in ("w1", "w2"):
            w = state_dict.get(prefix + name)
            if w is not None and w.size(0) == self.n_experts:
                state_dict[prefix + name] = w[self.first : self.first + self.n_local]
            elif w is not None:  # crash.pt, which fairseq writes from a single worker
                error_msgs.append(
                    f"{prefix}{name} contains {w.size(0)} of {self.n_experts} experts: not a complete checkpoint"
                )
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply its expert to each row.

        Args:
            rows: [P, d], sorted by expert.
            counts: int64 [n_local], number of rows of each expert; they sum to P.
        """
        whole = self.w1.size(1) % 8 == self.w1.size(2) % 8 == 0  # grouped_mm needs 16-byte strides
        fast = rows.is_cuda and rows.dtype == torch.bfloat16 and whole
        grouped = self.backend == "grouped" or (self.backend == "auto" and fast)
        if not grouped or not rows.size(0):
            keep = torch.is_grad_enabled() and not self.recompute
            return _Loop.apply(rows, self.w1, self.w2, counts.tolist(), keep)
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(_grouped, rows, self.w1, self.w2, counts, use_reentrant=False)
        return _grouped(rows, self.w1, self.w2, counts)


class _Loop(torch.autograd.Function):
    """The definition, one expert after the other.

    The backward pass is written by hand: autograd would allocate each expert's weight gradient separately and again as
    part of the gradient of all experts, which costs more than the matrix products if there are many experts.
    """

    @staticmethod
    def forward(ctx: FunctionContext, rows: Tensor, w1: Tensor, w2: Tensor, sizes: list[int], keep: bool) -> Tensor:
        out, hidden = rows.new_empty(rows.shape), None
        if keep:
            hidden = rows.new_empty(rows.size(0), w1.size(2))
        for i, part in _parts(sizes):
            h = (rows[part] @ w1[i]).relu_()
            torch.mm(h, w2[i], out=out[part])
            if hidden is not None:
                hidden[part] = h
        ctx.sizes = sizes
        ctx.save_for_backward(rows, w1, w2, hidden)
        return out

    @staticmethod
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[override]
        rows, w1, w2, hidden = ctx.saved_tensors
        grad = grad.contiguous()
        grads = torch.empty_like(rows), torch.empty_like(w1), torch.empty_like(w2)
        for i, size in enumerate(ctx.sizes):
            if not size:
                grads[1][i].zero_()
                grads[2][i].zero_()
        for i, part in _parts(ctx.sizes):
            h = (rows[part] @ w1[i]).relu_() if hidden is None else hidden[part]
            torch.mm(h.t(), grad[part], out=grads[2][i])
            above = (grad[part] @ w2[i].t()).mul_(h > 0)
            torch.mm(rows[part].t(), above, out=grads[1][i])
            torch.mm(above, w1[i].t(), out=grads[0][part])
        return *grads, None, None


def _parts(sizes: list[int]) -> Iterator[tuple[int, slice]]:
    """Iterate over the experts that have rows, with the slice of these rows."""
    begin = 0
    for i, size in enumerate(sizes):
        if size:
            yield i, slice(begin, begin + size)
        begin += size


def _grouped(rows: Tensor, w1: Tensor, w2: Tensor, counts: Tensor) -> Tensor:
    ends = counts.cumsum(0).int()
    return _Contiguous.apply(grouped_mm(grouped_mm(rows, w1, offs=ends).relu(), w2, offs=ends))


class _Contiguous(torch.autograd.Function):
    """Identity with a contiguous gradient, as ``grouped_mm`` requires (it rejects expanded tensors)."""

    @staticmethod
    def forward(ctx: FunctionContext, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: FunctionContext, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.contiguous()
