"""Result of a gate, and routing of rows to their experts and back by sorting, without a [tokens, experts, …] tensor.

Shapes: T tokens (padding excluded), n experts, P routed token-expert pairs. Equations: arXiv 1701.06538.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Routing(NamedTuple):
    """Token-expert pairs, in any order."""

    # token, expert: int64 [P]
    token: Tensor
    expert: Tensor
    weight: Tensor  # the gate value G(x)_i, float32 [P]
    n_each: int = 0  # number of pairs of every token; 0 if it varies

    def sorted(self, n_experts: int) -> tuple[Routing, Tensor]:
        """Sort the pairs by expert (stably); also return the number of pairs of each expert, int64 [n]."""
        order = self.expert.argsort(stable=True)
        counts = torch.bincount(self.expert, minlength=n_experts)
        return Routing(self.token[order], self.expert[order], self.weight[order], self.n_each), counts


def combine(rows: Tensor, routing: Routing, n_tokens: int) -> Tensor:
    """Compute y = sum_i G(x)_i E_i(x) (eq 1).

    Args:
        rows: outputs of the experts [P, d], in the order of ``routing``.
        n_tokens: T.

    Returns:
        float32 [T, d].
    """
    parts = rows.to(torch.promote_types(rows.dtype, torch.float32)) * routing.weight[:, None]
    if not n_tokens:
        return parts
    # in a fixed order: with atomic additions, a recomputed pass could round, and therefore route, differently
    parts = parts[routing.token.argsort(stable=True)]
    if routing.n_each:
        return parts.view(n_tokens, routing.n_each, -1).sum(1)
    return torch.segment_reduce(parts, "sum", lengths=torch.bincount(routing.token, minlength=n_tokens), unsafe=True)


class GateOutput(NamedTuple):
    """Output of a gate."""

    routing: Routing
    # inputs of the balance losses, each a sum over tokens, so that the sums of all workers can be added
    sums: dict[str, Tensor]
    entropy: Tensor  # entropy of the gate's distribution in nats, summed over tokens, for logging
    own_loss: Tensor | None = None  # a loss that is not a function of `sums` (batchwise gating, eq 20), or None


def cv_squared(x: Tensor) -> Tensor:
    """Compute the squared coefficient of variation, population Var(x) / mean(x)^2; 0 if x is 0."""
    return x.var(correction=0) / x.mean().square().clamp(min=torch.finfo(x.dtype).tiny)
