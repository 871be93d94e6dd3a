"""No key but those of the own line, with ``--own-lines``."""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_lasformer.nn.patterns.base import PatternOptions
from fairseq_lasformer.nn.patterns.positional import Positional


class OwnLine(Positional):
    """Nothing besides the own line that ``--own-lines`` reads in any case."""

    name = "own-line"
    usage = "own-line"

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> OwnLine:
        if argument:
            raise ValueError("own-line takes no argument")
        return cls()

    def positions(self, query: Tensor, n_keys: Tensor, longest: int) -> Tensor:
        return torch.full((*query.shape, 1), -1, device=query.device)
