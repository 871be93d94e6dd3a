"""Gates: routing of tokens to experts, and the losses that balance the load of the experts.

Sources: arXiv 1701.06538 (Shazeer et al. 2017), sections 2-4 and appendices A, F, the source of all equation numbers;
arXiv 2006.16668 (GShard), section 2.2. x [T, d] are tokens without padding; gates are computed in float32 (float64
inputs in float64).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lasformer.nn.moe.routing import GateOutput, Routing, cv_squared

SMALLEST = 1e-6
"""Smallest standard deviation of the noise: softplus can underflow to 0, and P(x, i) divides by it."""


def _wide(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def noisy_scores(
    x: Tensor, w_gate: Tensor, w_noise: Tensor, noise: Tensor | None, floor: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute H(x) of eq 4.

    Args:
        x: [T, d].
        w_gate, w_noise: [d, n].
        noise: standard normal [T, n]; None for no noise.
        floor: added to its standard deviation.

    Returns:
        H(x), its mean x W_g and its standard deviation, [T, n] each.
    """
    clean = _wide(x) @ _wide(w_gate)
    std = (F.softplus(_wide(x) @ _wide(w_noise)) + floor).clamp_min(SMALLEST)
    return clean if noise is None else clean + noise.to(clean) * std, clean, std


