"""Dropout that fairseq's ``--retain-dropout`` can keep active in generation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class Dropout(nn.Module):
    """Dropout with probability ``p``.

    Args:
        p: probability of zeroing an element.
        module_name: name by which ``--retain-dropout-modules`` refers to the module.
    """

    def __init__(self, p: float, module_name: str) -> None:
        super().__init__()
        self.p = p
        self.module_name = module_name
        self.retained = False

    @property
    def active_p(self) -> float:
        """The probability in the current mode: ``p`` in training or if dropout is retained, otherwise 0."""
        return float(self.p) if self.training or self.retained else 0.0

    def forward(self, x: Tensor) -> Tensor:
        p = self.active_p
        return F.dropout(x, p) if p > 0 else x

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: Sequence[str] | None = None, **_: Any
    ) -> None:
        """Keep dropout in generation if requested; called by fairseq before generation."""
        self.retained = retain_dropout and (
            retain_dropout_modules is None or self.module_name in retain_dropout_modules
        )
