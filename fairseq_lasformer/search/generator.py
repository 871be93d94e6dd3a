"""fairseq's generator with :class:`LineAlignment`, which retranslates lines that went wrong."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Hypothesis, Sample
from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.search.alignment import LineAlignment, SentenceLimits
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.beam_search import FastBeamSearch
from fairseq_lasformer.search.excerpts import CONTEXTS, FlawedLine, limits_of, replace_line, sample_of, together
from fairseq_lasformer.search.given import Given, GivenLines, lengths
from fairseq_lasformer.search.glossary import GlossarySearch, RequiredTerms, Terms
from fairseq_lasformer.search.processors import Observe, StepProcessor, Watch, apart
from fairseq_lasformer.search.repair import NoRepetition, flawed, gone_wrong, split
from fairseq_lasformer.search.shortlisted import JointList

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models import BaseFairseqModel

logger = logging.getLogger(__name__)


class Alignment(NamedTuple):
    """Settings of the alignment of sentences."""

    separators: tuple[int, int]  # index of the separator in the source and in the target dictionary
    # a, b: a sentence of n tokens is translated by at most `a * n + b` tokens
    a: float
    b: float
    repairs: int  # maximum number of times that a line is searched again
    source_tag: int | None = None  # token that every source begins with; None for none


class AlignedGenerator(BeamGenerator):
    """Generator of translations with as many lines as their sources.

    A batch may have three entries besides fairseq's, by item number: ``terms``, required terms (see :mod:`glossary`),
    ``given``, given lines (see :mod:`given`), and ``observe``, observers (see :mod:`watch`).

    Each hypothesis has two entries besides fairseq's: ``flawed``, the indices of lines that reached their limit or
    repeat themselves, and ``repaired``, of those that did so before they were searched again.

    Args:
        models, dictionary: see fairseq's ``SequenceGenerator``.
        own_length: whether ``max_len_a`` and ``max_len_b`` were chosen by the user; otherwise, the longest translation
            follows from the limits of its sentences.
        options: further arguments of ``SequenceGenerator``.
    """

    ends_exhausted = True

    def __init__(
        self,
        models: Sequence[BaseFairseqModel],
        dictionary: Dictionary,
        *,
        alignment: Alignment,
        own_length: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(models, dictionary, **options)
        self.alignment, self.own_length, self.strategy = alignment, own_length, self.search.inner

    def _found(
        self, sample: Sample, prefix_tokens: Tensor | None, constraints: Tensor | None, bos_token: int | None
    ) -> list[list[Hypothesis]]:
        if constraints is not None:
            raise InputError("constraints: not possible with aligned lines; use a glossary, or --align-sentences no")
        source = sample["net_input"]["src_tokens"]
        limits, given = self.limits(source), _of_items(sample, "given")
        if given:
            limits = limits.with_given(lengths(given, limits.longest.size(1), source.device))
        translations = self._search(sample, limits, prefix_tokens, bos_token, observe=sample.get("observe"))
        lines = [split(self._words(row), self.alignment.separators[0]) for row in source]
        longest = [row[:n] for row, n in zip(limits.longest.tolist(), limits.sentences.tolist())]
        fixed = [{j for j, line in enumerate(its) if line} for its in given] if given else [set() for _ in translations]
        if prefix_tokens is not None:
            for its, n in zip(fixed, (prefix_tokens == self.alignment.separators[1]).sum(1).tolist()):
                its |= set(range(n))
        for i, hypotheses in enumerate(translations):
            self._mark(hypotheses, lines[i], longest[i], fixed[i])
        if self.alignment.repairs and not self.own_length:  # the user's maximum length is one for whole documents
            self._repair(translations, sample, limits, lines, longest, fixed, bos_token)
        for i, hypotheses in enumerate(translations):
            if hypotheses and hypotheses[0]["flawed"]:
                number = int(sample["id"][i]) if "id" in sample else i
                places = ", ".join(str(line + 1) for line in hypotheses[0]["flawed"])
                logger.info("example %d: lines that repeat themselves or reached their limit: %s", number, places)
        return translations

    def limits(self, source: Tensor) -> SentenceLimits:
        """Return the maximum length of each sentence's translation, for a batch of sources [N, K]."""
        a, b = self.alignment.a, self.alignment.b
        return SentenceLimits.of(source, self.alignment.separators[0], (self.pad, self.eos), a, b)

    def _search(
        self,
        sample: Sample,
        limits: SentenceLimits,
        prefix: Tensor | None,
        bos_token: int | None,
        block: bool = False,
        observe: Mapping[int, Observe] | None = None,
    ) -> list[list[Hypothesis]]:
        """Search among the words of the shortlist, if there is one, and with ``block`` among all words."""
        terms, given = _of_items(sample, "terms"), _of_items(sample, "given")
        rest = limits, bos_token, block
        source = sample["net_input"]["src_tokens"]
        if self.shortlist is None or block:
            return self._among(sample, self.alignment.separators[1], prefix, terms, given, observe or {}, *rest)
        needed = [[*its, *lines] for its, lines in zip_longest(map(_flat, terms), given, fillvalue=())]
        joint = JointList.of(self.shortlist, source, prefix, needed, self.beam_size)
        numbered = None if prefix is None else joint.numbers(prefix)
        watched = {item: joint.watched(its) for item, its in (observe or {}).items()}
        separator = joint.number(self.alignment.separators[1])
        with self.listed(joint):
            required, fixed = list(map(joint.terms, terms)), list(map(joint.numbered, given))
            return joint.widened(self._among(sample, separator, numbered, required, fixed, watched, *rest))

    def _among(
        self,
        sample: Sample,
        separator: int,
        prefix: Tensor | None,
        terms: Sequence[Terms],
        given: Sequence[Given],
        observe: Mapping[int, Observe],
        limits: SentenceLimits,
        bos_token: int | None,
        block: bool,
    ) -> list[list[Hypothesis]]:
        """Run fairseq's search with its own length limits, the terms of a glossary, and given lines.

        Raises:
            InputError: the options' maximum length is too short for one word per sentence, or a glossary is used with a
                strategy other than beam search.
        """
        required = RequiredTerms(terms, separator, self.eos) if terms else None
        if required and type(self.strategy) is not FastBeamSearch:
            raise InputError("a glossary needs plain beam search; leave out options that choose another search")
        self.search.inner = GlossarySearch(self.tgt_dict, required) if required else apart(self.strategy)
        a, b, source = self.max_len_a, self.max_len_b, sample["net_input"]["src_tokens"]
        if not self.own_length:
            # a prefix may exceed every limit, and fairseq insists on the minimum
            longest = limits.total() + (0 if prefix is None else prefix.size(1))
            self.max_len_a, self.max_len_b = 0, max(longest, self.min_len)
        try:
            longest = min(int(self.max_len_a * source.size(1) + self.max_len_b), self.max_len - 1)
            sentences = int(limits.sentences.max())
            if longest < 2 * sentences - 1:
                raise InputError(
                    f"a document of {sentences} lines cannot be translated line by line in at most {longest} tokens; "
                    "raise --max-len-a, --max-len-b or --max-target-positions"
                )
            processors: list[StepProcessor] = [Watch(observe, self.eos)] if observe else []
            if block:
                processors.append(NoRepetition(separator, int(limits.longest.max())))
            tagged = self.tag is not None
            processors.append(LineAlignment(limits, separator, self.eos, self.pad, longest, prefix, tagged))
            processors += [required] if required else []
            if given and any(map(any, given)):
                processors.append(GivenLines(given, separator, self.eos, self.pad, tagged))
            return self._run(sample, prefix, None, bos_token, processors)
        finally:
            self.max_len_a, self.max_len_b = a, b

    def _repair(
        self,
        translations: list[list[Hypothesis]],
        sample: Sample,
        limits: SentenceLimits,
        lines: Sequence[Sequence[Sequence[int]]],
        longest: Sequence[Sequence[int]],
        fixed: Sequence[Collection[int]],
        bos_token: int | None,
    ) -> None:
        """Search the flawed lines of the best hypotheses again, excluding loops: after some lines, then alone.

        The flawed lines of all items are searched together. A line is replaced if the new one is not flawed; the lines
        after it stay. ``fixed`` lines, which were given, stay in the context.
        """
        separator = self.alignment.separators
        source = sample["net_input"]["src_tokens"]
        sources = [[token for token in row if token != self.pad] for row in source.tolist()]
        tried: set[FlawedLine] = set()
        for context in CONTEXTS[: self.alignment.repairs]:
            wanted = []
            for i, hypotheses in enumerate(translations):
                flaws = hypotheses[0]["flawed"] if hypotheses else ()
                for line in flaws:
                    # a line that went wrong is no context
                    start = max([0, line - context, *(flaw + 1 for flaw in flaws if flaw < line)])
                    wanted.append(FlawedLine(i, min([start, *(j for j in fixed[i] if j < line)]), line))
            wanted = [place for place in wanted if place not in tried]
            tried |= set(wanted)
            for places, tokens in together(wanted, sources, source.numel(), separator[0], self.alignment.source_tag):
                before = [self._before(translations[x.item][0]["tokens"], x.start, x.line) for x in places]
                prefix = torch.nn.utils.rnn.pad_sequence(before, batch_first=True, padding_value=self.pad)
                taken, limits_of_lines = sample_of(places, tokens, sample, self.pad), limits_of(places, limits)
                again = self._search(taken, limits_of_lines, prefix if prefix.size(1) else None, bos_token, block=True)
                for place, hypotheses in zip(places, again):
                    old, (i, _, line) = translations[place.item][0], place
                    if not hypotheses:
                        continue
                    new = split(self._words(hypotheses[0]["tokens"]), separator[1])[-1]
                    if not gone_wrong(lines[i][line], new, longest[i][line]):
                        penalty = self.len_penalty if self.normalize_scores else None
                        replace_line(old, line, hypotheses[0], separator[1], self.tag, penalty)
                        old["flawed"].remove(line)
                        old["repaired"] = sorted([*old["repaired"], line])

    def _mark(
        self,
        hypotheses: Sequence[Hypothesis],
        source: Sequence[Sequence[int]],
        longest: Sequence[int],
        fixed: Collection[int],
    ) -> None:
        """Set the flawed lines of an item's hypotheses, without the ``fixed`` ones, which were given."""
        for hypothesis in hypotheses:
            target = split(self._words(hypothesis["tokens"]), self.alignment.separators[1])
            # only with a prefix can the number of lines differ
            flaws = flawed(source, target, longest) if len(target) == len(source) else []
            hypothesis["flawed"] = [line for line in flaws if line not in fixed]
            hypothesis["repaired"] = []

    def _words(self, tokens: Tensor) -> list[int]:
        return [t for t in tokens.tolist() if t not in (self.pad, self.eos, self.tag)]

    def _before(self, tokens: Tensor, start: int, line: int) -> Tensor:
        """Return the tokens of the lines from ``start`` to before ``line``, after the tag if there is one."""
        starts = [begin for begin, _ in line_spans(tokens.tolist(), self.alignment.separators[1])]
        n_tags = int(self.tag is not None)
        return torch.cat([tokens[:n_tags], tokens[max(starts[start], n_tags) : max(starts[line], n_tags)]])

    def is_finished(self, step: int, unfin_idx: int, max_len: int, finalized_sent_len: int, beam_size: int) -> bool:
        """Return whether the search for an item is over; also if none of its hypotheses can be continued."""
        done = super().is_finished(step, unfin_idx, max_len, finalized_sent_len, beam_size)
        return done or bool(self.search.exhausted[unfin_idx])


def _of_items(sample: Sample, name: str) -> list[Any]:
    """Return an entry of a batch, in the order of its items; empty if it is missing."""
    return [sample[name][i] for i in sample["id"].tolist()] if name in sample else []


def _flat(terms: Terms) -> list[Sequence[int]]:
    return [term for line in terms for term in line]
