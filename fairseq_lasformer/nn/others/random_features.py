"""Attention by random features: Performer and RFA. Its cost is linear in the length, not quadratic.

The weight of a key, exp(q k), is replaced by the product of random features of query and key. The sums over the keys,
of phi(k) v^T and of phi(k), then do not depend on the query; in a decoding step, they are the state. The features are
drawn once and saved with the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lasformer.nn.attentions.base import AttentionOptions, AttentionOutput
from fairseq_lasformer.nn.attentions.projected import ProjectedAttention
from fairseq_lasformer.nn.decoding.layer_cache import LayerCache
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.others.prefix_sums import LOWEST, prefix_products
from fairseq_lasformer.nn.patterns import PatternCost
from fairseq_lasformer.nn.patterns.base import numbers
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import KeptKeys

MINIMUM = 1e-30
"""Smallest sum of weights used as a divisor."""


@dataclass(frozen=True)
class Features:
    """Parameters of ``performer`` and ``rfa``."""

    features: int  # number of random vectors (m)


class RandomFeatures(ProjectedAttention):
    """Base of attentions by random features. Attention dropout is left out: there are no weights.

    Args:
        options: widths and heads.
        features: number of random vectors (m).
    """

    random: Tensor

    def __init__(self, options: AttentionOptions, features: int) -> None:
        super().__init__(options)
        self.features = features
        self.register_buffer("random", orthogonal(features, self.head_dim))

    @classmethod
    def build(cls, argument: str, options: AttentionOptions) -> RandomFeatures:
        return cls(options, numbers(Features, argument, f"{cls.name}:features=64").features)

    def query_features(self, q: Tensor) -> Tensor:
        """Map [..., H, N, D] to features [..., H, N, M], up to a factor per query, which cancels out."""
        raise NotImplementedError

    def key_features(self, k: Tensor) -> tuple[Tensor, Tensor]:
        """Map [..., H, N, D] to features [..., H, N, M], and the log of their missing factor, [..., H, N, 1]."""
        raise NotImplementedError

    def forward(self, full: Pass, selection: Selection | None = None) -> AttentionOutput:
        x, mask = full.query, full.mask
        q, k, v = (t.float() for t in self.projected(x, full.memory))
        phi_q, (phi_k, log) = self.query_features(q), self.key_features(k)
        if mask.key_padding is not None:
            log = log.masked_fill(mask.key_padding[:, None, :, None], -torch.inf)
        if mask.causal:
            both = prefix_products(phi_q, phi_k, _counted(v), log)
        else:
            both = phi_q @ (_scaled(phi_k, log).transpose(2, 3) @ _counted(v))
        return AttentionOutput(self.joined(divided(both).to(x.dtype)))

    def step(self, x: Tensor, keys: LayerCache, kept: KeptKeys | None = None) -> AttentionOutput:
        q, width = self.heads(self.q_proj(x)[:, None]).float(), self.head_dim
        if keys.memory is None:
            k, v = (self.heads(p(x)[:, None]).float() for p in (self.k_proj, self.v_proj))
            phi, log = self.key_features(k)
            sums = keys.state("sums", self.num_heads, phi.size(-1), width + 1, dtype=torch.float32)
            top = keys.state("log", self.num_heads, 1, 1, dtype=torch.float32)  # the sums lack the factor exp(top)
            first = (keys.row_position == 0)[:, None, None, None]
            new = torch.where(first, log, torch.maximum(top, log))
            # in the first step, new may be far below top, and 0 * inf is NaN
            sums.mul_((top - new).clamp_max(0).exp()).add_((phi * (log - new).exp()).transpose(2, 3) * _counted(v))
            top.copy_(new)
        else:
            sums = keys.project("sums", lambda memory: self._sums(memory, keys))
            sums = sums.view(sums.size(0), self.num_heads, -1, width + 1)
            sums = sums.repeat_interleave(x.size(0) // sums.size(0), 0)
        return AttentionOutput(self.joined(divided(self.query_features(q) @ sums).to(x.dtype)).flatten(0, 1))

    def _sums(self, memory: Tensor, keys: LayerCache) -> Tensor:
        """Return the sums over a source [N, K, d] in the form of keys, [N, H * M, D + 1]."""
        k, v = (self.heads(p(memory)).float() for p in (self.k_proj, self.v_proj))
        phi, log = self.key_features(k)
        log = log.masked_fill(~keys.key_index.allowed()[:, None, : memory.size(1), None], -torch.inf)
        return (_scaled(phi, log).transpose(2, 3) @ _counted(v)).flatten(1, 2)

    def cost(self, length: int) -> PatternCost:
        width = self.query_features(torch.zeros(1, self.num_heads, 1, self.head_dim)).size(-1)
        features = 2.0 * length * self.features * self.embed_dim
        return PatternCost(width / length, projections=features, each_layer=True)


class Performer(RandomFeatures):
    """Positive features of exp(q k / sqrt(D)) (FAVOR+; Choromanski et al. 2020, arXiv 2009.14794, lemma 1).

    phi(x) = exp(w x - |x|^2 / 2) for each random vector w, orthogonal in blocks of D, with x = q / D^(1/4).
    ``--select-pattern performer:features=64``
    """

    name = "performer"
    usage = "performer:features=N"

    def query_features(self, q: Tensor) -> Tensor:
        projected = q * self.head_dim**-0.25 @ self.random.float().T
        return (projected - projected.amax(-1, keepdim=True).detach()).exp()

    def key_features(self, k: Tensor) -> tuple[Tensor, Tensor]:
        k = k * self.head_dim**-0.25
        projected = k @ self.random.float().T - k.square().sum(-1, keepdim=True) / 2
        top = projected.amax(-1, keepdim=True).detach()
        return (projected - top).exp(), top


class Rfa(RandomFeatures):
    """Features of the Gaussian kernel (Peng et al. 2021, arXiv 2103.02143, section 3.1, without gate).

    phi(x) = [sin(w x), cos(w x)] for each random vector w, scaled by a trained vector per head; queries and
    keys have length 1. ``--select-pattern rfa:features=64``
    """

    name = "rfa"
    usage = "rfa:features=N"

    def __init__(self, options: AttentionOptions, features: int) -> None:
        super().__init__(options, features)
        self.scale = nn.Parameter(torch.ones(self.num_heads, 1, self.head_dim))

    def query_features(self, q: Tensor) -> Tensor:
        projected = F.normalize(q, dim=-1) * self.scale @ self.random.float().T
        return torch.cat([projected.sin(), projected.cos()], -1)

    def key_features(self, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.query_features(k), torch.zeros_like(k[..., :1])


def orthogonal(n: int, width: int) -> Tensor:
    """Draw n Gaussian vectors [n, width], in blocks of ``width`` that are orthogonal to each other."""
    blocks = []
    for _ in range(-(-n // width)):
        q, r = torch.linalg.qr(torch.randn(width, width))
        blocks.append((q * r.diagonal().sign()).T)  # without the signs, directions are not equally likely
    return torch.cat(blocks)[:n] * torch.randn(n, width).norm(dim=1, keepdim=True)


def divided(both: Tensor) -> Tensor:
    """Divide weighted values by the sum of their weights, [..., D + 1] -> mean [..., D]; 0 where there is no weight.

    Weights from sines may be negative.
    """
    values, weights = both[..., :-1], both[..., -1:]
    return values / torch.where(weights.abs() < MINIMUM, torch.inf, weights)


def _counted(v: Tensor) -> Tensor:
    """Append a 1 to values [..., D]; its weighted sum is that of the weights."""
    return torch.cat([v, torch.ones_like(v[..., :1])], -1)


def _scaled(phi: Tensor, log: Tensor) -> Tensor:
    """Multiply features of keys [B, H, K, M] by their factors, up to one common to a head's keys; 0 at padding."""
    return phi * (log - log.amax(2, keepdim=True).clamp_min(LOWEST)).exp()
