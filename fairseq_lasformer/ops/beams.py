"""Steps of a beam search: log probabilities, the best candidates, the hypotheses that go on, and their lines.

Each function is its definition, where Triton's kernels do not take the step. Shapes: N items, B hypotheses per item, V
words, k candidates per item, S sentences of the longest item.
"""

import math
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.ops.backends import backend_for, current, required_kernels

LAST_RESORT = -1e4
"""Score of candidates that a constraint excludes, where nothing else is left. A much lower one would swamp the scores
of the other words in sums of float32."""


def _kernels(x: Tensor, backend: str) -> ModuleType | None:
    """Return Triton's kernels if they take a step on tensors like x."""
    if not x.is_cuda and backend != "triton":
        return None
    return required_kernels("search") if backend_for(x.device, backend) == "triton" else None


@torch.no_grad()
def log_probabilities(scores: Tensor, backend: str = "auto") -> Tensor:
    """Return the log probabilities of scores of all words, [..., V], in float32.

    Args:
        backend: one of :data:`BACKENDS`.
    """
    if scores.dtype == torch.float64 or (kernels := _kernels(scores, backend)) is None:
        return scores.log_softmax(-1, torch.float32)
    with current(scores):
        rows: Tensor = kernels.log_probabilities(scores.reshape(-1, scores.size(-1)).contiguous())
    return rows.view(scores.shape)


@torch.no_grad()
def top_candidates(lprobs: Tensor, past: Tensor | None, k: int, backend: str = "auto") -> tuple[Tensor, Tensor, Tensor]:
    """Find the best continuations of an item's hypotheses; among equal ones, those of lower hypotheses and words.

    Args:
        lprobs: float32 [N, B, V], log probabilities of all words.
        past: [N, B], cumulative scores, to which they are added; None for none.
        k: number of candidates, at most B * V.
        backend: one of :data:`BACKENDS`.

    Returns:
        their scores, words and hypotheses, [N, k], the best ones first.
    """
    if (kernels := _kernels(lprobs, backend)) is not None and kernels.fits(lprobs, k):
        with current(lprobs):
            candidates: tuple[Tensor, Tensor, Tensor] = kernels.top_candidates(lprobs, past, k)
        return candidates
    if backend_for(lprobs.device, backend) == "cpu":
        scores, places = torch.ops.fairseq_lasformer.top_candidates(lprobs, past, k)
    else:
        sums = lprobs if past is None else lprobs + past[..., None]
        known = sums.nan_to_num(-math.inf, math.inf, -math.inf).flatten(1)
        scores, places = (t[:, :k] for t in torch.sort(known, dim=1, descending=True, stable=True))
    return scores, places % lprobs.size(2), places // lprobs.size(2)


class GoingOn(NamedTuple):
    """The hypotheses that go on after a step, and those that have ended."""

    # words, scores: [N, B], the newest words and the cumulative scores
    words: Tensor
    scores: Tensor
    unused: Tensor  # bool [N, B], places where no hypothesis continues
    n_ended: Tensor  # int64 [N, 1], hypotheses that have ended so far
    parents: Tensor  # int64 [N, B], the hypotheses that they continue
    ended: Tensor  # int64 [N, B], the hypotheses that have ended; -1: none
    chosen: Tensor  # int64 [N, B], the candidates that they are
    rows: Tensor  # int64 [N, B], `parents` among the hypotheses of all items


