"""Translates documents with a model in memory: the translator shared by :mod:`hub` and ``lasformer generate``.

A document that is longer than the model's limit is translated in parts, one after the other. Each part begins with the
last sentences of the part before, and their translation, as context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import Tensor

from fairseq_lasformer.data.documents import Span
from fairseq_lasformer.data.examples import ExampleCodec, line_spans
from fairseq_lasformer.documents.batching import batches
from fairseq_lasformer.documents.misplaced_lines import MARGIN, first_misplaced
from fairseq_lasformer.documents.scoring import log_probabilities
from fairseq_lasformer.documents.source import Line, Source, rest_of, runs
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.search.generator import AlignedGenerator
from fairseq_lasformer.search.glossary import Glossary, Terms, met
from fairseq_lasformer.search.watch import Observe

CONTEXTS = (10, 3, 0)
"""Lines of context with which a document is translated again, at the first attempt and at the next ones."""

ROUNDS = 9
"""How often a document is looked at for lines out of place."""

COMPARED = 4
"""Lines by which an old and a new translation are compared."""

TOGETHER = 3
"""Lines that lack a term, and are no further apart than this, are translated together."""

REQUIRED = 32
"""Groups of such lines per batch."""

SCORED_TOKENS = 4096
"""Tokens per batch of single lines."""

WINDOW = 256
"""Parts without context that are sorted by length, and then translated together."""

WINDOW_TOKENS = 8192
"""Tokens per batch of such parts."""

SCORES = 1 << 23
"""Most scores of words in a step of such a batch, 32 MB: more do not fit into a processor's cache."""

FEWEST = 16
"""Parts of such a batch, even if there are more scores than that."""


