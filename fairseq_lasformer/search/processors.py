"""Processors that steer a search from step to step, in a list around any of fairseq's search strategies.

A processor changes the scores of the next words before the strategy chooses, and keeps its state per hypothesis, which
is reordered with the beam. Lines, terms, repetitions and given beginnings are processors.

Shapes: N items (documents, or parts of one), B hypotheses per item, k candidates, V words, P given words.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from fairseq import search
from torch import Tensor, nn

if TYPE_CHECKING:
    from fairseq.data import Dictionary


class Scores(NamedTuple):
    """Input of a processor before a step."""

    step: int  # number of words so far
    lprobs: Tensor  # [N, B, V], scores of the next words; changed in place
    # int64 [N * B, steps so far + 1], the words so far after a start symbol; None if no processor reads them
    tokens: Tensor | None


class Candidates(NamedTuple):
    """The strategy's choice: scores [N, k], words and the hypotheses that they continue, int64 [N, k]."""

    scores: Tensor
    words: Tensor
    parents: Tensor


class StepProcessor:
    """One rule of a search, created for each batch."""

    reads_tokens = False
    """Whether it reads the words so far."""

    def begin(self, n_items: int, beam: int, device: torch.device) -> None:
        """Start with N items of B hypotheses each."""

    def step(self, scores: Scores) -> None:
        """Change the scores of the next words in place."""

    def reorder(self, candidates: Candidates, chosen: Tensor) -> None:
        """Continue with some of the candidates, int64 [N, B]."""

    def prune(self, items: Tensor) -> None:
        """Continue with some of the items, given by their rows."""


M = TypeVar("M", bound=nn.Module)


def apart(module: M, **parts: nn.Module) -> M:
    """Return a module that shares all but the given parts with another, and whose attributes can be set separately."""
    copied = copy.copy(module)
    copied.__dict__["_modules"] = {**module._modules, **parts}
    return copied


class ProcessedSearch(search.Search):
    """A search strategy and the processors that steer it."""

    def __init__(self, dictionary: Dictionary, inner: search.Search) -> None:
        super().__init__(dictionary)
        self.inner = inner
        self.supports_constraints, self.stop_on_max_len = inner.supports_constraints, inner.stop_on_max_len
        self.processors: Sequence[StepProcessor] = ()

    def apart(self) -> ProcessedSearch:
        """Return the same strategy without processors, for one search."""
        return apart(self, inner=apart(self.inner))

    def begin(self, processors: Sequence[StepProcessor], n_items: int, beam: int, device: torch.device) -> None:
        """Start a batch.

        Args:
            processors: in the order in which they change scores.
            n_items, beam: N and B.
        """
        self.processors = processors
        self.items = torch.arange(n_items, device=device)
        for processor in processors:
            processor.begin(n_items, beam, device)

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor | None,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
    ) -> Candidates:
        """See fairseq's ``Search.step``."""
        seen = Scores(step, lprobs, prev_output_tokens)
        for processor in self.processors:
            processor.step(seen)
        if self.processors:
            original_batch_idxs = self.items  # fairseq's index the data, past the rows of diverse beam search
            if isinstance(self.inner, search.Sampling):  # it needs a distribution, here over the allowed words
                lprobs = lprobs.log_softmax(-1)
        chosen: Any = self.inner.step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)
        self.candidates = Candidates(*chosen)
        return self.candidates

    @property
    def exhausted(self) -> Tensor:
        """Items without a hypothesis that can be continued after the newest step, bool [N]."""
        best, words, _ = self.candidates
        return ((best == -math.inf) | (words == self.eos)).all(1)

    def init_constraints(self, batch_constraints: Tensor | None, beam_size: int) -> None:
        self.inner.init_constraints(batch_constraints, beam_size)

    def prune_sentences(self, batch_idxs: Tensor) -> None:
        self.items = self.items[batch_idxs]
        self.candidates = Candidates(*(t[batch_idxs] for t in self.candidates))
        for processor in self.processors:
            processor.prune(batch_idxs)
        self.inner.prune_sentences(batch_idxs)

    def update_constraints(self, active_hypos: Tensor) -> None:
        for processor in self.processors:
            processor.reorder(self.candidates, active_hypos)
        self.inner.update_constraints(active_hypos)


