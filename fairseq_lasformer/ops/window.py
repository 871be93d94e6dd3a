"""A fixed window in place of the learned selection: the keys nearest to the query (the paper's ablation, table 4).

Query at place p of n allowed keys, counted without padding, keeps keys lo … lo + w - 1, lo = p - floor(w / 2), moved
so that w keys are kept wherever there are so many: in a decoder's self-attention the last w.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_lasformer.ops.reference import Allowed, Paths, Slots


def _first(place: Tensor, n_keys: Tensor, window: int) -> Tensor:
    return torch.minimum(place - window // 2, n_keys - window).clamp(min=0)


def window_mask(shape: tuple[int, int, int], allowed: Allowed, window: int, own: bool, device: torch.device) -> Tensor:
    """The kept keys of a full pass, bool [B, Q, K].

    Args:
        shape: B, Q, K. own: queries and keys are the same tokens (self-attention); otherwise query i is at place i.
    """
    n_batch, n_queries, n_keys = shape
    place = torch.arange(n_keys, device=device)[None]
    if allowed.key_padding is not None:
        place = (~allowed.key_padding).cumsum(1) - 1
    asking = place if own else torch.arange(n_queries, device=device)[None]
    mask = allowed.full(n_batch, n_queries, n_keys, device)
    first = _first(asking, mask.sum(2), window)[..., None]
    return mask & (place[:, None] >= first) & (place[:, None] < first + window)


def window_slots(place: Tensor, n_rows: int, paths: Paths, window: int) -> Slots:
    """The kept keys of one decoding step.

    Args:
        place: int64 [N], of the newest queries. n_rows: R.
    """
    width, beam = min(window, paths.end), n_rows // paths.n_keys.numel()
    step = torch.arange(width, device=place.device)
    first = paths.start + _first(place, paths.n_keys, window)
    kept = paths.n_keys.clamp(max=window).repeat_interleave(beam)
    slot = (first[:, None] + step).clamp(max=paths.end - 1).repeat_interleave(beam, 0)
    if paths.table is not None:
        slot = paths.table.gather(1, slot)
    return Slots(slot.int().masked_fill(step >= kept[:, None], -1), kept.int())
