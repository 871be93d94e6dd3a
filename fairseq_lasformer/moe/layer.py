"""The mixture of experts in place of a feed-forward network."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_lasformer.moe.experts import Experts
from fairseq_lasformer.moe.gating import GATES, HierarchicalGate
from fairseq_lasformer.moe.parallel import Exchange, ExpertWorkers, all_reduce
from fairseq_lasformer.moe.routing import combine


class Balance(NamedTuple):
    """What a mixture returns beside its output, in training: its balance loss and what is logged.

    Attributes:
        loss: scalar, with its weights; of all workers' tokens together where they share the experts.
        importance, load: [n], the gate's mass and the number of tokens of each expert (this worker's tokens).
        entropy, tokens: scalars, sums over this worker's tokens.
        received: [W], rows that this worker's experts computed, in this worker's place; [1] where each has them all.
        threshold_gap: [n] or None, tokens for which batchwise gating's threshold errs.
    """

    loss: Tensor
    importance: Tensor
    load: Tensor
    entropy: Tensor
    tokens: Tensor
    received: Tensor
    threshold_gap: Tensor | None = None


class MixtureOfExperts(nn.Module):
    """y = sum_i G(x)_i E_i(x) (1701.06538, eq 1), at the cost of the experts that are used.

    Args:
        cfg: the model's configuration (its ``moe_`` options). dim, ffn_dim: d and h.
        workers: who share the experts; None where every worker has them all.
    """

    def __init__(self, cfg: Any, dim: int, ffn_dim: int, workers: ExpertWorkers | None = None) -> None:
        super().__init__()
        n, k = cfg.moe_experts, cfg.moe_top_k
        weights = (cfg.moe_importance_weight, cfg.moe_load_weight)
        self.gate: nn.Module
        if cfg.moe_groups:
            self.gate = HierarchicalGate(dim, n, cfg.moe_groups, k, *weights)
        else:
            self.gate = GATES[str(cfg.moe_gating)](dim, n, k, *weights)
        self.n_experts, self.workers, self.sigmoid = n, workers, cfg.moe_sigmoid
        rank, size = (0, 1) if workers is None else workers[1:]
        n_local = n // size
        self.experts = Experts(
            dim, ffn_dim, n, rank * n_local, n_local, recompute=cfg.moe_recompute, backend=str(cfg.moe_backend)
        )
        if workers is not None:
            for w in self.experts.parameters():
                w.expert = True  # type: ignore[attr-defined]  # fairseq: neither averaged nor broadcast
                # the exchange has summed over all workers what fairseq expects to be their mean
                w.register_hook(lambda grad: grad / size)

    def forward(self, x: Tensor, padding: Tensor | None, noise: Tensor | None = None) -> tuple[Tensor, Balance | None]:
        """x [..., d] -> the same shape, 0 at padding; the balance in training.

        Args:
            padding: bool [...], True where there is no token: never routed, never counted.
            noise: the gate's, for the tokens (see the gates' ``draw``); drawn in training where None.
        """
        with torch.autocast(x.device.type, enabled=False):  # the gate's precision is its own matter, and the loop's
            return self._forward(x, padding, noise)

    def _forward(self, x: Tensor, padding: Tensor | None, noise: Tensor | None) -> tuple[Tensor, Balance | None]:
        tokens = x.reshape(-1, x.size(-1))
        places = None
        if padding is not None:
            places = (~padding.reshape(-1)).nonzero()[:, 0]
            tokens = tokens[places]
        if noise is None and self.training:
            noise = self._draw(tokens)
        found = self.gate(tokens, noise)
        routing, counts = found.routing.sorted(self.n_experts)
        rows = tokens[routing.token]
        if self.workers is None:
            rows = self.experts(rows, counts)
            received = counts.sum()[None]
        else:
            exchange = Exchange(counts, self.workers)
            rows = exchange.back(self.experts(exchange.there(rows), exchange.counts))
            received = torch.zeros(self.workers.size, dtype=counts.dtype, device=counts.device)
            received[self.workers.rank] = exchange.counts.sum()
        out = combine(rows, routing, tokens.size(0)).to(x.dtype)
        if self.sigmoid:
            out = out.sigmoid()
        if places is not None:
            out = out.new_zeros(padding.numel(), out.size(1)).index_copy(0, places, out)  # type: ignore[union-attr]
        out = out.view(x.shape)
        if not self.training:
            return out, None
        balance = Balance(
            loss=self._loss(found.sums, found.own_loss),
            importance=found.sums["importance"].detach(),
            load=counts.to(found.sums["importance"].dtype),
            entropy=found.entropy,
            tokens=torch.tensor(float(tokens.size(0)), device=x.device),
            received=received.float(),
            threshold_gap=found.sums.get("threshold_gap"),
        )
        return out, balance

    def _loss(self, sums: dict[str, Tensor], own: Tensor | None) -> Tensor:
        if self.workers is not None:
            whole = all_reduce(torch.cat(list(sums.values())), self.workers)
            sums = dict(zip(sums, whole.split([t.numel() for t in sums.values()])))
        loss = self.gate.balance(sums)  # type: ignore[operator]
        return loss if own is None else loss + own

    def _draw(self, tokens: Tensor) -> Tensor | None:
        """The gate's noise. fairseq seeds all workers alike: those that share experts draw each from a stream of their
        own, whose seed comes from the common one, so that a recomputed pass draws the same."""
        generator = None
        if self.workers is not None:
            generator = torch.Generator(tokens.device).manual_seed(int(torch.randint(2**31, ())) + self.workers.rank)
        return self.gate.draw(tokens.size(0), tokens.device, generator)  # type: ignore[operator]
