"""What a gate decides, and how rows get to their experts and back: sorting, never a [tokens, experts, …] tensor.

T tokens (padding left out), n experts, P routed pairs of a token and an expert.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Routing(NamedTuple):
    """Which tokens go to which experts, in any order.

    Attributes:
        token, expert: int64 [P]. weight: the gate's value G(x)_i, float32 [P].
        n_each: how many pairs every token has; 0 where that differs.
    """

    token: Tensor
    expert: Tensor
    weight: Tensor
    n_each: int = 0

    def sorted(self, n_experts: int) -> tuple[Routing, Tensor]:
        """The pairs by expert (within one, in their order), and how many each expert has, int64 [n]."""
        order = self.expert.argsort(stable=True)
        counts = torch.bincount(self.expert, minlength=n_experts)
        return Routing(self.token[order], self.expert[order], self.weight[order], self.n_each), counts


def combine(rows: Tensor, routing: Routing, n_tokens: int) -> Tensor:
    """y = sum_i G(x)_i E_i(x) (1701.06538, eq 1): experts' outputs [P, d], in routing's order, to [T, d], float32."""
    parts = rows.to(torch.promote_types(rows.dtype, torch.float32)) * routing.weight[:, None]
    if not n_tokens:
        return parts
    # in a fixed order: added atomically, a recomputed pass could round, and then route, otherwise
    parts = parts[routing.token.argsort(stable=True)]
    if routing.n_each:
        return parts.view(n_tokens, routing.n_each, -1).sum(1)
    return torch.segment_reduce(parts, "sum", lengths=torch.bincount(routing.token, minlength=n_tokens), unsafe=True)


class GateOutput(NamedTuple):
    """What a gate returns.

    Attributes:
        routing: the kept pairs.
        sums: what the balance losses need, each a sum over tokens, so that workers' sums can be added.
        entropy: sum over tokens of the gate distribution's entropy in nats, for logging.
        own_loss: a loss that is no function of ``sums`` (batchwise gating's, eq 20), or None.
    """

    routing: Routing
    sums: dict[str, Tensor]
    entropy: Tensor
    own_loss: Tensor | None = None


def cv_squared(x: Tensor) -> Tensor:
    """Squared coefficient of variation, Var(x) / mean(x)^2, with the population's variance; 0 where all are 0."""
    return x.var(correction=0) / x.mean().square().clamp(min=torch.finfo(x.dtype).tiny)
