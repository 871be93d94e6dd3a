"""The mixture of experts in place of a feed-forward network."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_lasformer.nn.moe.dispatch import ExpertGroup, TokenDispatcher, all_reduce
from fairseq_lasformer.nn.moe.experts import Experts
from fairseq_lasformer.nn.moe.gating import GATES, HierarchicalGate
from fairseq_lasformer.nn.moe.routing import combine


class MoeConfig(NamedTuple):
    """A mixture's options; see ``--moe-...``.

    Attributes:
        n_experts: n. top_k: experts per token (k). gating: one of :data:`gating.GATES`.
        groups: of a hierarchical mixture (a, eq 12 of 1701.06538); 0 for a flat one.
        importance_weight, load_weight: w_importance (eq 7) and w_load (eq 11).
        sigmoid: whether a sigmoid is applied to the output.
        recompute, backend: of the experts; see :class:`Experts`.
    """

    n_experts: int
    top_k: int = 2
    gating: str = "noisy-topk"
    groups: int = 0
    importance_weight: float = 0.01
    load_weight: float = 0.01
    sigmoid: bool = False
    recompute: bool = False
    backend: str = "auto"


class RouterStats(NamedTuple):
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
        cfg: gate and experts.
        dim: width of the states (d).
        ffn_dim: hidden width of one expert (h).
        workers: the group that shares the experts; None where every worker holds all of them.
    """

    def __init__(self, cfg: MoeConfig, dim: int, ffn_dim: int, workers: ExpertGroup | None = None) -> None:
        super().__init__()
        n, k = cfg.n_experts, cfg.top_k
        weights = (cfg.importance_weight, cfg.load_weight)
        self.gate: nn.Module
        if cfg.groups:
            self.gate = HierarchicalGate(dim, n, cfg.groups, k, *weights)
        else:
            self.gate = GATES[cfg.gating](dim, n, k, *weights)
        self.n_experts, self.workers, self.sigmoid = n, workers, cfg.sigmoid
        rank, size = (0, 1) if workers is None else workers[1:]
        n_local = n // size
        self.experts = Experts(dim, ffn_dim, n, rank * n_local, n_local, recompute=cfg.recompute, backend=cfg.backend)
        if workers is not None:
            for w in self.experts.parameters():
                w.expert = True  # type: ignore[attr-defined]  # fairseq: neither averaged nor broadcast
                # the dispatcher has summed over all workers what fairseq expects to be their mean
                w.register_hook(lambda grad: grad / size)

    def forward(
        self, x: Tensor, padding: Tensor | None, noise: Tensor | None = None
    ) -> tuple[Tensor, RouterStats | None]:
        """x [..., d] -> the same shape, 0 at padding; the balance in training.

        Args:
            padding: bool [...], True where there is no token: never routed, never counted.
            noise: the gate's, for the tokens (see the gates' ``sample_noise``); drawn in training where None.
        """
        with torch.autocast(x.device.type, enabled=False):  # the gate's precision is its own matter, and the loop's
            return self._forward(x, padding, noise)

    def _forward(self, x: Tensor, padding: Tensor | None, noise: Tensor | None) -> tuple[Tensor, RouterStats | None]:
        tokens = x.reshape(-1, x.size(-1))
        places = None
        if padding is not None:
            places = (~padding.reshape(-1)).nonzero()[:, 0]
            tokens = tokens[places]
        if noise is None and self.training:
            noise = self._sample_noise(tokens)
        found = self.gate(tokens, noise)
        routing, counts = found.routing.sorted(self.n_experts)
        rows = tokens[routing.token]
        if self.workers is None:
            rows = self.experts(rows, counts)
            received = counts.sum()[None]
        else:
            dispatcher = TokenDispatcher(counts, self.workers)
            rows = dispatcher.combine(self.experts(dispatcher.dispatch(rows), dispatcher.counts))
            received = torch.zeros(self.workers.size, dtype=counts.dtype, device=counts.device)
            received[self.workers.rank] = dispatcher.counts.sum()
        out = combine(rows, routing, tokens.size(0)).to(x.dtype)
        if self.sigmoid:
            out = out.sigmoid()
        if places is not None:
            out = out.new_zeros(padding.numel(), out.size(1)).index_copy(0, places, out)  # type: ignore[union-attr]
        out = out.view(x.shape)
        if not self.training:
            return out, None
        balance = RouterStats(
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

    def _sample_noise(self, tokens: Tensor) -> Tensor | None:
        """The gate's noise. fairseq seeds all workers alike: those that share experts draw each from a stream of their
        own, whose seed comes from the common one, so that a recomputed pass draws the same."""
        generator = None
        if self.workers is not None:
            generator = torch.Generator(tokens.device).manual_seed(int(torch.randint(2**31, ())) + self.workers.rank)
        return self.gate.sample_noise(tokens.size(0), tokens.device, generator)  # type: ignore[operator]
