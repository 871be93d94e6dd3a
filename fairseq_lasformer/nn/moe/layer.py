"""Mixture-of-experts layer in place of a feed-forward network. Equations: arXiv 1701.06538."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_lasformer.nn.moe.dispatch import ExpertGroup, TokenDispatcher, all_reduce
from fairseq_lasformer.nn.moe.experts import Experts
from fairseq_lasformer.nn.moe.gating import GATES, HierarchicalGate, NoisyTopKGate
from fairseq_lasformer.nn.moe.routing import combine


class MoeConfig(NamedTuple):
    """Options of a mixture; see ``--moe-...``."""

    n_experts: int  # number of experts (n)
    top_k: int = 2  # experts per token (k)
    gating: str = "noisy-topk"  # one of `gating.GATES`
    groups: int = 0  # groups of a hierarchical mixture (a, eq 12); 0 for a flat one
    importance_weight: float = 0.01  # w_importance (eq 7)
    load_weight: float = 0.01  # w_load (eq 11)
    noise_floor: float = 0.0  # added to the standard deviation of the noise (eq 4)
    sigmoid: bool = False  # whether to apply a sigmoid to the output
    recompute: bool = False  # recompute the experts' hidden activations; see `Experts`
    backend: str = "auto"  # implementation of the experts; see `Experts`


class RouterStats(NamedTuple):
    """Balance loss and logged statistics that a mixture returns in training, besides its output."""

    loss: Tensor  # scalar, weights applied; over the tokens of all workers if they share the experts
    importance: Tensor  # [n], sum of the gate values of each expert over this worker's tokens
    load: Tensor  # [n], number of this worker's tokens of each expert
    entropy: Tensor  # scalar, entropy of the gate, summed over this worker's tokens
    tokens: Tensor  # scalar, number of this worker's tokens
    # [W], number of rows processed by this worker's experts, at this worker's index; [1] if every worker has all
    # experts
    received: Tensor
    # [n], number of tokens for which batchwise gating's threshold disagrees with the batch; otherwise None
    threshold_gap: Tensor | None = None


class MixtureOfExperts(nn.Module):
    """y = sum_i G(x)_i E_i(x) (eq 1), computing only the experts that are used.

    Args:
        cfg: options of gate and experts.
        dim: width of the states (d).
        ffn_dim: hidden width of one expert (h).
        workers: the group that shares the experts; None if every worker has all of them.
    """

    def __init__(self, cfg: MoeConfig, dim: int, ffn_dim: int, workers: ExpertGroup | None = None) -> None:
        super().__init__()
        n, k = cfg.n_experts, cfg.top_k
        weights = (cfg.importance_weight, cfg.load_weight)
        self.gate: nn.Module
        if cfg.groups:
            self.gate = HierarchicalGate(dim, n, cfg.groups, k, *weights, cfg.noise_floor)
        elif cfg.gating == "noisy-topk":
            self.gate = NoisyTopKGate(dim, n, k, *weights, cfg.noise_floor)
        else:
            self.gate = GATES[cfg.gating](dim, n, k, *weights)
        self.n_experts, self.workers, self.sigmoid = n, workers, cfg.sigmoid
        rank, size = (0, 1) if workers is None else workers[1:]
        n_local = n // size
        self.experts = Experts(dim, ffn_dim, n, rank * n_local, n_local, recompute=cfg.recompute, backend=cfg.backend)
        if workers is not None:
            for w in self.experts.parameters():
                w.expert = True  # type: ignore[attr-defined]  # so that fairseq neither averages nor broadcasts it
                # the dispatcher sums gradients over all workers, where fairseq expects the mean
                w.register_hook(lambda grad: grad / size)

    def forward(
        self, x: Tensor, padding: Tensor | None, noise: Tensor | None = None
    ) -> tuple[Tensor, RouterStats | None]:
        """Apply the mixture to each token.

        Args:
            x: [..., d].
            padding: bool [...], True at padding, which is neither routed nor counted.
            noise: noise of the gate for the tokens (see ``sample_noise`` of the gates); if None, sampled in training.

        Returns:
            the same shape as x, 0 at padding; and in training the statistics.
        """
        with torch.autocast(x.device.type, enabled=False):  # gate and experts choose their own precision
            return self._forward(x, padding, noise)

    def _forward(self, x: Tensor, padding: Tensor | None, noise: Tensor | None) -> tuple[Tensor, RouterStats | None]:
        tokens = x.reshape(-1, x.size(-1))
        places = None
        if padding is not None:
            places = (~padding.reshape(-1)).nonzero()[:, 0]
            tokens = tokens[places]
        if noise is None and self.training:
            noise = self._sample_noise(tokens)
        routed = self.gate(tokens, noise)
        routing, counts = routed.routing.sorted(self.n_experts)
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
            loss=self._loss(routed.sums, routed.own_loss),
            importance=routed.sums["importance"].detach(),
            load=counts.to(routed.sums["importance"].dtype),
            entropy=routed.entropy,
            tokens=torch.tensor(float(tokens.size(0)), device=x.device),
            received=received.float(),
            threshold_gap=routed.sums.get("threshold_gap"),
        )
        return out, balance

    def _loss(self, sums: dict[str, Tensor], own: Tensor | None) -> Tensor:
        if self.workers is not None:
            whole = all_reduce(torch.cat(list(sums.values())), self.workers)
            sums = dict(zip(sums, whole.split([t.numel() for t in sums.values()])))
        loss = self.gate.balance(sums)  # type: ignore[operator]
        return loss if own is None else loss + own

    def _sample_noise(self, tokens: Tensor) -> Tensor | None:
        """Sample the gate's noise.

        fairseq seeds all workers alike. Workers that share experts each sample from their own stream, seeded from the
        common one, so that a recomputed pass samples the same noise.
        """
        generator = None
        if self.workers is not None:
            generator = torch.Generator(tokens.device).manual_seed(int(torch.randint(2**31, ())) + self.workers.rank)
        return self.gate.sample_noise(tokens.size(0), tokens.device, generator)  # type: ignore[operator]
