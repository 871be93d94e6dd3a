"""Histories of beam search steps, and the translations found by tracing them back.

A step records the newest word, the parent and the score of each hypothesis. These few numbers stay on the device until
an item is removed or the search ends; nothing is copied from step to step, however long a translation grows.

Shapes: N items of the batch in a step, M in the first one; B hypotheses per item; H hypotheses that have ended.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_lasformer.base.records import Hypothesis


class Step(NamedTuple):
    """One step of a search."""

    words: Tensor  # int64 [N, B], newest words of the hypotheses that go on
    parents: Tensor  # int64 [N, B], the hypotheses of the previous step that they continue
    ended: Tensor  # int64 [N, B], hypotheses of the previous step that have ended; -1: none
    scores: Tensor  # [N, B], cumulative scores of those that go on
    final: Tensor  # [N, B], cumulative scores of those that have ended


class _OnHost(NamedTuple):
    """A step on the host, with the same fields; the item of each row, [N], and the row of each item, [M]."""

    words: np.ndarray
    parents: np.ndarray
    ended: np.ndarray
    scores: np.ndarray
    final: np.ndarray
    items: np.ndarray
    rows: np.ndarray


class Histories:
    """The steps of a search.

    Args:
        n_items: number of items in the first step (M).
    """

    def __init__(self, n_items: int) -> None:
        self.items = self.rows = np.arange(n_items)
        self.pending: list[Step] = []
        self.steps: list[_OnHost] = []

    def add(self, step: Step) -> None:
        """Record a step."""
        self.pending.append(step)

    def remove(self, keep: list[int]) -> None:
        """Remove all items except those in the given rows of the newest step."""
        self._bring()
        self.items, self.rows = self.items[keep], self.rows.copy()
        self.rows[self.items] = np.arange(len(keep))

    def _bring(self) -> None:
        """Copy the pending steps to the host."""
        if not self.pending:
            return
        shape = len(self.pending), -1, *self.pending[0].words.shape
        numbers = torch.stack([t for step in self.pending for t in step[:3]]).view(shape).cpu().numpy()
        sums = torch.stack([t for step in self.pending for t in step[3:]]).view(shape).float().cpu().numpy()
        for (words, parents, ended), (scores, final) in zip(numbers, sums):
            self.steps.append(_OnHost(words, parents, ended, scores, final, self.items, self.rows))
        self.pending.clear()

    def hypotheses(self, end: int, length_penalty: float | None, device: torch.device) -> list[list[Hypothesis]]:
        """Return the hypotheses that have ended, by item, as fairseq's generator does: best first.

        Args:
            end: index of the end of sentence.
            length_penalty: scores are divided by the number of tokens to this power; None for no division.
        """
        self._bring()
        ends = [(i, *place) for i, step in enumerate(self.steps) for place in np.argwhere(step.ended >= 0).tolist()]
        if not ends:
            return [[] for _ in self.rows]
        ends.reverse()  # now the hypotheses that have a word in a step are always the first ones
        last = np.array([i for i, _, _ in ends])
        items = np.array([self.steps[i].items[row] for i, row, _ in ends])
        at = np.array([self.steps[i].ended[row, place] for i, row, place in ends])
        words = np.full((len(ends), last[0] + 1), end)
        scores = np.zeros(words.shape, np.float32)
        scores[np.arange(len(ends)), last] = [self.steps[i].final[row, place] for i, row, place in ends]
        for i in reversed(range(last[0])):
            n, step = int(np.searchsorted(-last, -i)), self.steps[i]
            of = step.rows[items[:n]], at[:n]
            words[:n, i], scores[:n, i], at[:n] = step.words[of], step.scores[of], step.parents[of]
        lengths = last + 1
        totals = scores[np.arange(len(ends)), last]
        if length_penalty is not None:
            totals = totals / np.array([float(n) ** length_penalty for n in lengths], np.float32)
        tokens, each = torch.from_numpy(words).to(device), torch.from_numpy(np.diff(scores, prepend=np.float32(0)))
        each, on_device = each.to(device), torch.from_numpy(totals).to(device)
        finished: list[list[Hypothesis]] = [[] for _ in self.rows]
        # best first; equally good ones in the order in which they ended, the reverse of theirs here
        for h in np.lexsort((-np.arange(len(ends)), -totals)).tolist():
            hypothesis = {"tokens": tokens[h, : lengths[h]], "score": on_device[h]}
            hypothesis |= {"attention": torch.empty(0), "alignment": torch.empty(0)}
            finished[items[h]].append(hypothesis | {"positional_scores": each[h, : lengths[h]]})
        return finished
