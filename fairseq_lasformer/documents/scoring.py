"""Log probabilities of given translations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.search.batching import batches


def _output(model: Any, sources: Tensor, lengths: Tensor, previous: Tensor) -> Any:
    """Return the model's output, computed as in decoding steps if possible: each example's depends on it alone."""
    if hasattr(model.decoder, "read"):
        output = model.decoder.read(previous, model.encoder(sources, lengths))
        if output is not None:
            return output
    return model(sources, lengths, previous)


def total(scores: Tensor) -> float:
    """Sum scores, with the same result on every processor."""
    return math.fsum(scores.tolist())


def mean(scores: Tensor) -> float:
    """Average scores, with the same result on every processor; 0 for none."""
    return total(scores) / max(1, len(scores))


@torch.no_grad()
def log_probabilities(
    model: Any,
    dictionary: Any,
    examples: Sequence[tuple[Tensor, Tensor]],
    max_tokens: int,
    device: torch.device | str,
    done: Callable[[int], object] = lambda n: None,
) -> list[Tensor]:
    """Return the log probabilities of all tokens of each target, end of sentence included: a float32 tensor each.

    See :func:`against_best`.
    """
    return [tokens for tokens, _ in against_best(model, dictionary, examples, max_tokens, device, done)]


@torch.no_grad()
def against_best(
    model: Any,
    dictionary: Any,
    examples: Sequence[tuple[Tensor, Tensor]],
    max_tokens: int,
    device: torch.device | str,
    done: Callable[[int], object] = lambda n: None,
) -> list[tuple[Tensor, Tensor]]:
    """Return the log probabilities of all target tokens, end of sentence included, and of the most likely words there.

    Args:
        model: a model in evaluation mode.
        examples: int64 tokens of source and target, each with its end of sentence.
        max_tokens: maximum number of tokens per batch, padding included.
        done: called with the number of examples of each finished batch.
    """
    order = sorted(range(len(examples)), key=lambda i: (len(examples[i][1]), len(examples[i][0])))
    pad, eos = dictionary.pad(), dictionary.eos()
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def padded(rows: list[Tensor]) -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad).to(device)

    for batch in batches([max(len(source), len(target)) for source, target in examples], order, max_tokens):
        sources, targets = (padded([examples[i][side] for i in batch]) for side in (0, 1))
        previous = targets.roll(1, 1)
        previous[:, 0] = eos
        previous = previous.masked_fill(targets == pad, pad)
        output = _output(model, sources, (sources != pad).sum(1), previous)
        every = model.get_normalized_probs(output, log_probs=True)
        scores, best = every.gather(2, targets[..., None])[..., 0], every.max(2).values
        for row, i in enumerate(batch):
            n = len(examples[i][1])
            found[i] = scores[row, :n].float().cpu(), best[row, :n].float().cpu()
        done(len(batch))

    return [found[i] for i in range(len(examples))]
