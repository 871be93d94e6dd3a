"""fairseq's generator with :class:`LineAlignment`, for documents that are searched as one sequence."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Hypothesis, Sample
from fairseq_lasformer.search.alignment import LineAlignment, SentenceLimits
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.processors import Interrupt, StepProcessor
from fairseq_lasformer.search.repair import NoRepetition, flawed, split
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
    repairs: int  # whether lines side by side and single sentences that went wrong are searched again; 0: no


class AlignedGenerator(BeamGenerator):
    """Generator of translations with as many lines as their sources.

    A batch may have two entries besides fairseq's: ``check``, see :class:`Interrupt`, and ``block``, whether it is of
    single lines that may not repeat themselves.

    Each hypothesis has an entry besides fairseq's: ``flawed``, the indices of lines that reached their limit or repeat
    themselves.

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
        self.alignment, self.own_length = alignment, own_length

    def _found(
        self, sample: Sample, prefix_tokens: Tensor | None, constraints: Tensor | None, bos_token: int | None
    ) -> list[list[Hypothesis]]:
        if constraints is not None:
            raise InputError("constraints: not possible with aligned lines; use a glossary, or --align-sentences no")
        source = sample["net_input"]["src_tokens"]
        limits = self.limits(source)
        translations = self._search(sample, limits, prefix_tokens, bos_token)
        lines = [split(self._words(row), self.alignment.separators[0]) for row in source]
        longest = [row[:n] for row, n in zip(limits.longest.tolist(), limits.sentences.tolist())]
        n_fixed = [0] * len(translations)
        if prefix_tokens is not None:
            n_fixed = (prefix_tokens == self.alignment.separators[1]).sum(1).tolist()
        for each in zip(translations, lines, longest, n_fixed):
            self._mark(*each)
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
        self, sample: Sample, limits: SentenceLimits, prefix: Tensor | None, bos_token: int | None
    ) -> list[list[Hypothesis]]:
        """Search among the words of the shortlist, if there is one and nothing is searched again."""
        if self.shortlist is None or sample.get("block"):
            return self._among(sample, self.alignment.separators[1], prefix, limits, bos_token)
        joint = JointList.of(self.shortlist, sample["net_input"]["src_tokens"], prefix, beam=self.beam_size)
        numbered, separator = None if prefix is None else joint.numbers(prefix), self.alignment.separators[1]
        with self.listed(joint):
            return joint.widened(self._among(sample, joint.number(separator), numbered, limits, bos_token))

    def _among(
        self, sample: Sample, separator: int, prefix: Tensor | None, limits: SentenceLimits, bos_token: int | None
    ) -> list[list[Hypothesis]]:
        """Run fairseq's search with its own length limits.

        Raises:
            InputError: the options' maximum length is too short for one word per sentence.
        """
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
            tagged = self.tag is not None
            alignment = LineAlignment(limits, separator, self.eos, self.pad, longest, prefix, tagged)
            processors: list[StepProcessor] = [alignment]
            if sample.get("block"):
                processors.insert(0, NoRepetition())
            if (check := sample.get("check")) is not None:
                processors.append(Interrupt(check))
            return self._run(sample, prefix, None, bos_token, processors)
        finally:
            self.max_len_a, self.max_len_b = a, b

    def _mark(
        self, hypotheses: Sequence[Hypothesis], source: Sequence[Sequence[int]], longest: Sequence[int], n_fixed: int
    ) -> None:
        """Set the flawed lines of an item's hypotheses, without the first ``n_fixed``, which were given."""
        for hypothesis in hypotheses:
            target = split(self._words(hypothesis["tokens"]), self.alignment.separators[1])
            # only with a prefix can the number of lines differ
            flaws = flawed(source, target, longest) if len(target) == len(source) else []
            hypothesis["flawed"] = [line for line in flaws if line >= n_fixed]

    def _words(self, tokens: Tensor) -> list[int]:
        return [t for t in tokens.tolist() if t not in (self.pad, self.eos, self.tag)]

    def is_finished(self, step: int, unfin_idx: int, max_len: int, finalized_sent_len: int, beam_size: int) -> bool:
        """Return whether the search for an item is over; also if none of its hypotheses can be continued."""
        done = super().is_finished(step, unfin_idx, max_len, finalized_sent_len, beam_size)
        return done or bool(self.search.exhausted[unfin_idx])
