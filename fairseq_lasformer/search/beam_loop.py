"""fairseq's beam search with bookkeeping that stays on the device, which the host checks every 16 steps.

fairseq's generator asks in every step which hypotheses have ended, so the host waits for the GPU and the GPU for the
host. It also copies the words and scores of all hypotheses so far. Here a step only records what is new (see
:mod:`histories`). On a GPU, the rows of finished items stay until the next check by the host removes them; on a CPU,
where checking costs nothing, they are removed at once.

Shapes: N items, B hypotheses per item, k <= 2 B candidates, V words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Hypothesis, Sample
from fairseq_lasformer.data.shortlist import SPECIAL, Shortlist
from fairseq_lasformer.search.beam_search import FastBeamSearch, fast
from fairseq_lasformer.search.histories import Histories, Step
from fairseq_lasformer.search.processors import (
    Candidates,
    Exclusions,
    FreeTag,
    GivenWords,
    OwnLimits,
    ProcessedSearch,
    StepProcessor,
    apart,
)
from fairseq_lasformer.search.shortlisted import JointList, ListedEnsemble

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models import BaseFairseqModel

LOOK_EVERY = 16
"""Number of steps from one check by the host to the next, on a GPU."""


class Beams(NamedTuple):
    """The hypotheses of a step."""

    words: Tensor  # int64 [N, B], the newest words
    scores: Tensor  # [N, B], cumulative scores
    unused: Tensor  # bool [N, B], places where no hypothesis continues, because too many have ended
    n_ended: Tensor  # int64 [N, 1], hypotheses that have ended so far; an item with B of them is finished

    @classmethod
    def first(cls, words: Tensor, beam: int) -> Beams:
        """Return the hypotheses before the first step, which have one word; ``words``: int64 [N], that of each item."""
        n_items, device = words.numel(), words.device
        shape = (n_items, beam)
        scores, unused = torch.zeros(shape, device=device), torch.zeros(shape, dtype=torch.bool, device=device)
        n_ended = torch.zeros(n_items, 1, dtype=torch.int64, device=device)
        return cls(words[:, None].repeat(1, beam), scores, unused, n_ended)

    def take(self, items: Tensor) -> Beams:
        """Select the hypotheses of some items."""
        return Beams(*(t[items] for t in self))


def advance(
    beams: Beams, candidates: Candidates, end: int, ends_exhausted: bool, backend: str
) -> tuple[Beams, Step, Tensor, Tensor]:
    """Continue the best candidates, and end the complete ones among the first B, as fairseq does but without the host.

    Args:
        beams: the hypotheses of the step before.
        candidates: the best continuations.
        end, ends_exhausted, backend: see :func:`ops.advance`.

    Returns:
        the hypotheses of this step; the step to record; and the candidates that they are, and the rows that they
        continue, int64 [N, B].
    """
    beam = beams.words.size(1)
    on = ops.advance(candidates, beams.unused, beams.n_ended, end, ends_exhausted, backend)
    final = candidates.scores[:, :beam]
    return Beams(*on[:4]), Step(on.words, on.parents, on.ended, on.scores, final), on.chosen, on.rows


class StepEnsemble(EnsembleModel):
    """fairseq's ensemble, without its division by a temperature of 1 where there is one model that needs no more.

    Args:
        models: see fairseq's ``EnsembleModel``.
    """

    def forward_decoder(
        self, tokens: Tensor, encoder_outs: Any, incremental_states: Any, temperature: float = 1.0
    ) -> tuple[Tensor, Tensor | None]:
        """See fairseq's ``EnsembleModel``."""
        model: Any = self.models[0]
        if self.models_size > 1 or temperature != 1 or not _reads_newest(model):
            return super().forward_decoder(tokens, encoder_outs, incremental_states, temperature)
        (encoded,), (state,) = encoder_outs, incremental_states
        scores = model.decoder(tokens, encoder_out=encoded, incremental_state=state)
        return model.get_normalized_probs(scores, log_probs=True)[:, -1], None


def _reads_newest(model: nn.Module) -> bool:
    """Return whether a model's decoder reads only the newest word and the number of those before."""
    return getattr(getattr(model, "decoder", None), "reads_newest_word", False)