class Translator:
    """Beam search over documents.

    Args:
        task: a translation task that has been set up.
        models: loaded models, in evaluation mode, on the device used for translation.
        generation: fairseq's ``generation`` options.
    """

    def __init__(self, task: Any, models: Sequence[Any], generation: Any) -> None:
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
        """Whether the model knows single sentences alone, so that the parts of a document need not wait for others."""
        return bool(self.task.settings.resolutions == "sentences") and not self.prefix_size

    @property
    def aligned(self) -> bool:
        """Whether line i of a translation is that of line i of its source."""
        return isinstance(self.generator, AlignedGenerator)

    def overlap(self, wanted: int) -> int:
        """Sentences that the parts of a long document can overlap by: none where lines are not aligned."""
        return wanted if self.aligned and not self.prefix_size else 0

    def groups(self, documents: Sequence[Source], max_tokens: int, max_documents: int | None = None) -> list[list[int]]:
        """Documents that are translated together: of similar length, at most ``max_tokens`` with padding.

        A document that is longer than that is a group of its own.
        """
        length = [max(len(self.example(document, part)) for part in document.parts) for document in documents]
        order = sorted(range(len(documents)), key=lambda i: (len(documents[i].parts), length[i]))
        return batches(length, order, max_tokens, max_documents)

    def required(self, glossary: Glossary | str | Path, codec: ExampleCodec) -> Callable[[str], list[list[int]]]:
        """A function from a source sentence to the tokens of the terms that its translation must contain.

        Args:
            glossary: the glossary, or the file of one.

        Raises:
            InputError: the glossary cannot be read, or lines are not aligned.
        """
        if not self.aligned:
            raise InputError("a glossary needs aligned lines: data with a separator, and no --no-align-sentences")
        found = glossary if isinstance(glossary, Glossary) else Glossary.read(glossary)
        encode = functools.partial(self.task.target_dictionary.encode_line, add_if_not_exist=False, append_eos=False)
        return lambda sentence: [encode(codec.encode_target(term)).tolist() for term in found.required(sentence)]

    @torch.no_grad()
    def translate(
        self,
        documents: Sequence[Source],
        device: torch.device | str,
        known: Sequence[Sequence[Line]] | None = None,
        done: Callable[[int, list[Line]], object] = lambda document, lines: None,
    ) -> list[list[Line]]:
        """Translates documents together, part by part; the lines of each document, in order.

        Args:
            known: lines of the first parts of each document that an earlier call passed to ``done``.
            done: called with the number of a document and its lines after each part. The lines may change later.
        """
        found: list[list[Line]] = [list(lines) for lines in known] if known is not None else [[] for _ in documents]
        free = [document._replace(terms=None) for document in documents]
        left = [[part for part in d.parts if part.start >= len(lines)] for d, lines in zip(documents, found)]
        self._translate(free, left, found, device, done)
        self.finish(documents, found, device)
        return found

    @torch.no_grad()
    def finish(self, documents: Sequence[Source], found: list[list[Line]], device: torch.device | str) -> None:
        """Looks at whole translations: places lines, and requires terms. Changes ``found``."""
        if self.places_lines:
            self._place([document._replace(terms=None) for document in documents], found, device)
        self._require(documents, found, device)
        for document, lines in zip(documents, found):
            for i, (line, given) in enumerate(zip(lines, document.given or ())):
                if given is not None:
                    lines[i] = line._replace(repaired=False, flawed=False)

    def _require(self, documents: Sequence[Source], found: list[list[Line]], device: torch.device | str) -> None:
        """Replaces the lines that lack a term, translating only them once more, after a few lines of context."""
        tasks: list[tuple[int, Span]] = []
        for i, document in enumerate(documents):
            missing = [
                j
                for j, (line, terms) in enumerate(zip(found[i], document.terms or ()))
                if not met(line.tokens.tolist(), terms)
            ]
            for part in document.parts:
                here = [j for j in missing if part.start <= j < part.start + part.size]
                first = part.start - part.context
                tasks += [(i, Span(i, a, b - a + 1, min(CONTEXTS[0], a - first))) for a, b in runs(here, TOGETHER)]
        tasks.sort(key=lambda task: task[1].context + task[1].size)
        for start in range(0, len(tasks), REQUIRED):
            batch = tasks[start : start + REQUIRED]
            again = self.translate_parts([(documents[i], part, found[i][: part.start]) for i, part in batch], device)
            for (i, part), lines in zip(batch, again):
                for j, line in enumerate(lines, part.start):
                    terms = (documents[i].terms or [])[j]
                    if not met(found[i][j].tokens.tolist(), terms):
                        found[i][j] = line._replace(flawed=line.flawed or not met(line.tokens.tolist(), terms))

    def _translate(
        self,
        documents: Sequence[Source],
        parts: Sequence[Sequence[Span]],
        found: Sequence[list[Line]],
        device: torch.device | str,
        done: Callable[[int, list[Line]], object] = lambda document, lines: None,
    ) -> None:
        """Translates parts of each document, in order, and appends their lines to those found so far."""
        if self.independent:
            self._translate_windows(
                [(i, part) for i, its in enumerate(parts) for part in its], documents, found, device, done
            )
            return
        for number in range(max(map(len, parts), default=0)):
            here = [i for i in range(len(documents)) if number < len(parts[i])]
            tasks = [(documents[i], parts[i][number], found[i]) for i in here]
            for i, lines in zip(here, self.translate_parts(tasks, device)):
                found[i] += lines
                done(i, lines)

    def _translate_windows(
        self,
        tasks: Sequence[tuple[int, Span]],
        documents: Sequence[Source],
        found: Sequence[list[Line]],
        device: torch.device | str,
        done: Callable[[int, list[Line]], object],
    ) -> None:
        """Translates parts that have no context, many at a time; ``tasks`` are numbers of documents and their parts."""
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
                found[i].extend(new)
                done(i, new)

    @property
    def places_lines(self) -> bool:
        """Whether lines out of place are looked for: if the model knows single sentences, and may repair lines."""
        if not self.aligned or self.prefix_size:
            return False
        return self.generator.alignment.repairs > 0 and self.task.settings.resolutions == "mixture"

    def _place(self, documents: Sequence[Source], found: list[list[Line]], device: torch.device | str) -> None:
        """Translates documents again from the line on where the model lost its place, with less and less context.

        With all of the context it would lose its place again. A new translation is taken if its first lines, by
        themselves, are more likely translations of their sources.
        """

        def score(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
            examples = [(self._closed(source, 0), self._closed(target, 1)) for source, target in pairs]
            found = log_probabilities(self.models[0], self.task.target_dictionary, examples, SCORED_TOKENS, device)
            return [float(tokens.mean()) for tokens in found]

        starts, failures = [0] * len(documents), [0] * len(documents)
        here = [i for i in range(len(documents)) if len(found[i]) == len(documents[i].sentences) > 1]
        for _ in range(ROUNDS):
            places = first_misplaced(
                [documents[i].sentences for i in here],
                [[line.tokens for line in found[i]] for i in here],
                [[line.score for line in found[i]] for i in here],
                [starts[i] for i in here],
                score,
            )
            lost = {i: place for i, place in zip(here, places) if place is not None}
            if not lost:
                return
            parts = [rest_of(documents[i].parts, place, CONTEXTS[failures[i]]) for i, place in lost.items()]
            new = [found[i][:place] for i, place in lost.items()]
            self._translate([documents[i] for i in lost], parts, new, device)
            for (i, place), lines in zip(lost.items(), new):
                window = range(place, min(place + COMPARED, len(lines)))
                pairs = [(documents[i].sentences[j], side[j].tokens) for side in (found[i], lines) for j in window]
                scores = score(pairs)
                if sum(scores[len(window) :]) > sum(scores[: len(window)]) + MARGIN:
                    changed = [not torch.equal(a.tokens, b.tokens) for a, b in zip(lines, found[i])]
                    found[i] = [b._replace(repaired=b.repaired or c) for b, c in zip(lines, changed)]
                    starts[i], failures[i] = place, 0
                else:
                    failures[i] += 1
                    if failures[i] == len(CONTEXTS):  # the lines after it may still find their place
                        found[i][place] = found[i][place]._replace(flawed=True)
                        starts[i], failures[i] = place + 1, 0
            here = list(lost)

    def example(self, document: Source, part: Span) -> Tensor:
        """Tokens of a part and its context, with separators, tag and the end of sentence."""
        joined: list[Tensor] = []
        for sentence in document.sentences[part.start - part.context : part.start + part.size]:
            if joined and self.ends[0] is not None:
                joined.append(sentence.new_tensor([self.ends[0]]))
            joined.append(sentence)
        return self._closed(torch.cat(joined), 0)

    def target(self, part: Span, lines: Sequence[Line]) -> Tensor:
        """Tokens of the translation of a part and its context, as :meth:`example`."""
        joined: list[Tensor] = []
        for line in lines[part.start - part.context : part.start + part.size]:
            if joined and self.ends[1] is not None:
                joined.append(line.tokens.new_tensor([self.ends[1]]))
            joined.append(line.tokens)
        return self._closed(torch.cat(joined), 1)

    def _closed(self, tokens: Tensor, side: int) -> Tensor:
        """The tokens behind the tag and before the end of sentence of a side, 0 for the source and 1 for the target."""
        tag = self.tags[side]
        return torch.cat([tokens.new_tensor([] if tag is None else [tag]), tokens, tokens.new_tensor([self.eos[side]])])

    def _beginning(self, document: Source, part: Span, found: Sequence[Line]) -> Tensor:
        """Tokens that a part's translation begins with.

        They are those of its context and of the given lines that follow it, or a prefix of its reference.
        """
        if document.references is not None and self.prefix_size:
            return document.references[document.parts.index(part)][: self.prefix_size]
        end = torch.tensor([self.ends[1]] if self.ends[1] is not None else [], dtype=torch.int64)
        lines = [line.tokens for line in found[len(found) - part.context :]] if part.context else []
        given = document.given[part.start : part.start + part.size - 1] if document.given is not None else ()
        lines += [line for line in takewhile(lambda line: line is not None, given) if line is not None]
        return torch.cat([torch.tensor([], dtype=torch.int64), *(t for line in lines for t in (line, end))])

    def _terms(self, document: Source, part: Span) -> Terms:
        """Terms of each line of a part; none for its context, which is translated."""
        terms = document.terms or [[]] * len(document.sentences)
        return [*[[]] * part.context, *terms[part.start : part.start + part.size]]

    def _given_lines(self, document: Source, part: Span) -> list[list[int]]:
        """Tokens of the given lines of a part; none for its context, which is given in another way."""
        given = (document.given or [None] * len(document.sentences))[part.start : part.start + part.size]
        return [*[[]] * part.context, *([] if line is None else line.tolist() for line in given)]

    @torch.no_grad()
    def translate_parts(
        self,
        tasks: Sequence[tuple[Source, Span, Sequence[Line]]],
        device: torch.device | str,
        observe: Sequence[Observe | None] = (),
    ) -> list[list[Line]]:
        """Translates parts together; the lines of each, without its context.

        Args:
            tasks: for each part, its document, the part, and the lines of the document before it.
            observe: for each part, what watches the search for it; see :mod:`search.watch`.
        """
        found = self._hypotheses(tasks, device, observe)
        return [self._lines(best)[part.context :] for (_, part, _), (best, *_) in zip(tasks, found)]

    @torch.no_grad()
    def alternatives(
        self, document: Source, lines: Sequence[Line], most: int, device: torch.device | str
    ) -> list[list[Line]]:
        """Other translations of each line of a translated document, given the lines before it; the best ones first.

        Args:
            document: the document; its lines are aligned.
            most: maximum number per line; fewer if the beam has fewer.
        """
        found: list[list[Line]] = []
        places = [
            Span(0, i, 1, min(CONTEXTS[0], i - part.start + part.context))
            for part in document.parts
            for i in range(part.start, part.start + part.size)
        ]
        for start in range(0, len(places), REQUIRED):
            tasks = [(document, place, lines[: place.start]) for place in places[start : start + REQUIRED]]
            for (_, place, _), hypotheses in zip(tasks, self._hypotheses(tasks, device)):
                known = {tuple(lines[place.start].tokens.tolist())}
                found.append([])
                for line in (self._lines(hypothesis)[-1] for hypothesis in hypotheses):
                    tokens = tuple(line.tokens.tolist())
                    if tokens not in known and len(found[-1]) < most:
                        found[-1].append(line)
                    known.add(tokens)
                found[-1].sort(key=lambda line: -line.score)
        return found

    def _hypotheses(
        self,
        tasks: Sequence[tuple[Source, Span, Sequence[Line]]],
        device: torch.device | str,
        observe: Sequence[Observe | None] = (),
    ) -> list[list[dict[str, Any]]]:
        """fairseq's hypotheses for each part, the best one first; see :meth:`translate_parts`."""
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
        found = dict(zip(order, hypotheses))
        return [found[i] for i in range(len(tasks))]

    def _lines(self, hypothesis: dict[str, Any]) -> list[Line]:
        tokens, scores = hypothesis["tokens"].cpu(), hypothesis["positional_scores"].float().cpu()
        ended = len(tokens) > 0 and int(tokens[-1]) == self.eos[1]
        lines = []
        for i, (start, end) in enumerate(line_spans(tokens.tolist()[: len(tokens) - ended], self.ends[1])):
            lines.append(
                Line(
                    tokens[start:end],
                    float(scores[start : end + 1].mean()) if len(scores[start : end + 1]) else 0.0,
                    i in hypothesis.get("repaired", ()),
                    i in hypothesis.get("flawed", ()),
                )
            )
        return lines
