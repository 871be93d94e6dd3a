"""Given lines of a translation: a search writes them unchanged and continues from them.

The lines before a given one are also chosen by how likely they make it: a hypothesis's score includes it. Only
hypotheses in the beam can be chosen, so this reaches as far back as they differ.

Shapes: N items (documents, or parts of one), B hypotheses per item, S sentences of the longest item, L words of the
longest given line and its end, V words.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fairseq_lasformer.search.processors import Candidates, Scores, StepProcessor

LEAST = -7.0
"""Log probability that a word of a given line counts as, at least: what makes a line that no context explains a little
less unlikely must not decide about the lines before it."""

Given = Sequence[Sequence[int]]
"""Given lines of a document: the tokens of each line, empty for a line that is to be translated."""


def lengths(given: Sequence[Given], n_sentences: int, device: torch.device) -> Tensor:
    """Count the tokens of each given line, int64 [N, S]; 0 for lines that are to be translated."""
    rows = [[len(line) for line in lines] + [0] * (n_sentences - len(lines)) for lines in given]
    return torch.tensor(rows, dtype=torch.int64, device=device)


class GivenLines(StepProcessor):
    """Prescription of the words and ends of given lines.

    ``line`` and ``length`` [N, B] are the number of each hypothesis's current line and its words so far.

    Args:
        given: the given lines of each item.
        separator, end, pad: their indices in the target dictionary.
        tagged: whether the first token is a tag, which belongs to no line.
    """

    def __init__(
        self,
        given: Sequence[Given],
        separator: int,
        end: int,
        pad: int,
        tagged: bool = False,
    ) -> None:
        self.separator, self.pad, self.tagged = separator, pad, tagged
        longest = max(len(line) for lines in given for line in lines) + 1
        table = torch.full((len(given), max(map(len, given)), longest), pad, dtype=torch.int64)
        for i, lines in enumerate(given):
            for j, line in enumerate(lines):
                if line:
                    ending = end if j == len(lines) - 1 else separator
                    table[i, j, : len(line) + 1] = torch.tensor([*line, ending])
        self.table = table

    def begin(self, n_items: int, beam: int, device: torch.device) -> None:
        self.table = self.table.to(device)
        self.line = torch.zeros(n_items, beam, dtype=torch.int64, device=device)
        self.length = torch.full((n_items, beam), -int(self.tagged), device=device)

    def step(self, scores: Scores) -> None:
        n_lines, longest = self.table.shape[1:]
        item = torch.arange(self.line.size(0), device=self.line.device)[:, None]
        place = self.length.clamp(0, longest - 1)
        word = self.table[item, self.line.clamp(max=n_lines - 1), place]
        prescribed = (word != self.pad) & (self.length >= 0) & (self.length < longest)
        lprobs, word, prescribed = scores.lprobs, word[..., None], prescribed[..., None]
        before = lprobs.gather(2, word)
        # the limits of the line and of the shortlist do not apply here
        score = torch.where(prescribed, before.clamp_min(LEAST), before)
        lprobs.masked_fill_(prescribed, -math.inf).scatter_(2, word, score)

    def reorder(self, candidates: Candidates, chosen: Tensor) -> None:
        parents, ended = candidates.parents.gather(1, chosen), candidates.words.gather(1, chosen) == self.separator
        self.line = self.line.gather(1, parents) + ended.long()
        self.length = (self.length.gather(1, parents) + 1).masked_fill_(ended, 0)

    def prune(self, items: Tensor) -> None:
        self.table, self.line, self.length = self.table[items], self.line[items], self.length[items]
