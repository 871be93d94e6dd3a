"""Log probabilities of given translations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_lasformer.search.batching import batches

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models import BaseFairseqModel

Output = Callable[[Tensor], Tensor]
"""Projection of features [..., d] to scores of all words."""


Lines = Sequence[Sequence[int]] | None
"""Numbers of the lines of each example in its document, if some are left out; None for all."""


def _encoded(
    model: BaseFairseqModel, rows: Sequence[Tensor], pad: int, device: torch.device | str, lines: Lines = None
) -> Any:
    """Return the encoder's output for some sources."""
    sources = _padded(rows, pad, device)
    options: dict[str, Any] = {}
    if lines is not None and getattr(model.encoder, "tells_lines", False):
        options["line_numbers"] = _padded([torch.tensor(numbers) for numbers in lines], 0, device)
    return model.encoder(sources, (sources != pad).sum(1), **options)


def _features(decoder: Any, previous: Tensor, encoded: Any) -> tuple[Tensor, Output]:
    """Return the decoder's features [B, N, d] and their projection.

    They are computed as in decoding steps if possible: each example's depend on it alone.
    """
    features = decoder.read(previous, encoded) if hasattr(decoder, "read") else None
    if features is not None:
        return features, functools.partial(decoder.output_layer, packed=True)
    return decoder.extract_features(previous, encoded)[0], decoder.output_layer


def _padded(rows: Sequence[Tensor], pad: int, device: torch.device | str) -> Tensor:
    """Return rows as one matrix, padded on the right."""
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=pad).to(device)


def total(scores: Tensor) -> float:
    """Sum scores, with the same result on every processor."""
    return math.fsum(scores.tolist())


def mean(scores: Tensor) -> float:
    """Average scores, with the same result on every processor; 0 for none."""
    return total(scores) / max(1, len(scores))


def log_probabilities(
    model: BaseFairseqModel,
    dictionary: Dictionary,
    examples: Sequence[tuple[Tensor, Tensor]],
    max_tokens: int,
    device: torch.device | str,
    done: Callable[[int], object] = lambda n: None,
) -> list[Tensor]:
    """Return the log probabilities of all tokens of each target, end of sentence included: a float32 tensor each.

    Args:
        model: a model in evaluation mode.
        examples: int64 tokens of source and target, each with its end of sentence.
        max_tokens: maximum number of tokens per batch, padding included.
        done: called with the number of examples of each finished batch.
    """
    return [tokens for (tokens,) in _scored(model, dictionary, examples, max_tokens, device, lambda *_: (), done)]