def keep_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Apply softmax to the k highest of n scores (eq 3, 5).

    Returns:
        weights [T, k], experts [T, k], and the k + 1 highest scores.
    """
    top, expert = scores.topk(min(k + 1, scores.size(1)), dim=1)
    return top[:, :k].softmax(1), expert[:, :k], top


def chance_in_top_k(scores: Tensor, clean: Tensor, std: Tensor, top: Tensor, k: int) -> Tensor:
    """Compute P(x, i) of eq 8 and 9: the probability that expert i is in the top k if only its noise is redrawn.

    Args:
        scores, clean, std: outputs of :func:`noisy_scores`.
        top: the k + 1 highest scores of each token.
        k: experts per token.

    Returns:
        [T, n].
    """
    if k >= scores.size(1):
        return torch.ones_like(scores)
    inside, outside = top[:, k : k + 1], top[:, k - 1 : k]
    threshold = torch.where(scores > inside, inside, outside)
    return torch.special.ndtr((clean - threshold) / std)


def _flat(weight: Tensor, expert: Tensor, token: Tensor | None = None) -> Routing:
    """Build the routing of k experts per row, [T, k].

    Args:
        weight, expert: [T, k].
        token: [T], the token of each row; default: 0, 1, ….
    """
    n, k = expert.shape
    token = torch.arange(n, device=expert.device) if token is None else token
    return Routing(token.repeat_interleave(k), expert.reshape(-1), weight.reshape(-1), k)


def _entropy(weight: Tensor) -> Tensor:
    return torch.special.entr(weight.detach()).sum()


def _sum_by(index: Tensor, value: Tensor, n: int) -> Tensor:
    return value.new_zeros(n).index_add(0, index, value)


class SoftmaxGate(nn.Module):
    """Softmax(x W_g) over all experts (eq 2), the dense baseline.

    Args:
        dim: width of the states (d).
        n_experts: number of experts (n).
        k: unused here.
        importance_weight: w_importance (eq 7).
        load_weight: w_load (eq 11); a dense gate has no load loss, since its load is always balanced.
    """

    def __init__(self, dim: int, n_experts: int, k: int, importance_weight: float, load_weight: float) -> None:
        super().__init__()
        self.k, self.n_experts = k, n_experts
        self.weights = {"importance": importance_weight, "load": load_weight}
        self.gate = nn.Parameter(torch.randn(dim, n_experts) * dim**-0.5)

    def sample_noise(self, n_tokens: int, device: torch.device, generator: torch.Generator | None) -> Tensor | None:
        """Sample the ``noise`` argument of :meth:`forward` for training; None for gates without noise."""
        return None

    def forward(self, x: Tensor, noise: Tensor | None = None) -> GateOutput:
        """Map x [T, d] to routed pairs and sums."""
        weight = (_wide(x) @ _wide(self.gate)).softmax(1)
        every = torch.arange(self.n_experts, device=x.device).expand(weight.shape)
        return GateOutput(_flat(weight, every), {"importance": weight.sum(0)}, _entropy(weight))

    def balance(self, sums: dict[str, Tensor]) -> Tensor:
        """Return w_importance CV(Importance)^2 + w_load CV(Load)^2 (eq 7, 11), a scalar."""
        terms = [w * cv_squared(sums[name]) for name, w in self.weights.items() if w > 0 and name in sums]
        return torch.stack(terms).sum() if terms else sums["importance"].new_zeros(())


class NoisyTopKGate(SoftmaxGate):
    """Noisy top-k gating (eq 3-11): k experts per token, importance and load losses.

    Noise is added in training only. W_g and W_noise start at 0. Arguments as in :class:`SoftmaxGate`; k: experts per
    token; noise_floor: added to the noise's standard deviation (0 in the paper).
    """

    def __init__(
        self,
        dim: int,
        n_experts: int,
        k: int,
        importance_weight: float,
        load_weight: float,
        noise_floor: float = 0.0,
    ) -> None:
        super().__init__(dim, n_experts, k, importance_weight, load_weight)
        self.noise_floor = noise_floor
        nn.init.zeros_(self.gate)
        self.noise = nn.Parameter(torch.zeros(dim, n_experts))

    def sample_noise(self, n_tokens: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.randn(n_tokens, self.n_experts, device=device, generator=generator)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> GateOutput:
        """Map x [T, d], noise [T, n] standard normal, to k pairs per token, importance and load."""
        scores, clean, std = noisy_scores(x, self.gate, self.noise, noise, self.noise_floor)
        weight, expert, top = keep_top_k(scores, self.k)
        routing = _flat(weight, expert)
        sums = {"importance": _sum_by(routing.expert, routing.weight, self.n_experts)}
        if self.training:
            sums["load"] = chance_in_top_k(scores, clean, std, top, self.k).sum(0)
        return GateOutput(routing, sums, _entropy(weight))


class GShardGate(SoftmaxGate):
    """GShard's top-2 gating: the two highest softmax values, normalised to sum to 1.

    In training, the second expert is used with probability 2 g_2. The auxiliary loss is n sum_e (c_e / T) m_e, with c_e
    the number of tokens whose first choice is e and m_e the mean gate value; its weight is ``load_weight``. No token is
    dropped. Arguments as in :class:`SoftmaxGate`.
    """

    def sample_noise(self, n_tokens: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.rand(n_tokens, 1, device=device, generator=generator)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> GateOutput:
        """Map x [T, d], noise [T, 1] uniform in [0, 1), to at most two pairs per token."""
        gates = (_wide(x) @ _wide(self.gate)).softmax(1)
        top, expert = gates.topk(2, dim=1)
        weight = top / top.sum(1, keepdim=True)
        routing = _flat(weight, expert)
        if noise is not None:
            used = torch.cat([torch.ones_like(noise, dtype=torch.bool), 2 * weight[:, 1:] > noise], 1).view(-1)
            routing = Routing(routing.token[used], routing.expert[used], routing.weight[used])
        first = torch.bincount(expert[:, 0], minlength=self.n_experts).to(gates.dtype)
        sums = {
            "importance": _sum_by(routing.expert, routing.weight, self.n_experts),
            "first": first,
            "mean_gate": gates.sum(0),
        }
        return GateOutput(routing, sums, _entropy(weight))

    def balance(self, sums: dict[str, Tensor]) -> Tensor:
        """Return GShard's auxiliary loss, a scalar; it equals its weight if the load is perfectly balanced."""
        n_tokens = sums["first"].sum().clamp(min=1)
        return self.weights["load"] * self.n_experts * (sums["first"] * sums["mean_gate"]).sum() / n_tokens**2


class BatchwiseGate(SoftmaxGate):
    """Strictly balanced gating (eq 15-20).

    In training, every expert takes the m = k T / n tokens with the highest gate values (rounded, at least 1); otherwise
    those above a learned threshold. The output for tokens that no expert takes is 0.

    Each worker balances its own batch. In training, a token's experts depend on all tokens, including later ones: a
    decoder would be trained on information that it does not have at inference. Arguments as in :class:`SoftmaxGate`.
    """

    def __init__(self, dim: int, n_experts: int, k: int, importance_weight: float, load_weight: float) -> None:
        super().__init__(dim, n_experts, k, importance_weight, load_weight)
        self.threshold = nn.Parameter(torch.full((n_experts,), 1.0 / n_experts))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> GateOutput:
        """Map x [T, d] to, in training, m pairs per expert; ``own_loss`` (eq 20 / T) trains only the thresholds."""
        gates = (_wide(x) @ _wide(self.gate)).softmax(1)
        n_tokens = x.size(0)
        by_threshold = gates.detach() > _wide(self.threshold)
        own_loss = None
        if self.training:
            m = min(n_tokens, max(1, round(self.k * n_tokens / self.n_experts)))
            taken = torch.zeros_like(by_threshold).scatter_(0, gates.detach().topk(m, dim=0).indices, True)
            wrong = by_threshold.to(gates.dtype) - taken.to(gates.dtype)
            own_loss = (wrong * (gates.detach() - _wide(self.threshold))).sum() / max(1, n_tokens)
        else:
            taken = by_threshold
        weights = gates * taken
        weight = weights / weights.sum(1, keepdim=True).clamp(min=torch.finfo(gates.dtype).tiny)
        token, expert = taken.nonzero(as_tuple=True)
        routing = Routing(token, expert, weight[token, expert])
        sums = {"importance": _sum_by(expert, routing.weight, self.n_experts)}
        if self.training:
            sums["threshold_gap"] = (by_threshold != taken).sum(0).to(gates.dtype)
        return GateOutput(routing, sums, _entropy(gates), own_loss)


