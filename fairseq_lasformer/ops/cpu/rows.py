"""Steps over blocks of attention scores, row by row: kernels on CPUs, and their definition in plain PyTorch."""

from types import ModuleType

import torch
from torch import Tensor

from fairseq_lasformer.ops.blocks import fill_disallowed, softmax_
from fairseq_lasformer.ops.cpu import kernels
from fairseq_lasformer.ops.reference import LARGEST_EXPONENT
from fairseq_lasformer.ops.types import OwnLines


def _kernels(block: Tensor) -> ModuleType | None:
    return kernels() if block.device.type == "cpu" and block.dtype == torch.float32 else None


def softmax_mean_(scores: Tensor, allowed: Tensor | None, mean: Tensor, share: float) -> Tensor:
    """Apply softmax in place, and add its sum over the heads to a mean.

    Args:
        scores: [B, H, rows, K]; rows without allowed keys become 0.
        allowed: bool [B or 1, rows, K]; None if every key is allowed.
        mean: [B, rows, K]; ``share`` times the sum is added to it.
        share: see ``mean``.

    Returns:
        ``scores``.
    """
    kernels = _kernels(scores)
    if kernels is not None:
        kernels.row_softmax(scores, None if allowed is None else allowed.contiguous(), mean, share)
        return scores
    weights, _ = softmax_(fill_disallowed(scores, allowed, float("-inf")))
    mean.add_(weights.sum(1), alpha=share)
    return weights


def own_arguments(own: OwnLines | None, shift: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return own lines [B, Q] and their shift [B, H, Q] as operators take them that read keys by their slots."""
    return (None, None) if own is None or shift is None else (own.flattened().pairs, shift.contiguous())


def shift_own_(scores: Tensor, own: OwnLines, shift: Tensor) -> None:
    """Add to the scores of each query's own line, in place.

    Args:
        scores: [B, H, rows, K].
        own: of these queries.
        shift: [B, H, rows], see :meth:`AttentionMask.shift`.
    """
    kernels = _kernels(scores)
    if kernels is not None and scores.is_contiguous():
        kernels.shift_own(scores, own.pairs, shift.float().contiguous())
        return
    mine = own.among(scores.size(-1))[:, None].to(scores.dtype)
    scores.addcmul_(mine.expand_as(scores), shift[..., None].to(scores.dtype))


def sum_own(scores: Tensor, own: OwnLines) -> Tensor:
    """Return the sum of the scores of each query's own line, [B, H, rows]; arguments as in :func:`shift_own_`."""
    kernels = _kernels(scores)
    if kernels is not None and scores.is_contiguous():
        return kernels.sum_own(scores, own.pairs)
    return (scores * own.among(scores.size(-1))[:, None]).sum(-1)


def softmax_gradient_(weights: Tensor, d_mean: Tensor) -> Tensor:
    """Compute the gradient of the scores of a softmax, in place of its result: w (g - Sum_j w g).

    Args:
        weights: [B, H, rows, K].
        d_mean: g, the gradient of every head's weights, [B, rows, K].
    """
    kernels = _kernels(weights)
    if kernels is not None and d_mean.is_contiguous():
        kernels.softmax_gradient(weights, d_mean)
        return weights
    d_mean = d_mean[:, None]
    return weights.mul_(d_mean - (weights * d_mean).sum(-1, keepdim=True))


def mask_gradient(
    scores: Tensor, lse: Tensor, d_weights: Tensor, delta: Tensor, allowed: Tensor | None, bounded: bool
) -> Tensor:
    """Compute the gradient of the mask of kept keys: Sum_h w (dO . V - delta), see ``attend``.

    Args:
        scores: S, [B, H, rows, K].
        lse: L, [B, H, rows]; +inf in rows without keys.
        d_weights: dO . V, [B, H, rows, K].
        delta: [B, H, rows].
        allowed: bool [B or 1, rows, K]; None if every key is allowed.
        bounded: whether w is at most 1.

    Returns:
        [B, rows, K]; 0 where not allowed.
    """
    most = 0.0 if bounded else LARGEST_EXPONENT
    kernels = _kernels(scores)
    if kernels is not None:
        mask = None if allowed is None else allowed.contiguous()
        tensors = (t.contiguous() for t in (scores, lse, d_weights, delta))
        return kernels.mask_gradient(*tensors, mask, most)
    weights = (scores - lse[..., None]).clamp_(max=most)
    return fill_disallowed(weights, allowed, float("-inf")).exp_().mul_(d_weights - delta[..., None]).sum(1)


def kept_softmax_(scores: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """Apply softmax over the kept keys in place.

    Args:
        scores: [B, H, rows, K]; rows without kept keys become 0.
        keep: bool [B, rows, K].

    Returns:
        ``scores``; their log-normalisers [B, H, rows], +inf in rows without kept keys.
    """
    kernels = _kernels(scores)
    if kernels is not None:
        return scores, kernels.row_softmax(scores, keep.contiguous(), None, 0.0)
    weights, lse = softmax_(scores.masked_fill_(~keep[:, None], float("-inf")))
    return weights, lse[..., 0]


def kept_gradient_(
    scores: Tensor, d_weights: Tensor, lse: Tensor, delta: Tensor, keep: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the weights of the kept keys and the gradient of their scores, P (dO . V - delta), both in place.

    Args:
        scores: S, [B, H, rows, K].
        d_weights: dO . V, [B, H, rows, K].
        lse: L, [B, H, rows]; +inf in rows without keys.
        delta: [B, H, rows].
        keep: bool [B, rows, K].

    Returns:
        P and its scores' gradient, 0 where not kept.
    """
    kernels = _kernels(scores)
    if kernels is not None:
        kernels.kept_gradient(scores, d_weights, lse.contiguous(), delta.contiguous(), keep.contiguous())
        return scores, d_weights
    weights = scores.sub_(lse[..., None]).masked_fill_(~keep[:, None], float("-inf")).exp_()
    return weights, d_weights.sub_(delta[..., None]).mul_(weights)
