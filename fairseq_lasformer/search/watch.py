"""Search observers: what all hypotheses of an item agree on can be shown before the search ends.

Shapes: N items, B hypotheses per item.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fairseq_lasformer.search.processors import Candidates, Scores, StepProcessor

Observe = Callable[[Tensor, Tensor], None]
"""Called with the tokens of an item's hypotheses, int64 [B, n], and their cumulative scores [B, n]."""


class Watch(StepProcessor):
    """Processor that calls an observer before every step, until a hypothesis of its item has ended.

    Args:
        observers: by item number in the batch.
        end: index of the end of sentence.
    """

    reads_tokens = True

    def __init__(self, observers: Mapping[int, Observe], end: int) -> None:
        self.observers, self.end = dict(observers), end

    def begin(self, n_items: int, beam: int, device: torch.device) -> None:
        self.items = list(range(n_items))

    def step(self, scores: Scores) -> None:
        self.items = scores.items.tolist()
        if scores.past is None or scores.tokens is None:
            return
        beam = scores.past.size(1)
        for row, item in enumerate(self.items):
            if item in self.observers:
                alive = scores.past[row, :, -1] > -math.inf
                self.observers[item](scores.tokens[row * beam : (row + 1) * beam, 1:][alive], scores.past[row][alive])

    def reorder(self, candidates: Candidates, chosen: Tensor) -> None:
        ended = ((candidates.words == self.end) & (candidates.scores > -math.inf)).any(1)
        for item, over in zip(self.items, ended.tolist()):
            if over:
                self.observers.pop(item, None)  # a hypothesis that has ended may win over what the others agree on

    def prune(self, items: Tensor) -> None:
        self.items = [self.items[i] for i in items.tolist()]