class BeamGenerator(SequenceGenerator):
    """fairseq's generator: the same translations, with fewer operators per step.

    Other strategies than plain beam search, constraints, language models, prefixes with an end of sentence and
    ``no_repeat_ngram_size`` use fairseq's loop. So do other models, whose decoders may read more than the newest word.

    A search does not change the generator, so several threads can use it at once.

    Args:
        models, dictionary, options: see fairseq's ``SequenceGenerator``.
        shortlist: words that are searched; None for all.
        tag: word that every translation begins with, at no cost, and that is then removed; None for none. Prefixes may
            begin with it.
        backend: implementation that finds candidates, one of :data:`ops.BACKENDS`.
        own_limits: whether an item's maximum length follows from its own length, not from that of the longest item.
    """

    model: BaseFairseqModel
    min_len: int
    max_len_a: float
    max_len_b: float
    beam_size: int
    search: ProcessedSearch
    token_indices_to_suppress: Tensor | None
    look_every: int | None = None
    ends_exhausted = False
    """Whether an item is finished as soon as none of its hypotheses can be continued."""

    def __init__(
        self,
        models: Sequence[BaseFairseqModel],
        dictionary: Dictionary,
        *,
        shortlist: Shortlist | None = None,
        tag: int | None = None,
        backend: str = "auto",
        own_limits: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(StepEnsemble(models), dictionary, **options)
        self.search, self.shortlist = ProcessedSearch(dictionary, fast(self.search, backend)), shortlist
        self.tag, self.own_limits = tag, own_limits

    def _generate(
        self,
        sample: Sample,
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[Hypothesis]]:
        # fairseq's loop and strategies, and a batch's lists and limits, leave attributes on the generator
        search = apart(self, search=self.search.apart())
        if self.tag is None:
            return search._found(sample, prefix_tokens, constraints, bos_token)
        prefix = _tagged(self.tag, prefix_tokens, sample["net_input"]["src_tokens"])
        return [list(map(_untagged, its)) for its in search._found(sample, prefix, constraints, bos_token)]

    def _found(
        self, sample: Sample, prefix_tokens: Tensor | None, constraints: Tensor | None, bos_token: int | None
    ) -> list[list[Hypothesis]]:
        """See fairseq's ``generate``; this generator belongs to one search."""
        if self.shortlist is None or (bos_token or 0) >= SPECIAL:
            if not self.own_limits:
                return self._run(sample, prefix_tokens, constraints, bos_token)
            limits = self._limits(sample)
            prefix = None if prefix_tokens is None else limits.cut(prefix_tokens, self.pad)
            return self._run(sample, prefix, constraints, bos_token, [limits])
        joint = JointList.of(self.shortlist, sample["net_input"]["src_tokens"], prefix_tokens, beam=self.beam_size)
        with self.listed(joint):
            prefix = None if prefix_tokens is None else joint.numbers(prefix_tokens)
            return joint.widened(self._run(sample, prefix, constraints, bos_token))

    def _run(
        self,
        sample: Sample,
        prefix: Tensor | None,
        constraints: Tensor | None,
        bos_token: int | None,
        processors: Sequence[StepProcessor] = (),
    ) -> list[list[Hypothesis]]:
        """Search in the loop below, or, where it does not apply, in fairseq's, which excludes words itself."""
        if constraints is not None or not self.is_plain() or _ends(prefix, self.eos):
            source = sample["net_input"]["src_tokens"]
            processors = [*processors, FreeTag()] if self.tag is not None else processors
            self.search.begin(processors, source.size(0), self.beam_size, source.device)
            return super()._generate(sample, prefix, constraints, bos_token)
        return self._beam_search(sample, self.eos if bos_token is None else bos_token, prefix, processors)

    @contextmanager
    def listed(self, joint: JointList) -> Iterator[None]:
        """Search among the words of a list, with its numbering."""
        model, suppressed = self.model, self.token_indices_to_suppress
        self.model, self.vocab_size = ListedEnsemble(list(model.models), joint), joint.words.numel()
        if suppressed is not None:
            there = suppressed.to(joint.words.device)
            self.token_indices_to_suppress = joint.numbers(there[torch.isin(there, joint.words)])
        try:
            yield
        finally:
            self.model, self.vocab_size, self.token_indices_to_suppress = model, len(self.tgt_dict), suppressed

    def _limits(self, sample: Sample) -> OwnLimits:
        source = sample["net_input"]["src_tokens"]
        words = (source != self.pad).sum(1).tolist()
        longest = [min(int(self.max_len_a * n + self.max_len_b), self.max_len - 1) for n in words]
        self._check_shortest(min(longest))
        return OwnLimits(torch.tensor(longest, device=source.device), self.eos)

    def _check_shortest(self, longest: int) -> None:
        if self.min_len > longest:
            raise InputError(f"--min-len {self.min_len}: more than the {longest} tokens that a translation may have")

    def is_plain(self) -> bool:
        """Return whether the options allow :meth:`continued`: plain beam search with models of this package."""
        if type(self.search.inner) is not FastBeamSearch or self.match_source_len:
            return False
        if self.lm_model is not None or self.repeat_ngram_blocker is not None:
            return False
        return all(map(_reads_newest, self.model.models))

    def _exclusions(self, longest: int, prefix: Tensor | None, device: torch.device) -> list[StepProcessor]:
        """Return processors for what fairseq's loop excludes in each step."""
        if self.token_indices_to_suppress is not None:
            self.token_indices_to_suppress = self.token_indices_to_suppress.to(device)
        given = 0 if prefix is None else min(prefix.size(1), longest)
        suppressed, shortest = self.token_indices_to_suppress, self.min_len
        always = Exclusions(self.pad, self.unk, self.eos, self.unk_penalty, shortest, longest, suppressed, given)
        if prefix is None:
            return [always]
        given_words = GivenWords(prefix, self.pad, longest)
        return [always, given_words] if self.tag is None else [always, given_words, FreeTag()]

    def _beam_search(
        self, sample: Sample, start: int, prefix: Tensor | None, processors: Sequence[StepProcessor]
    ) -> list[list[Hypothesis]]:
        source = sample["net_input"]["src_tokens"]
        longest = min(int(self.max_len_a * source.size(1) + self.max_len_b), self.max_len - 1)
        encoded = self.model.forward_encoder(sample["net_input"])
        return self.continued(encoded, source.new_full(source.shape[:1], start), longest, prefix, processors)

    def continued(
        self,
        encoded: Any,
        start: Tensor,
        longest: int,
        prefix: Tensor | None = None,
        processors: Sequence[StepProcessor] = (),
        before: Sequence[StepProcessor] = (),
    ) -> list[list[Hypothesis]]:
        """Search for translations of encoded items.

        Args:
            encoded: output of the ensemble's encoders.
            start: int64 [N], the word before the first one of each item.
            longest: step at which every translation ends.
            processors, before: rules that apply after those of every search, and before them.
        """
        n, beam, device = start.numel(), self.beam_size, start.device
        self._check_shortest(longest)
        look_every = self.look_every or (1 if device.type == "cpu" else LOOK_EVERY)
        backend = self.search.inner.backend if isinstance(self.search.inner, FastBeamSearch) else "auto"
        places = torch.arange(n * beam, device=device)
        encoded = self.model.reorder_encoder_out(encoded, places // beam)
        states: list[dict[str, Any]] = [{} for _ in range(self.model.models_size)]
        self.search.begin([*before, *self._exclusions(longest, prefix, device), *processors], n, beam, device)
        self.search.init_constraints(None, beam)
        beams, histories = Beams.first(start, beam), Histories(n)
        recent = beams.words.view(-1, 1) if any(p.reads_tokens for p in processors) else None

        for step in range(longest + 1):
            # the decoder reads only the newest words and their number; the search, the newest scores
            so_far, past = beams.words.view(-1, 1).expand(-1, step + 1), beams.scores[..., None].expand(-1, -1, step)
            lprobs, _ = self.model.forward_decoder(so_far, encoded, states, self.temperature)
            candidates = self.search.step(step, lprobs.view(n, -1, self.vocab_size), past, recent)
            beams, record, chosen, order = advance(beams, candidates, self.eos, self.ends_exhausted, backend)
            histories.add(record)
            if step == longest:
                break
            if (step + 1) % look_every == 0:
                going = [i for i, n_ended in enumerate(beams.n_ended[:, 0].tolist()) if n_ended < beam]
                if not going:
                    break
                if len(going) < n:  # hypotheses only change places within an item, which share its source
                    n, items = len(going), torch.tensor(going, device=device)
                    histories.remove(going)
                    self.search.prune_sentences(items)
                    beams, chosen, order = beams.take(items), chosen[items], order[items]
                    encoded = self.model.reorder_encoder_out(encoded, order.view(-1))
            if recent is not None:
                recent = torch.cat([recent[order.view(-1)], beams.words.view(-1, 1)], 1)
            self.search.update_constraints(chosen)
            self.model.reorder_incremental_state(states, order.view(-1))
        return histories.hypotheses(self.eos, self.len_penalty if self.normalize_scores else None, device)


def _tagged(tag: int, prefix: Tensor | None, source: Tensor) -> Tensor:
    """Return a prefix, int64 [N, P], that begins with the tag.

    Args:
        prefix: None for none.
        source: [N, S], on the prefix's device.
    """
    tags = source.new_full((source.size(0), 1), tag)
    if prefix is None:
        return tags
    return prefix if prefix.size(1) and bool((prefix[:, 0] == tag).all()) else torch.cat([tags, prefix], 1)


def _untagged(hypothesis: Hypothesis) -> Hypothesis:
    """Return a hypothesis without its first word."""
    shorter = {name: hypothesis[name][1:] for name in ("tokens", "positional_scores")}
    attention = hypothesis.get("attention")
    if attention is not None and attention.dim() == 2:
        shorter["attention"] = attention[:, 1:]
    return {**hypothesis, **shorter}


def _ends(prefix: Tensor | None, end: int) -> bool:
    """Return whether there is a prefix, int64 [N, P], that ends a translation."""
    return prefix is not None and bool((prefix == end).any())