@torch.no_grad()
def advance(
    candidates: tuple[Tensor, Tensor, Tensor],
    unused: Tensor,
    n_ended: Tensor,
    end: int,
    ends_exhausted: bool = False,
    backend: str = "auto",
) -> GoingOn:
    """Continue the best candidates, and end the complete ones among the first B, as fairseq does.

    Args:
        candidates: scores, words and the hypotheses that they continue, [N, k], the best ones first.
        unused, n_ended: see :class:`GoingOn`; of the step before.
        end: index of the end of sentence.
        ends_exhausted: whether an item without any candidate that goes on is finished as soon as a hypothesis ends.
        backend: one of :data:`BACKENDS`.
    """
    scores, words, parents = candidates
    if (kernels := _kernels(scores, backend)) is not None and scores.size(1) <= kernels.MOST_KEPT:
        with current(scores):
            given = [t.contiguous() for t in candidates]
            return GoingOn(*kernels.advance(*given, unused, n_ended, end, ends_exhausted))
    (n_items, beam), k = unused.shape, words.size(1)
    if scores.dtype == torch.float32 and not scores.is_cuda and backend_for(scores.device, backend) == "cpu":
        return GoingOn(*torch.ops.fairseq_lasformer.advance(*candidates, unused, n_ended, end, ends_exhausted))
    ended = (words == end) & (scores != -math.inf)
    counted = ended[:, :beam] & ~unused
    rank = n_ended + counted.cumsum(1)
    n_ended = rank[:, -1:]
    if ends_exhausted:
        exhausted = ((scores == -math.inf) | (words == end)).all(1, keepdim=True)
        n_ended = n_ended.masked_fill(exhausted & counted.any(1, keepdim=True), beam)
    ended[:, :beam] |= unused
    # in the order of the candidates, but those that have ended come last
    order, chosen = (torch.arange(k, device=words.device) + ended * k).topk(beam, dim=1, largest=False)
    ending = parents[:, :beam].masked_fill(~counted | (rank > beam), -1)
    parents = parents.gather(1, chosen)
    rows = parents + torch.arange(0, n_items * beam, beam, device=words.device)[:, None]
    words, scores = words.gather(1, chosen), scores.gather(1, chosen)
    return GoingOn(words, scores, order >= k, n_ended, parents, ending, chosen, rows)


class LineEnds(NamedTuple):
    """State of the lines of a search, which decides when one may end, or must."""

    left: Tensor  # int64 [N, B], sentences after the current one of each hypothesis
    length: Tensor  # int64 [N, B], tokens of the current one
    sentences: Tensor  # int64 [N], sentences per item
    longest: Tensor  # int64 [N, S], maximum number of tokens of each sentence
    # separator, end: their indices
    separator: int
    end: int


@torch.no_grad()
def restrict_lines(
    lprobs: Tensor, lines: LineEnds, steps: int, free: Tensor | None = None, backend: str = "auto"
) -> None:
    """Exclude ends of lines and texts where a line cannot end, and all other words where it must, in place.

    The end of sentence is impossible before the last sentence, the separator in it. A sentence has at least one word.
    It ends when it reaches its limit, or when the remaining steps are just enough for the remaining sentences.

    Args:
        lprobs: float32 [N, B, V], log probabilities of all words.
        steps: steps after this one; 0: every hypothesis ends.
        free: bool [N, 1], items whose word in this step is not given; None for all.
        backend: one of :data:`BACKENDS`.
    """
    if (kernels := _kernels(lprobs, backend)) is not None and lprobs.is_contiguous():
        with current(lprobs):
            kernels.restrict_lines(lprobs, lines, steps, free, LAST_RESORT)
        return
    left, length, sentences, longest = lines[:4]
    last, begun = left <= 0, length > 0
    no_end, no_separator = ~(last & begun), last | ~begun
    sentence = (sentences[:, None] - 1 - left).clamp(max=longest.size(1) - 1)
    # each further sentence takes at least two steps, a word and its end
    must = ((length >= longest.gather(1, sentence)) | (2 * left >= steps)) & begun
    if free is not None:
        no_end, no_separator, must = no_end & free, no_separator & free, must & free
    end, separator = lprobs[..., lines.end], lprobs[..., lines.separator]
    if steps > 0:
        end.masked_fill_(no_end, -math.inf)
        separator.masked_fill_(no_separator, -math.inf)
    if lprobs.is_cuda or bool(must.any()):
        end_here, separator_here = must & last, must & ~last
        kept = end.clamp_min(LAST_RESORT), separator.clamp_min(LAST_RESORT)
        lprobs.masked_fill_(must[..., None], -math.inf)
        end.copy_(torch.where(end_here, kept[0], end))
        separator.copy_(torch.where(separator_here, kept[1], separator))


@torch.no_grad()
def count_lines(
    lines: LineEnds, words: Tensor, parents: Tensor, chosen: Tensor, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Return ``left`` and ``length`` of the hypotheses that go on.

    Args:
        words, parents: int64 [N, k], of the candidates.
        chosen: int64 [N, B], the candidates that go on.
        backend: one of :data:`BACKENDS`.
    """
    left, length = lines.left, lines.length
    if (kernels := _kernels(words, backend)) is not None:
        with current(words):
            given = [t.contiguous() for t in (left, length, words, parents, chosen)]
            counted: tuple[Tensor, Tensor] = kernels.count_lines(*given, lines.separator)
        return counted
    parents, ended = parents.gather(1, chosen), words.gather(1, chosen) == lines.separator
    return left.gather(1, parents) - ended.long(), (length.gather(1, parents) + 1).masked_fill_(ended, 0)
