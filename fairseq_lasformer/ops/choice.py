"""Choice of the implementation of a full pass. The reasons are logged at level DEBUG (``LOGLEVEL=debug``).

A decoding step has one implementation per backend, see ``backends.backend_for``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops.backends import backend_for
from fairseq_lasformer.ops.types import AttentionMask, KeyIndex

logger = logging.getLogger(__name__)

# from python -m benchmarks prefill and training: with fewer queries or more keys, blocks of a mask are faster
INFERENCE_FROM, INFERENCE_SHARE = 256, 0.5
TRAINING_FROM, TRAINING_SHARE = 256, 0.25


class PassShape(NamedTuple):
    """Properties of a full pass that decide on its implementation."""

    like: Tensor  # a tensor of its device and type
    # n_queries, n_keys: Q and K
    n_queries: int
    n_keys: int
    share: float  # the largest fraction of the keys that a query keeps
    mask: AttentionMask
    backend: str = "auto"  # one of `BACKENDS`
    teaches: bool = True  # whether a gradient, or the supervision, may need the selection
    dropout: bool = True  # whether attention weights may be dropped
    # whether only a sample of the queries teaches a learned pattern; blocks of a mask cover all queries
    sampled: bool = True
    reproducible: bool = False  # whether a pass without gradients must sum in an order that depends on the row alone


class Choice(NamedTuple):
    """An implementation, one of :data:`FORMS`, and why those before it were rejected; "" if there are none."""

    form: str  # `reference`, `bitmask`, `rows`, `gather`, `slots` or `mask`
    reason: str
    # index of each item's keys, for `rows`, `gather` and `slots`; None if padding is between keys
    keys: KeyIndex | None = None


def choose(full: PassShape, ranges: bool = True) -> Choice:
    """Choose the implementation of a full pass.

    Args:
        ranges: whether gathering needs the keys of an item to follow one another.
    """
    reasons: list[str] = []
    for form, refusal in FORMS.items():
        why, index = refusal(full), None
        if not why and ranges and form in ("rows", "gather", "slots"):
            index = _index(full)
            why = "padding between keys" if index is None else ""
        if not why:
            break
        reasons.append(f"{form}: {why}")
    choice = Choice(form, "; ".join(reasons), index)
    logger.debug(
        "%d queries, %d keys, %.1f%% kept: %s (not %s)",
        *(full.n_queries, full.n_keys, 100 * full.share, choice.form, choice.reason or "any other"),
    )
    return choice


def _index(full: PassShape) -> KeyIndex | None:
    padding = full.mask.key_padding
    return KeyIndex.over(torch.zeros(full.like.size(0), full.n_keys, dtype=torch.bool) if padding is None else padding)


def _reference(full: PassShape) -> str:
    return "" if full.backend == "reference" else "not requested"


def _bitmask(full: PassShape) -> str:
    return "" if backend_for(full.like.device, full.backend) == "triton" else f"no Triton on {full.like.device.type}"


def _rows(full: PassShape) -> str:
    if not full.reproducible:
        return "not requested"
    if full.like.dtype != torch.float32:
        return f"type {full.like.dtype}"
    return _inference(full) or _compiled(full)


def _gather(full: PassShape) -> str:
    return _inference(full) or _few(full, INFERENCE_FROM, INFERENCE_SHARE)


def _inference(full: PassShape) -> str:
    if full.teaches or full.dropout:
        return "gradients or dropout"
    return "causal" if full.mask.causal else ""


def _slots(full: PassShape) -> str:
    if not full.sampled:
        return "all queries teach"
    if full.like.dtype not in (torch.float32, torch.bfloat16):
        return f"type {full.like.dtype}"
    return _few(full, TRAINING_FROM, TRAINING_SHARE)


def _few(full: PassShape, minimum: int, share: float) -> str:
    if full.n_queries < minimum:
        return f"fewer than {minimum} queries"
    if full.share > share:
        return f"more than {share:.0%} of the keys"
    return _compiled(full)


def _compiled(full: PassShape) -> str:
    return "" if backend_for(full.like.device, full.backend) == "cpu" else "no compiled kernels"


FORMS: dict[str, Callable[[PassShape], str]] = {
    "reference": _reference,
    "bitmask": _bitmask,
    "rows": _rows,
    "gather": _gather,
    "slots": _slots,
    "mask": lambda full: "",
}
"""The forms of a selection in order of preference, each with a function that returns why it rejects a pass."""