class HierarchicalGate(nn.Module):
    """Two-level gating (eq 12-14): a noisy top-k gate over groups, and one over the experts of each group.

    Args:
        dim: width of the states (d).
        n_experts: total number of experts (a b).
        n_groups: number of groups (a).
        k: groups per token, and experts per token in each group.
        importance_weight: w_importance (eq 7).
        load_weight: w_load (eq 11).
        noise_floor: see :class:`NoisyTopKGate`.
    """

    def __init__(
        self,
        dim: int,
        n_experts: int,
        n_groups: int,
        k: int,
        importance_weight: float,
        load_weight: float,
        noise_floor: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_experts, self.n_groups, self.k, self.noise_floor = n_experts, n_groups, k, noise_floor
        self.primary = NoisyTopKGate(dim, n_groups, k, importance_weight, load_weight, noise_floor)
        self.gate = nn.Parameter(torch.zeros(n_groups, dim, n_experts // n_groups))
        self.noise = nn.Parameter(torch.zeros_like(self.gate))

    def sample_noise(self, n_tokens: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
        return torch.randn(n_tokens, self.n_groups + self.n_experts, device=device, generator=generator)

    def forward(self, x: Tensor, noise: Tensor | None = None) -> GateOutput:
        """Route tokens through both levels.

        Args:
            x: [T, d].
            noise: standard normal [T, a + n], first for the primary gate, then for every group.

        Returns:
            k^2 pairs per token.
        """
        a, b = self.n_groups, self.n_experts // self.n_groups
        first = self.primary(x, None if noise is None else noise[:, :a])
        pairs, counts = first.routing.sorted(a)
        experts, importance, load, entropy = [], [], [], first.entropy
        begin = 0
        for i, count in enumerate(counts.tolist()):
            token, above = pairs.token[begin : begin + count], pairs.weight[begin : begin + count]
            begin += count
            part = None if noise is None else noise[token, a + i * b : a + (i + 1) * b]
            scores, clean, std = noisy_scores(x[token], self.gate[i], self.noise[i], part, self.noise_floor)
            weight, expert, top = keep_top_k(scores, self.k)
            experts.append(_flat(weight * above[:, None], expert + i * b, token))
            importance.append(_sum_by(experts[-1].expert - i * b, experts[-1].weight, b))
            if self.training:
                load.append(chance_in_top_k(scores, clean, std, top, self.k).sum(0))
            entropy = entropy + (torch.special.entr(weight) * above[:, None]).detach().sum()
        sums = {"importance": torch.cat(importance)}
        if self.training:
            sums |= {"group_load": first.sums["load"], "load": torch.cat(load), "group_count": counts.to(importance[0])}
        routing = Routing(
            torch.cat([r.token for r in experts]),
            torch.cat([r.expert for r in experts]),
            torch.cat([r.weight for r in experts]),
            self.k**2,
        )
        return GateOutput(routing, sums, entropy)

    def balance(self, sums: dict[str, Tensor]) -> Tensor:
        """Return the losses of eq 7 and 11 for Importance_H (eq 13) and Load_H (eq 14), a scalar."""
        share = sums["group_load"] / sums["group_count"].clamp(min=1)
        load = sums["load"].view(self.n_groups, -1) * share[:, None]
        return self.primary.balance({"importance": sums["importance"], "load": load.view(-1)})


GATES = {
    "noisy-topk": NoisyTopKGate,
    "softmax": SoftmaxGate,
    "batchwise": BatchwiseGate,
    "gshard-top2": GShardGate,
}