def against_second(
    model: BaseFairseqModel,
    dictionary: Dictionary,
    examples: Sequence[tuple[Tensor, Tensor]],
    max_tokens: int,
    device: torch.device | str,
    done: Callable[[int], object] = lambda n: None,
    lines: Lines = None,
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return the log probabilities of all target tokens, those of the most likely other words there, and these words.

    See :func:`log_probabilities`. The padding symbol and the unknown word are not among the others.

    Args:
        lines: see :data:`Lines`.
    """
    excluded = torch.tensor([dictionary.pad(), dictionary.unk()])

    def second(every: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        every.scatter_(2, targets[..., None], float("-inf"))  # nobody else reads them
        every[..., excluded] = float("-inf")
        return tuple(every.max(2))

    scored = _scored(model, dictionary, examples, max_tokens, device, second, done, lines)
    return [(tokens, values, words.long()) for tokens, values, words in scored]


@torch.no_grad()
def _scored(
    model: BaseFairseqModel,
    dictionary: Dictionary,
    examples: Sequence[tuple[Tensor, Tensor]],
    max_tokens: int,
    device: torch.device | str,
    further: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    done: Callable[[int], object] = lambda n: None,
    lines: Lines = None,
) -> list[tuple[Tensor, ...]]:
    """Score targets; see :func:`log_probabilities` and :func:`against_second`.

    Args:
        further: returns what else is wanted, each [B, N], from the log probabilities of all words [B, N, vocabulary]
            and the targets [B, N].
    """
    order = sorted(range(len(examples)), key=lambda i: (len(examples[i][1]), len(examples[i][0])))
    pad, eos = dictionary.pad(), dictionary.eos()
    by_example: dict[int, tuple[Tensor, ...]] = {}

    for batch in batches([max(len(source), len(target)) for source, target in examples], order, max_tokens):
        encoded = _encoded(model, [examples[i][0] for i in batch], pad, device, lines and [lines[i] for i in batch])
        targets = _padded([examples[i][1] for i in batch], pad, device)
        previous = targets.roll(1, 1)
        previous[:, 0] = eos
        previous = previous.masked_fill(targets == pad, pad)
        features, output = _features(model.decoder, previous, encoded)
        every = model.get_normalized_probs((output(features), None), log_probs=True)
        scores = every.gather(2, targets[..., None])[..., 0]
        values = [_at_least_float32(value).cpu() for value in (scores, *further(every, targets))]
        for row, i in enumerate(batch):
            by_example[i] = tuple(value[row, : len(examples[i][1])] for value in values)
        done(len(batch))

    return [by_example[i] for i in range(len(examples))]


def _at_least_float32(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


@torch.no_grad()
def of_spans(
    model: BaseFairseqModel,
    dictionary: Dictionary,
    examples: Sequence[tuple[Tensor, Tensor]],
    spans: Sequence[Sequence[tuple[int, int]]],
    max_tokens: int,
    device: torch.device | str,
    done: Callable[[int], object] = lambda n: None,
    lines: Lines = None,
) -> list[list[float]]:
    """Return the log probabilities of some places of each target: each from a token up to another.

    Only these places are projected to the vocabulary, and nothing is computed after the last.

    Args:
        examples, max_tokens, done: see :func:`log_probabilities`.
        spans: the places in each target; at least one.
        lines: see :data:`Lines`.
    """
    pad, eos = dictionary.pad(), dictionary.eos()
    targets = [target[: max(end for _, end in places)] for (_, target), places in zip(examples, spans)]
    previous = [torch.cat([target.new_tensor([eos]), target[:-1]]) for target in targets]
    by_example: dict[int, list[float]] = {}
    order = sorted(range(len(examples)), key=lambda i: (len(examples[i][0]), len(targets[i])))
    for batch in batches([max(len(examples[i][0]), len(targets[i])) for i in range(len(examples))], order, max_tokens):
        encoded = _encoded(model, [examples[i][0] for i in batch], pad, device, lines and [lines[i] for i in batch])
        features, output = _features(model.decoder, _padded([previous[i] for i in batch], pad, device), encoded)
        places = [(row, token) for row, i in enumerate(batch) for a, b in spans[i] for token in range(a, b)]
        rows, tokens = (torch.tensor(numbers, device=device) for numbers in zip(*places))
        every = model.get_normalized_probs((output(features[rows, tokens])[None], None), log_probs=True)[0]
        words = torch.cat([targets[i][a:b] for i in batch for a, b in spans[i]]).to(device)
        scores = iter(_at_least_float32(every.gather(1, words[:, None])[:, 0]).tolist())
        for i in batch:
            by_example[i] = [math.fsum(next(scores) for _ in range(a, b)) for a, b in spans[i]]
        done(len(batch))
    return [by_example[i] for i in range(len(examples))]


@torch.no_grad()
def continued(
    model: BaseFairseqModel,
    dictionary: Dictionary,
    beginnings: Sequence[tuple[Tensor, Tensor]],
    ends: Collection[int],
    most: Sequence[int],
    max_tokens: int,
    device: torch.device | str,
) -> list[Tensor]:
    """Complete targets with the most likely words (no beam).

    Args:
        beginnings: int64 tokens of a source with its end, and of the beginning of its target.
        ends: words before which a target ends.
        most: maximum number of tokens of each target.
        max_tokens: maximum number of tokens per batch, padding included.

    Returns:
        int64 tokens of the whole targets, without their ends.
    """
    targets = [target for _, target in beginnings]
    pad, eos, decoder = dictionary.pad(), torch.tensor([dictionary.eos()]), model.decoder
    options = {"packed": True} if hasattr(decoder, "read") else {}
    lengths = [max(len(source), n) for (source, _), n in zip(beginnings, most)]
    for batch in batches(lengths, sorted(range(len(lengths)), key=lengths.__getitem__), max_tokens):
        encoded = _encoded(model, [beginnings[i][0] for i in batch], pad, device)
        state: dict[str, Any] = {}
        for step in range(max(most[i] for i in batch) + 1):
            previous = torch.stack([torch.cat([eos, targets[i][:step]]) for i in batch]).to(device)
            features = decoder.extract_features(previous, encoded, state)[0]
            grown = [row for row, i in enumerate(batch) if len(targets[i]) == step]  # the others have their next token
            scores = decoder.output_layer(features[grown, -1], **options)
            scores[:, pad] = float("-inf")
            for row, word in zip(grown, scores.argmax(1).tolist()):
                if word not in ends and step < most[batch[row]]:
                    targets[batch[row]] = torch.cat([targets[batch[row]], torch.tensor([word])])
            left = [row for row, i in enumerate(batch) if len(targets[i]) > step]
            if not left:
                break
            if len(left) < len(batch):
                batch, order = [batch[row] for row in left], torch.tensor(left, device=device)
                encoded = model.encoder.reorder_encoder_out(encoded, order)
                decoder.reorder_incremental_state_scripting(state, order)
    return targets
