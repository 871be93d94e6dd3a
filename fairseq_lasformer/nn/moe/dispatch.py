"""Expert parallelism: each expert is stored on one worker, and tokens are sent to it (arXiv 1701.06538, section 3.1).

All workers take part in every exchange, forward and backward, even if they have no rows to send or receive.
"""

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from fairseq_lasformer.ops import FunctionContext


class ExpertGroup(NamedTuple):
    """Workers that share the experts: worker r of W has experts r n / W to (r + 1) n / W - 1 of every layer."""

    group: Any
    rank: int  # this worker's index (r)
    size: int  # number of workers (W)


def all_reduce(x: Tensor, workers: ExpertGroup) -> Tensor:
    """Return the sum of x over all workers; gradients are summed over them as well."""
    return _AllReduce.apply(x, workers.group)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionContext, x: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _exchange(x, send, receive, group)

    @staticmethod
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return _exchange(grad, ctx.receive, ctx.send, ctx.group), None, None, None


def _exchange(x: Tensor, send: list[int], receive: list[int], group: Any) -> Tensor:
    out = x.new_empty(sum(receive), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), receive, send, group=group)
    return out


class TokenDispatcher:
    """All-to-all exchange: rows to the workers that have their experts, and the results back.

    Args:
        counts: int64 [n], number of rows that this worker has for each expert.
        workers: the group that shares the experts.

    Attributes:
        counts: int64 [n / W], number of rows that this worker's experts receive.
    """

    def __init__(self, counts: Tensor, workers: ExpertGroup) -> None:
        self.workers = workers
        there = counts.new_empty(counts.size(0))
        dist.all_to_all_single(there, counts, group=workers.group)
        by_worker = there.view(workers.size, -1)
        self.send = counts.view(workers.size, -1).sum(1).tolist()
        self.receive = by_worker.sum(1).tolist()
        self.counts = by_worker.sum(0)
        # rows arrive sorted by worker; the experts need them sorted by expert
        n_local = by_worker.size(1)
        expert = torch.arange(n_local, device=counts.device).repeat(workers.size).repeat_interleave(there)
        self.order = expert.argsort(stable=True)

    def dispatch(self, rows: Tensor) -> Tensor:
        """Send rows to the workers that have their experts.

        Args:
            rows: [P, d], sorted by expert.

        Returns:
            the rows of all workers for this worker's experts, sorted by expert; ``counts`` of each.
        """
        return _AllToAll.apply(rows, self.send, self.receive, self.workers.group)[self.order]

    def combine(self, rows: Tensor) -> Tensor:
        """Send results back to where the rows came from: the inverse of :meth:`dispatch`."""
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(self.order.numel(), device=self.order.device)
        return _AllToAll.apply(rows[inverse], self.receive, self.send, self.workers.group)
