"""Search for the lines of documents side by side: a line is an item of the search, and reads its document.

For models whose decoders read the newest line alone (``--source-context-only``): a line's translation depends on the
source, not on the translations of other lines. A line begins after the separator, the first one after the start symbol,
and ends with the separator, the last one with the end of sentence, as in a document.

Shapes: D documents, or windows of them, N lines, B hypotheses per line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.base.records import Hypothesis
from fairseq_lasformer.nn.lines import LineRanges
from fairseq_lasformer.search.batching import batches
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.glossary import GlossarySearch, RequiredTerms
from fairseq_lasformer.search.processors import Interrupt, OwnLimits, Scores, StepProcessor, apart
from fairseq_lasformer.search.repair import NoRepetition
from fairseq_lasformer.search.shortlisted import Encoded, JointList

TOKENS = 8192
"""Tokens of sources that are encoded together, with padding."""

SCORES = 1 << 23
"""Maximum number of word scores in a step, 32 MB: more do not fit into a processor's cache."""

FEWEST = 16
"""Minimum number of lines that are searched together, even if they exceed that number of scores."""


class LineOf(NamedTuple):
    """A line to search."""

    document: int  # index of the source that it reads
    # first, n_tokens: its own tokens there, with the separator or end of sentence that ends it
    first: int
    n_tokens: int
    longest: int  # maximum number of tokens of its translation
    # begins, ends: whether it is the first, and the last line of its source
    begins: bool
    ends: bool
    terms: Sequence[Sequence[int]] = ()  # tokens of the terms that its translation must contain
    given: Sequence[int] | None = None  # tokens of its translation, which then only gets its scores; None for a search


class EndOfLine(StepProcessor):
    """The token that ends a line, in the place of the end of sentence: the separator, except for last lines.

    Args:
        last: bool [N], the lines that end a document.
        separator, end: indices in the target dictionary.
    """

    def __init__(self, last: Tensor, separator: int, end: int) -> None:
        self.last, self.separator, self.end = last, separator, end

    def step(self, scores: Scores) -> None:
        lprobs = scores.lprobs
        ends = torch.where(self.last[:, None], lprobs[..., self.end], lprobs[..., self.separator])
        lprobs[..., self.end] = ends
        lprobs[..., self.separator] = float("-inf")

    def prune(self, items: Tensor) -> None:
        self.last = self.last[items]


class LineSearch:
    """Search for lines of some documents, which are encoded once.

    Args:
        generator: its options and models.
        separator: index of the separator in the target dictionary.
        sources: int64 tokens of each document, with separators and end of sentence, on the models' device.
        check: see :class:`processors.Interrupt`; None for nothing.
    """

    def __init__(
        self,
        generator: BeamGenerator,
        separator: int,
        sources: Sequence[Tensor],
        check: Callable[[], object] | None = None,
    ) -> None:
        self.generator, self.separator, self.sources, self.check = generator, separator, sources, check
        lengths = [len(source) for source in sources]
        order = sorted(range(len(sources)), key=lambda i: lengths[i])
        groups = batches(lengths, order, TOKENS)
        encoded = [self._encoded([sources[i] for i in group]) for group in groups]
        models = generator.model.models
        self.outputs = [model.encoder.joined(outs) for model, outs in zip(models, zip(*encoded))]
        first, self.offsets = 0, [0] * len(sources)
        for i in (i for group in groups for i in group):
            self.offsets[i], first = first, first + lengths[i]

    @torch.no_grad()
    def _encoded(self, sources: Sequence[Tensor]) -> Any:
        tokens = torch.nn.utils.rnn.pad_sequence(list(sources), batch_first=True, padding_value=self.generator.pad)
        lengths = torch.tensor([len(source) for source in sources], device=tokens.device)
        return self.generator.model.forward_encoder({"src_tokens": tokens, "src_lengths": lengths})

    def search(self, lines: Sequence[LineOf], block: bool = False) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Search lines of similar length together; yield the index of each and its hypotheses, best first.

        Args:
            block: exclude repetitions.
        """
        words = len(self.generator.tgt_dict)
        most = max(FEWEST, SCORES // (self.generator.beam_size * words))
        order = sorted(range(len(lines)), key=lambda i: (lines[i].n_tokens, lines[i].longest))
        for its in ([i for i in order if lines[i].given is None], [i for i in order if lines[i].given is not None]):
            for first in range(0, len(its), most):
                chosen = its[first : first + most]
                yield from zip(chosen, self._together([lines[i] for i in chosen], block))

    @torch.no_grad()
    def _together(self, lines: Sequence[LineOf], block: bool) -> list[list[Hypothesis]]:
        generator = apart(self.generator, search=self.generator.search.apart())
        device, eos = self.sources[0].device, generator.eos
        documents = [line.document for line in lines]
        joint, separator = None, self.separator
        if generator.shortlist is not None and not block:
            needed = [[*line.terms, line.given or (), [separator]] for line in lines]
            joint = self._joint(generator, documents, needed)
            separator = joint.number(separator)

        def column(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, device=device)

        offsets = [self.offsets[i] for i in documents]
        starts = column([offset + line.first for offset, line in zip(offsets, lines)])
        ranges = LineRanges(
            column(offsets),
            column([len(self.sources[i]) for i in documents]),
            starts,
            column([line.n_tokens for line in lines]),
            self.outputs[0]["lines"][0][0, starts],
        )
        encoded: Any = [out | {"ranges": ranges} for out in self.outputs]
        encoded = encoded if joint is None else Encoded(encoded, torch.arange(len(lines), device=device))
        longest = column([line.longest if line.given is None else len(line.given) for line in lines])
        processors: list[StepProcessor] = [OwnLimits(longest, eos)]
        if self.check is not None:
            processors.append(Interrupt(self.check))
        if block:
            processors.insert(0, NoRepetition())
        if any(line.terms for line in lines):
            terms = [list(line.terms) for line in lines]
            required = RequiredTerms(terms if joint is None else list(map(joint.numbered, terms)), eos)
            generator.search.inner = GlossarySearch(generator.tgt_dict, required)
            processors.append(required)
        prefix = None
        if any(line.given for line in lines):
            rows = [column(line.given or ()) for line in lines]
            prefix = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=generator.pad)
            prefix = prefix if joint is None else joint.numbers(prefix)
        start = torch.where(column([line.begins for line in lines]), eos, separator)
        ending = EndOfLine(column([line.ends for line in lines]), separator, eos)
        with nullcontext() if joint is None else generator.listed(joint):
            hypotheses = generator.continued(encoded, start, int(longest.max()), prefix, processors, [ending])
        return hypotheses if joint is None else joint.widened(hypotheses)

    def _joint(self, generator: BeamGenerator, documents: Sequence[int], needed: Any) -> JointList:
        """Return the words of a shortlist for each line: those of the document that it reads."""
        assert generator.shortlist is not None
        rows = [self.sources[i] for i in documents]
        source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=generator.pad)
        return JointList.of(generator.shortlist, source, None, needed, generator.beam_size)
