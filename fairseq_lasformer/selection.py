"""The selector: which keys a group of layers attends to, and how many (eq 1, 2, 7, 8)."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.ops import KAPPA_ONE, Allowed, Paths, Slots


class Selection(NamedTuple):
    """One selection, made by a group's lowest layer and used by all of them within one pass.

    Attributes:
        query, key: the selector's projections, [B, Q or K, S]; the straight-through gradient and the supervision
            reach the selector through them. None in decoding steps.
        mask: bool [B, Q, K], the kept keys of a full pass. None in decoding steps.
        slots: the kept keys of a decoding step, or of a full pass that reads only them (B * Q rows); None in other
            passes, and where every key is kept.
        bits: the kept keys of a full pass through Triton's tiles, int32 [B, Q, ceil(K / 32)].
    """

    query: Tensor | None = None
    key: Tensor | None = None
    mask: Tensor | None = None
    slots: Slots | None = None
    bits: Tensor | None = None


class SparsityRule(NamedTuple):
    """Adaptive sparsity (eq 7): how kappa follows the mass of the kept keys. Shares, not percentages."""

    threshold: float = 0.95
    step: float = 0.001
    minimum: float = 0.01
    freeze_above: float = 0.5

    def next(self, kappa: int, mass: float) -> int:
        """kappa after an update in which the kept keys held ``mass``; kappa in millionths."""
        step, freeze = round(self.step * KAPPA_ONE), round(self.freeze_above * KAPPA_ONE)
        if mass > self.threshold:
            kappa -= step
        elif kappa <= freeze:
            kappa += step
        return min(KAPPA_ONE, max(round(self.minimum * KAPPA_ONE), kappa))


class Selector(nn.Module):
    """The lightweight attention of one group of one attention module: W_Q, W_K of one narrow head, and kappa.

    ``kappa`` is an int64 buffer in millionths: it is saved with the model, is not touched by half precision, and is
    changed only by :meth:`adapt`, between updates.

    Args:
        embed_dim: width of the queries' states (d). key_dim: width of the keys' states. select_dim: d_s.
        backend: what selects in generation (``--attention-backend``).
    """

    kappa: Tensor

    def __init__(
        self, embed_dim: int, key_dim: int, select_dim: int, rule: SparsityRule, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.q_proj = nn.Linear(embed_dim, select_dim, bias=False)
        self.k_proj = nn.Linear(key_dim, select_dim, bias=False)
        nn.init.xavier_uniform_(self.q_proj.weight)
        nn.init.xavier_uniform_(self.k_proj.weight)
        self.rule = rule
        self.backend = backend
        self.register_buffer("kappa", torch.tensor(KAPPA_ONE, dtype=torch.int64))

    def forward(self, query: Tensor, key: Tensor, allowed: Allowed, as_mask: bool = False) -> Selection:
        """Selection of a full pass from the layer's states, query [B, Q, d] and key [B, K, d].

        Args:
            as_mask: whether it must be a mask; otherwise a pass without gradients takes what is fastest.
        """
        q, k = self.q_proj(query), self.k_proj(key)
        if not torch.is_grad_enabled() and not as_mask:
            kappa = int(self.kappa)
            paths = ops.sparse_pass(q.size(1), k, allowed, kappa, self.backend)
            if paths is not None:
                return Selection(slots=ops.select_pass(q, k, paths, kappa))
            if ops.tile_pass(q.device, self.backend):
                return Selection(bits=ops.select_bits(q, k, allowed, kappa))
        return Selection(query=q, key=k, mask=ops.select_mask(q, k, allowed, self.kappa))

    def step(self, query: Tensor, keys: Tensor, paths: Paths, kappa: int, place: Tensor) -> Selection:
        """Selection of a decoding step: query [R, d] against the projected keys by slot, [N, C, S].

        ``kappa`` is the buffer's value, which the caller has read once: reading it here would stop a GPU at every step.
        ``place`` int64 [N] is the position of the newest queries.
        """
        return Selection(slots=ops.select_slots(self.q_proj(query), keys, paths, kappa, self.backend))

    def adapt(self, mass: float) -> None:
        """Moves kappa by eq 7, after an update whose valid queries kept ``mass`` in the mean."""
        self.kappa.fill_(self.rule.next(int(self.kappa), mass))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        kappa = state_dict.get(prefix + "kappa")
        if kappa is not None and (kappa.is_floating_point() or not 0 < int(kappa) <= KAPPA_ONE):
            raise InputError(f"{prefix}kappa is {float(kappa) / KAPPA_ONE:g}; expected a share in (0, 1]")
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def share(self) -> float:
        """kappa as a share of the keys, 0 to 1."""
        return int(self.kappa) / KAPPA_ONE


class Window(nn.Module):
    """A fixed window of keys around the query in a selector's place (the paper's ablation): nothing to learn or to
    supervise, and no kappa.

    Args:
        size: how many keys are kept.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, query: Tensor, key: Tensor, allowed: Allowed, as_mask: bool = True) -> Selection:
        """Selection of a full pass; see :meth:`Selector.forward`."""
        shape = (query.size(0), query.size(1), key.size(1))
        return Selection(mask=ops.window_mask(shape, allowed, self.size, query is key, query.device))

    def step(self, query: Tensor, keys: None, paths: Paths, kappa: int, place: Tensor) -> Selection:
        """Selection of a decoding step; see :meth:`Selector.step`."""
        return Selection(slots=ops.window_slots(place, query.size(0), paths, self.size))


def build_selector(cfg: Any, layer: int, embed_dim: int, key_dim: int) -> Selector | Window | None:
    """The selector of a layer, None for the upper layers of a group (eq 8), which use the one of its lowest layer."""
    if layer % cfg.select_share:
        return None
    if cfg.select_window:
        return Window(cfg.select_window)
    rule = SparsityRule(cfg.sparsity_threshold, cfg.sparsity_step, cfg.sparsity_min, cfg.sparsity_freeze_above)
    return Selector(embed_dim, key_dim, cfg.select_dim, rule, cfg.attention_backend)