class Exclusions(StepProcessor):
    """Words that no hypothesis may continue with, as in fairseq's loop.

    Args:
        pad, unk, end: indices of the special symbols.
        unk_penalty: subtracted from the score of ``unk``.
        shortest, longest: steps before which a translation cannot end, and at which it must.
        suppressed: int64, words that never come; None for none.
        given: number of steps with given words, to which ``shortest`` and ``suppressed`` do not apply.
    """

    def __init__(
        self,
        pad: int,
        unk: int,
        end: int,
        unk_penalty: float,
        shortest: int,
        longest: int,
        suppressed: Tensor | None,
        given: int,
    ) -> None:
        self.pad, self.unk, self.end, self.unk_penalty = pad, unk, end, unk_penalty
        self.shortest, self.longest, self.suppressed, self.given = shortest, longest, suppressed, given

    def step(self, scores: Scores) -> None:
        step, lprobs = scores.step, scores.lprobs
        lprobs.nan_to_num_(-math.inf, math.inf, -math.inf)
        lprobs[..., self.pad].fill_(-math.inf)
        if self.unk_penalty:
            lprobs[..., self.unk] -= self.unk_penalty
        if step >= self.longest:
            lprobs[..., : self.end].fill_(-math.inf)
            lprobs[..., self.end + 1 :].fill_(-math.inf)
        if step < self.given:
            return
        if step < self.shortest:
            lprobs[..., self.end].fill_(-math.inf)
        if self.suppressed is not None:
            lprobs.index_fill_(-1, self.suppressed, -math.inf)


class OwnLimits(StepProcessor):
    """Maximum lengths of single items, independent of the rest of the batch. They also end given beginnings.

    Args:
        longest: int64 [N], the step at which each item's translations end.
        end: index of the end of sentence.
    """

    def __init__(self, longest: Tensor, end: int) -> None:
        self.longest, self.end = longest, end

    def cut(self, prefix: Tensor, pad: int) -> Tensor:
        """Return given beginnings, int64 [N, P], padded from each item's limit on."""
        return prefix.masked_fill(torch.arange(prefix.size(1), device=prefix.device) >= self.longest[:, None], pad)

    def step(self, scores: Scores) -> None:
        over = self.longest <= scores.step
        if bool(over.any()):
            ending = scores.lprobs[over, :, self.end]
            scores.lprobs[over] = -math.inf
            scores.lprobs[over, :, self.end] = ending

    def prune(self, items: Tensor) -> None:
        self.longest = self.longest[items]


class FreeTag(StepProcessor):
    """Prescribed first word that costs nothing, so it does not affect a normalised score."""

    def step(self, scores: Scores) -> None:
        if scores.step == 0:
            scores.lprobs.masked_fill_(scores.lprobs > -math.inf, 0.0)


class GivenWords(StepProcessor):
    """The words that translations begin with.

    Args:
        prefix: int64 [N, P], padded; where there is padding, any word may come.
        pad: index of padding.
        longest: step at which every translation ends.
    """

    def __init__(self, prefix: Tensor, pad: int, longest: int) -> None:
        self.prefix, self.pad = prefix[:, :longest], pad

    def step(self, scores: Scores) -> None:
        if scores.step >= self.prefix.size(1):
            return
        lprobs, word = scores.lprobs, self.prefix[:, scores.step, None, None]
        word = word.expand(-1, lprobs.size(1), -1)
        score = lprobs.gather(2, word)  # of padding, where no word is given: it stays excluded
        lprobs.masked_fill_(word != self.pad, -math.inf).scatter_(2, word, score)

    def prune(self, items: Tensor) -> None:
        self.prefix = self.prefix[items]


class Interrupt(StepProcessor):
    """A function that is called before every step; an exception of it ends the search."""

    def __init__(self, check: Callable[[], object]) -> None:
        self.check = check

    def step(self, scores: Scores) -> None:
        self.check()
