"""Search for translations of a document's parts: their examples and the beginnings of their translations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any

import torch
from fairseq import utils
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Hypothesis
from fairseq_lasformer.data.examples import line_spans
from fairseq_lasformer.documents.scoring import mean
from fairseq_lasformer.documents.side_by_side import SideBySide
from fairseq_lasformer.documents.source import Line, Source, closed, joined, others
from fairseq_lasformer.search.batching import batches
from fairseq_lasformer.search.excerpts import CONTEXT
from fairseq_lasformer.search.generator import AlignedGenerator
from fairseq_lasformer.search.glossary import Terms
from fairseq_lasformer.search.line_search import FEWEST, SCORES
from fairseq_lasformer.search.processors import Observe
from fairseq_lasformer.text.documents import Span

if TYPE_CHECKING:
    from fairseq.tasks import FairseqTask

TOGETHER = 3
"""Maximum distance of lines that are translated again together."""

GROUPS = 32
"""Groups of such lines per batch."""

SCORED_TOKENS = 4096
"""Tokens per batch of single lines."""

LINES = 32768
"""Tokens, with padding, of parts whose lines are searched side by side."""

WINDOW = 256
"""Number of parts without context that are sorted by length, and then translated together."""

WINDOW_TOKENS = 8192
"""Tokens per batch of such parts."""


class PartSearch:
    """Beam search over parts of documents.

    Args:
        task: a translation task that has been set up.
        models: loaded models, in evaluation mode, on the device used for translation.
        generation: fairseq's ``generation`` options.
    """

    def __init__(self, task: FairseqTask, models: Sequence[Any], generation: Any) -> None:
        self.task, self.models = task, list(models)
        self.prefix_size = int(getattr(generation, "prefix_size", 0))
        self.generator = task.build_generator(self.models, generation)
        dictionary = task.source_dictionary
        self.ends = (task.separator_in(dictionary), task.separator_in(task.target_dictionary))
        self.eos = (dictionary.eos(), task.target_dictionary.eos())
        self.tags = task.tag_in(dictionary, 0), task.tag_in(task.target_dictionary, 1)
        self.pad = task.target_dictionary.pad()

    @property
    def independent(self) -> bool:
        """Return whether the model translates single sentences only, so the parts of a document are independent."""
        return bool(self.task.settings.resolutions == "sentences") and not self.prefix_size

    @functools.cached_property
    def by_lines(self) -> bool:
        """Return whether lines are searched side by side: a model's context is of the source only, by its options."""
        generator = self.generator
        if not isinstance(generator, AlignedGenerator) or generator.own_length or self.prefix_size:
            return False
        lonely = all(getattr(getattr(m, "decoder", None), "reads_newest_line", False) for m in self.models)
        return lonely and self.tags == (None, None) and generator.is_plain()

    @property
    def aligned(self) -> bool:
        """Return whether line i of a translation is that of line i of its source."""
        return isinstance(self.generator, AlignedGenerator)

    @property
    def reads_documents(self) -> bool:
        """Return whether the model reads documents and aligns their lines."""
        return self.aligned and not self.independent

    def overlap(self, wanted: int) -> int:
        """Return how many sentences the parts of a long document can overlap by: none where lines are not aligned."""
        return wanted if self.aligned and not self.prefix_size else 0

    def example(self, document: Source, part: Span) -> Tensor:
        """Return the tokens of a part and its context, with separators, tag and end of sentence."""
        sentences = document.sentences[part.start - part.context : part.start + part.size]
        return joined(sentences, self.ends[0], self.tags[0], self.eos[0])

    def closed(self, tokens: Tensor, side: int) -> Tensor:
        """Enclose tokens in the tag and the end of sentence of a side, 0 for the source and 1 for the target."""
        return closed(tokens, self.tags[side], self.eos[side])

    def _beginning(self, document: Source, part: Span, before: Sequence[Line]) -> Tensor:
        """Return the tokens that a part's translation begins with.

        They are those of its context and of the given lines that follow it; or a prefix of its reference.
        """
        if document.references is not None and self.prefix_size:
            return document.references[document.parts.index(part)][: self.prefix_size]
        end = torch.tensor([self.ends[1]] if self.ends[1] is not None else [], dtype=torch.int64)
        lines = [line.tokens for line in before[len(before) - part.context :]] if part.context else []
        given = document.given[part.start : part.start + part.size - 1] if document.given is not None else ()
        lines += [line for line in takewhile(lambda line: line is not None, given) if line is not None]
        return torch.cat([torch.tensor([], dtype=torch.int64), *(t for line in lines for t in (line, end))])

    def _terms(self, document: Source, part: Span) -> Terms:
        """Return the terms of each line of a part; none for its context, whose translation is known."""
        terms = document.terms or [[]] * len(document.sentences)
        return [*[[]] * part.context, *terms[part.start : part.start + part.size]]

    def _given_lines(self, document: Source, part: Span) -> list[list[int]]:
        """Return the tokens of the given lines of a part; none for its context, which is passed separately."""
        given = (document.given or [None] * len(document.sentences))[part.start : part.start + part.size]
        return [*[[]] * part.context, *([] if line is None else line.tolist() for line in given)]

    @torch.no_grad()
    def translate_parts(
        self,
        tasks: Sequence[tuple[Source, Span, Sequence[Line]]],
        device: torch.device | str,
        observe: Sequence[Observe | None] = (),
    ) -> list[list[Line]]:
        """Translate parts together, and return the lines of each, without its context.

        Args:
            tasks: for each part, its document, the part, and the lines of the document before it.
            observe: for each part, its observer, see :class:`search.processors.Watch`. Where lines are searched side
                by side, it is shown no hypotheses, and can only end the search.
        """
        if self.by_lines:
            nothing = torch.empty(0, 0)
            watching = [watch for watch in observe if watch is not None]
            check = (lambda: [watch(nothing, nothing) for watch in watching]) if watching else None
            side_by_side = SideBySide(self, [task[:2] for task in tasks], device, check)
            lines = iter(side_by_side.lines())
            return [[next(lines) for _ in range(part.size)] for _, part, _ in tasks]
        hypotheses = self._hypotheses(tasks, device, observe)
        return [self._lines(best)[part.context :] for (_, part, _), (best, *_) in zip(tasks, hypotheses)]

    @torch.no_grad()
    def translate_in_order(
        self,
        documents: Sequence[Source],
        parts: Sequence[Sequence[Span]],
        translations: Sequence[list[Line]],
        device: torch.device | str,
        done: Callable[[int, list[Line]], object] = lambda document, lines: None,
    ) -> None:
        """Translate parts of each document, in order, and append their lines to those found so far."""
        if self.by_lines:
            places = [(i, part) for i, its in enumerate(parts) for part in its]
            lengths = [len(self.example(documents[i], part)) for i, part in places]
            for group in batches(lengths, range(len(places)), LINES):
                chosen = [(documents[i], part, ()) for i, part in (places[j] for j in group)]
                for j, lines in zip(group, self.translate_parts(chosen, device)):
                    translations[places[j][0]] += lines
                    done(places[j][0], lines)
            return
        if self.independent:
            self._translate_windows(
                [(i, part) for i, its in enumerate(parts) for part in its], documents, translations, device, done
            )
            return
        for number in range(max(map(len, parts), default=0)):
            here = [i for i in range(len(documents)) if number < len(parts[i])]
            tasks = [(documents[i], parts[i][number], translations[i]) for i in here]
            for i, lines in zip(here, self.translate_parts(tasks, device)):
                translations[i] += lines
                done(i, lines)

    def _translate_windows(
        self,
        tasks: Sequence[tuple[int, Span]],
        documents: Sequence[Source],
        translations: Sequence[list[Line]],
        device: torch.device | str,
        done: Callable[[int, list[Line]], object],
    ) -> None:
        """Translate parts without context, many at a time; ``tasks`` are document numbers and parts."""
        most = max(FEWEST, SCORES // (self.generator.beam_size * len(self.task.target_dictionary)))
        if self.task.cfg.shortlist:  # far fewer words are scored
            most = WINDOW
        for start in range(0, len(tasks), WINDOW):
            window = tasks[start : start + WINDOW]
            lengths = [len(self.example(documents[i], part)) for i, part in window]
            order = sorted(range(len(window)), key=lambda j: lengths[j])
            lines: dict[int, list[Line]] = {}
            for batch in batches(lengths, order, WINDOW_TOKENS, most):
                chosen = [(documents[window[j][0]], window[j][1], ()) for j in batch]
                lines |= dict(zip(batch, self.translate_parts(chosen, device)))
            for i, its in groupby(range(len(window)), key=lambda j: window[j][0]):
                new = [line for j in its for line in lines[j]]
                translations[i].extend(new)
                done(i, new)

    @torch.no_grad()
    def alternatives(
        self, document: Source, lines: Sequence[Line], most: int, device: torch.device | str
    ) -> list[list[Line]]:
        """Return other translations of each line of a translated document, given the lines before it; best first.

        Args:
            document: the document; its lines are aligned.
            most: maximum number per line; fewer if the beam has fewer.
        """
        if self.by_lines:
            return SideBySide(self, [(document, part) for part in document.parts], device).alternatives(lines, most)
        ranked: list[list[Line]] = []
        places = [
            Span(0, i, 1, min(CONTEXT, i - part.start + part.context))
            for part in document.parts
            for i in range(part.start, part.start + part.size)
        ]
        for start in range(0, len(places), GROUPS):
            tasks = [(document, place, lines[: place.start]) for place in places[start : start + GROUPS]]
            for (_, place, _), hypotheses in zip(tasks, self._hypotheses(tasks, device)):
                candidates = (self._lines(hypothesis)[-1] for hypothesis in hypotheses)
                ranked.append(others(lines[place.start], candidates, most))
        return ranked

    def _hypotheses(
        self,
        tasks: Sequence[tuple[Source, Span, Sequence[Line]]],
        device: torch.device | str,
        observe: Sequence[Observe | None] = (),
    ) -> list[list[Hypothesis]]:
        """Return fairseq's hypotheses for each part, best first; see :meth:`translate_parts`.

        Raises:
            InputError: there is none.
        """
        examples = [self.example(document, part) for document, part, _ in tasks]
        beginnings = [self._beginning(*task) for task in tasks]
        terms = [self._terms(document, part) for document, part, _ in tasks]
        lengths = torch.tensor([len(example) for example in examples])
        dataset = self.task.build_dataset_for_inference(examples, lengths)
        batch = dataset.collater([dataset[i] for i in range(len(examples))])
        batch = utils.apply_to_sample(lambda t: t.to(device), batch)
        if any(line for document in terms for line in document):
            batch["terms"] = dict(enumerate(terms))
        lines = [self._given_lines(document, part) for document, part, _ in tasks]
        if any(map(any, lines)):
            batch["given"] = dict(enumerate(lines))
        order = batch["id"].tolist()  # the collater sorts by length
        watches = {row: watch for row, i in enumerate(order) if i < len(observe) and (watch := observe[i]) is not None}
        if watches:
            batch["observe"] = watches
        prefix = None
        if any(map(len, beginnings)):
            rows = [beginnings[i] for i in order]
            prefix = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.pad).to(device)
        hypotheses = self.task.inference_step(self.generator, self.models, batch, prefix_tokens=prefix)
        by_place = dict(zip(order, hypotheses))
        if nothing := [len(examples[i]) for i in range(len(tasks)) if not by_place[i]]:
            raise InputError(
                f"the search found no translation of a text of {nothing[0]} tokens: are the model's weights finite?"
            )
        return [by_place[i] for i in range(len(tasks))]

    def _lines(self, hypothesis: Hypothesis) -> list[Line]:
        tokens, scores = hypothesis["tokens"].cpu(), hypothesis["positional_scores"].float().cpu()
        ended = len(tokens) > 0 and int(tokens[-1]) == self.eos[1]
        lines = []
        for i, (start, end) in enumerate(line_spans(tokens.tolist()[: len(tokens) - ended], self.ends[1])):
            lines.append(
                Line(
                    tokens[start:end],
                    mean(scores[start : end + 1]),
                    i in hypothesis.get("repaired", ()),
                    i in hypothesis.get("flawed", ()),
                )
            )
        return lines
