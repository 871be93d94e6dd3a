"""The experts: ``Linear-ReLU-Linear`` without bias, d -> h -> d (1701.06538, section 2 and appendix E)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm
from torch.utils.checkpoint import checkpoint

BACKENDS = ("auto", "grouped", "loop")


class Experts(nn.Module):
    """The feed-forward networks of experts ``first`` to ``first + n_local`` of a layer of ``n_experts``.

    They are initialised as ``nn.Linear`` is, each from a seed of its own: workers that hold different experts of one
    layer hold together what one worker alone would.

    Args:
        recompute: keep no hidden activations for the backward pass, compute them again (appendix D).
        backend: ``grouped`` (one product over all experts, PyTorch's ``grouped_mm``), ``loop`` (one an expert, the
            definition), or ``auto``: grouped on a GPU in half precision, where PyTorch has a kernel for it.
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
        seed = int(torch.randint(2**31, ()))
        with torch.no_grad():
            for i in range(self.n_local):
                generator = torch.Generator().manual_seed(seed + first + i)
                for w in (self.w1[i], self.w2[i]):
                    w.uniform_(-(w.size(0) ** -0.5), w.size(0) ** -0.5, generator=generator)
        for w in (self.w1, self.w2):
            w.param_group = "expert"  # type: ignore[attr-defined]

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """A checkpoint holds all experts of the layer; these take their own."""
        for name in ("w1", "w2"):
            w = state_dict.get(prefix + name)
            if w is not None and w.size(0) == self.n_experts:
                state_dict[prefix + name] = w[self.first : self.first + self.n_local]
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Each row through its expert.

        Args:
            rows: [P, d], by expert. counts: int64 [n_local], rows of each; they sum to P.
        """
        grouped = self.backend == "grouped" or (
            self.backend == "auto" and rows.is_cuda and rows.dtype in (torch.bfloat16, torch.float16)
        )
        run = _grouped if grouped and rows.size(0) > 0 else _loop
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(run, rows, self.w1, self.w2, counts, use_reentrant=False)
        return run(rows, self.w1, self.w2, counts)


def _loop(rows: Tensor, w1: Tensor, w2: Tensor, counts: Tensor) -> Tensor:
    sizes = counts.tolist()
    if not rows.size(0):
        return rows @ w1[0] @ w2[0]  # nothing, but part of the graph, as workers that exchange rows need it
    # unbound at once: indexing would make a gradient of all experts for each of them
    experts = zip(rows.split(sizes), w1.unbind(0), w2.unbind(0))
    return torch.cat([(part @ a).relu_() @ b for part, a, b in experts if part.size(0)])


def _grouped(rows: Tensor, w1: Tensor, w2: Tensor, counts: Tensor) -> Tensor:
    ends = counts.cumsum(0).int()
    return _Contiguous.apply(grouped_mm(grouped_mm(rows, w1, offs=ends).relu(), w2, offs=ends))


class _Contiguous(torch.autograd.Function):
    """Identity whose gradient is laid out as ``grouped_mm`` wants it (an expanded one is refused)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad.contiguous()
