"""Fixed window of keys around the query (table 4 of arXiv 2309.14174).

The query at position p of n allowed keys, not counting padding, keeps keys lo to lo + w - 1 with lo = p - floor(w / 2),
shifted so that w keys are kept if there are that many: in decoder self-attention, the last w.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.nn.patterns.base import PatternOptions
from fairseq_lasformer.nn.patterns.positional import Positional


class Window(Positional):
    """The ``size`` keys nearest to the query (``--select-pattern window:SIZE``). Nothing is learned or supervised.

    Args:
        size: number of keys to keep, at least 1.
    """

    name = "window"
    usage = "window:SIZE"

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> Window:
        if not argument.isdecimal() or int(argument) < 1:
            raise ValueError("expected the number of keys, at least 1, as in window:20")
        return cls(int(argument))

    def positions(self, query: Tensor, n_keys: Tensor, longest: int) -> Tensor:
        first = torch.minimum(query - self.size // 2, n_keys - self.size).clamp(min=0)
        return first[..., None] + torch.arange(min(self.size, longest), device=query.device)

    def _load_from_state_dict(self, *args: Any) -> None:
        """Load nothing: a window has no state; older versions saved a selector that it never used."""
