"""Exclusion of repetitions within a line, for a second search after a line went wrong.

Shapes: N items, B hypotheses per item, V words.
"""

import torch
from torch import Tensor

from fairseq_lasformer.ops import LAST_RESORT
from fairseq_lasformer.search.processors import Candidates, Scores, StepProcessor

BLOCKED = 3
"""Length of the token sequences that no line may repeat."""


class NoRepetition(StepProcessor):
    """Exclusion of words that would complete :data:`BLOCKED` tokens for the second time in a line.

    Args:
        separator: index of the separator in the target dictionary.
        longest_line: tokens of the longest line.
    """

    reads_tokens = True

    def __init__(self, separator: int, longest_line: int) -> None:
        self.separator, self.reach = separator, longest_line + 1  # no line reaches further back

    def begin(self, n_items: int, beam: int, device: torch.device) -> None:
        self.length = torch.zeros(n_items, beam, dtype=torch.int64, device=device)

    def step(self, scores: Scores) -> None:
        n, tokens, lprobs = BLOCKED - 1, scores.tokens, scores.lprobs
        assert tokens is not None
        recent = tokens[:, -self.reach :]
        if recent.size(1) <= n:
            return
        windows = recent.unfold(1, n, 1)[:, :-1]
        places = torch.arange(n, recent.size(1), device=tokens.device)
        same = (windows == recent[:, None, -n:]).all(-1)
        same &= recent.size(1) - places + n <= self.length.view(-1, 1)  # begins in the current line
        excluded = torch.zeros_like(lprobs.view(tokens.size(0), -1)).scatter_add_(
            1, recent[:, n:], LAST_RESORT * same.to(lprobs.dtype)
        )
        lprobs += excluded.view_as(lprobs)

    def reorder(self, candidates: Candidates, chosen: Tensor) -> None:
        ended = candidates.words.gather(1, chosen) == self.separator
        self.length = (self.length.gather(1, candidates.parents.gather(1, chosen)) + 1).masked_fill_(ended, 0)

    def prune(self, items: Tensor) -> None:
        self.length = self.length[items]
