"""Full attention: every allowed key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fairseq_lasformer import ops
from fairseq_lasformer.nn.forms import FullSelection, every
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns.base import Pattern, PatternCost, PatternOptions
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import PassShape

if TYPE_CHECKING:
    from fairseq_lasformer.nn.decoding.layer_cache import LayerCache


class Full(Pattern):
    """Dense attention (``--select-pattern full``, and modules not listed in ``--select-modules``)."""

    name = "full"
    usage = "full"
    packable = True

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> Full:
        if argument:
            raise ValueError("full takes no argument")
        return cls()

    def forward(self, full: Pass) -> Selection:
        if self.reproducible and full.fixes_sums:
            shape = PassShape(full.query, full.query.size(1), full.key.size(1), 1.0, full.mask, self.backend)
            choice = ops.choose(shape._replace(teaches=False, dropout=False, reproducible=True))
            return every(choice, full.mask)
        return FullSelection(full.mask)

    def step(self, query: Tensor, keys: LayerCache) -> None:
        return None

    @property
    def share(self) -> float:
        return 1.0

    def cost(self, length: int) -> PatternCost:
        return PatternCost(1.0)
