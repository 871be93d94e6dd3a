"""Excerpts of the documents of a batch, in which single lines are searched again."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.base.records import Hypothesis, Sample
from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.search.alignment import SentenceLimits
from fairseq_lasformer.search.batching import batches
from fairseq_lasformer.search.repair import split

CONTEXT = 10
"""Number of lines of context with which lines are searched again."""

CONTEXTS = (CONTEXT, 0)
"""The same at the first attempt, and at the second."""

TOKENS = 4096
"""Source tokens of excerpts that are searched together, with padding; as many as the batch had, if that is more."""


class FlawedLine(NamedTuple):
    """A line that is searched again."""

    item: int  # its document in the batch
    start: int  # first line of its excerpt, which ends with the line itself
    line: int  # its number in the document


def excerpt(source: Sequence[int], place: FlawedLine, separator: int, tag: int | None) -> list[int]:
    """Return the source tokens of an excerpt.

    Args:
        source: those of its document, without padding, with end of sentence.
        tag: token that every source begins with; None for none.
    """
    head = list(source[:1]) if source[0] == tag else []
    lines = split(source[len(head) : -1], separator)[place.start : place.line + 1]
    joined = [token for line in lines for token in (separator, *line)][1:]
    return [*head, *joined, source[-1]]


def together(
    places: Sequence[FlawedLine], sources: Sequence[Sequence[int]], least: int, separator: int, tag: int | None
) -> Iterator[tuple[list[FlawedLine], list[list[int]]]]:
    """Yield places that are searched together, with the tokens of their excerpts, of similar length.

    Args:
        sources: tokens of the documents, see :func:`excerpt`.
        least: number of tokens, with padding, that a batch may have even if that is more than :data:`TOKENS`.
    """
    tokens = [excerpt(sources[place.item], place, separator, tag) for place in places]
    lengths = list(map(len, tokens))
    order = sorted(range(len(places)), key=lambda i: lengths[i])
    for batch in batches(lengths, order, max(least, TOKENS)):
        yield [places[i] for i in batch], [tokens[i] for i in batch]


def sample_of(places: Sequence[FlawedLine], tokens: Sequence[list[int]], sample: Sample, pad: int) -> Any:
    """Return a batch of excerpts, with the required terms of their last lines.

    Args:
        sample: the batch of the documents.
    """
    whole = sample["net_input"]["src_tokens"]
    width = max(map(len, tokens))
    rows = torch.tensor([[*[pad] * (width - len(row)), *row] for row in tokens], device=whole.device)
    lengths = torch.tensor(list(map(len, tokens)), device=whole.device)
    one = {"id": torch.arange(len(tokens)), "net_input": {"src_tokens": rows, "src_lengths": lengths}}
    if "terms" in sample:
        numbers = sample["id"].tolist()
        terms = (sample["terms"][numbers[place.item]][place.line] for place in places)
        one["terms"] = {i: [*[[]] * (p.line - p.start), its] for i, (p, its) in enumerate(zip(places, terms))}
    return one


def limits_of(places: Sequence[FlawedLine], limits: SentenceLimits) -> SentenceLimits:
    """Return the limits of the lines of excerpts."""
    rows = [limits.longest[place.item, place.start : place.line + 1] for place in places]
    sizes = limits.sentences.new_tensor([place.line - place.start + 1 for place in places])
    return SentenceLimits(sizes, torch.nn.utils.rnn.pad_sequence(rows, batch_first=True))


def replace_line(
    hypothesis: Hypothesis,
    line: int,
    new: Hypothesis,
    separator: int,
    tag: int | None,
    penalty: float | None,
) -> None:
    """Put the last line of a new hypothesis in the place of a line, with its scores.

    Args:
        separator: its index in the target dictionary.
        tag: token that translations begin with; None for none.
        penalty: exponent of the length by which a hypothesis's score is divided; None for no division.
    """
    first, last = _span(hypothesis["tokens"], line, separator, tag)
    begin, end = _span(new["tokens"], -1, separator, tag)
    tokens, scores = hypothesis["tokens"], hypothesis["positional_scores"]
    its, new_scores = new["tokens"].to(tokens.device), new["positional_scores"].to(scores)
    hypothesis["tokens"] = torch.cat([tokens[:first], its[begin:end], tokens[last:]])
    # the end of the line, too, is scored after the new line
    hypothesis["positional_scores"] = torch.cat([scores[:first], new_scores[begin : end + 1], scores[last + 1 :]])
    total = hypothesis["positional_scores"].sum()
    hypothesis["score"] = total if penalty is None else total / len(hypothesis["tokens"]) ** penalty
    attention = hypothesis.get("attention")
    if attention is not None and attention.dim() == 2:  # that of the line to the whole source is not known
        unknown = attention.new_zeros(attention.size(0), end - begin)
        hypothesis["attention"] = torch.cat([attention[:, :first], unknown, attention[:, last:]], 1)


def _span(tokens: Tensor, line: int, separator: int, tag: int | None) -> tuple[int, int]:
    """Return where a line's tokens begin and end, in a hypothesis that ends with the end of sentence."""
    begin, end = line_spans(tokens.tolist()[:-1], separator)[line]
    return begin + (int(tokens[begin]) == tag), end
