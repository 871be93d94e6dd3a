"""Search for translations of a document's parts: their examples and the beginnings of their translations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import groupby
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
from fairseq_lasformer.search.generator import AlignedGenerator
from fairseq_lasformer.search.line_search import FEWEST, SCORES
from fairseq_lasformer.text.documents import Span

if TYPE_CHECKING:
    from fairseq.tasks import FairseqTask

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

    def check_by_lines(self, what: str) -> None:
        """Refuse what only a search of lines side by side can do; ``what`` names it.

        Raises:
            InputError: this is another search.
        """
        if not self.by_lines:
            raise InputError(
                f"{what}: only where lines are searched side by side, by a model trained with --own-lines and "
                "--source-context-only, in plain beam search, without --align-sentences no and --max-len-a or -b"
            )

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
        sentences = document.sentences[part.start - part.context : part.start + part.size + part.after]
        return joined(sentences, self.ends[0], self.tags[0], self.eos[0])

    def closed(self, tokens: Tensor, side: int) -> Tensor:
        """Enclose tokens in the tag and the end of sentence of a side, 0 for the source and 1 for the target."""
        return closed(tokens, self.tags[side], self.eos[side])

    def _beginning(self, document: Source, part: Span, before: Sequence[Line]) -> Tensor:
        """Return the tokens that a translation begins with: those of the part's context, or a reference's prefix."""
        if document.references is not None and self.prefix_size:
            return document.references[document.parts.index(part)][: self.prefix_size]
        end = torch.tensor([self.ends[1]] if self.ends[1] is not None else [], dtype=torch.int64)
        lines = [line.tokens for line in before[len(before) - part.context :]] if part.context else []
        return torch.cat([torch.tensor([], dtype=torch.int64), *(t for line in lines for t in (line, end))])

    @torch.no_grad()
    def translate_parts(
        self,
        tasks: Sequence[tuple[Source, Span, Sequence[Line]]],
        device: torch.device | str,
        check: Callable[[], object] | None = None,
    ) -> list[list[Line]]:
        """Translate parts together, and return the lines of each, without its context.

        Args:
            tasks: for each part, its document, the part, and the lines of the document before it.
            check: called before every step of the search; an exception ends it.
        """
        if self.by_lines:
            side_by_side = SideBySide(self, [task[:2] for task in tasks], device, check)
            lines = iter(side_by_side.lines())
            return [[next(lines) for _ in range(part.size)] for _, part, _ in tasks]
        hypotheses = self._hypotheses(tasks, device, check)
        translated = [self._lines(best)[part.context :] for (_, part, _), (best, *_) in zip(tasks, hypotheses)]
        if self.independent and self.aligned and self.generator.alignment.repairs and not self.generator.own_length:
            self._repair(tasks, translated, device, check)
        return translated

    def _repair(
        self,
        tasks: Sequence[tuple[Source, Span, Sequence[Line]]],
        translated: list[list[Line]],
        device: torch.device | str,
        check: Callable[[], object] | None,
    ) -> None:
        """Search single sentences that went wrong again, excluding repetitions, as lines side by side are."""
        wrong = [i for i, lines in enumerate(translated) if lines[0].flawed]
        if wrong:
            again = self._hypotheses([tasks[i] for i in wrong], device, check, block=True)
            for i, (best, *_) in zip(wrong, again):
                line = self._lines(best)[0]
                if not line.flawed:
                    translated[i] = [line._replace(repaired=True)]

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
        """Return other translations of each line of a translated document, best first.

        Args:
            most: maximum number per line; fewer if the beam has fewer.

        Raises:
            InputError: see :meth:`check_alternatives`.
        """
        self.check_alternatives()
        if self.by_lines:
            return SideBySide(self, [(document, part) for part in document.parts], device).alternatives(lines, most)
        ranked: list[list[Line]] = []
        for start in range(0, len(document.parts), FEWEST):
            tasks = [(document, part, ()) for part in document.parts[start : start + FEWEST]]
            for (_, part, _), hypotheses in zip(tasks, self._hypotheses(tasks, device)):
                candidates = (self._lines(hypothesis)[-1] for hypothesis in hypotheses)
                ranked.append(others(lines[part.start], candidates, most))
        return ranked

    def check_alternatives(self) -> None:
        """Refuse alternatives of documents that are searched as one sequence.

        Raises:
            InputError: this is such a search.
        """
        if not self.independent:
            self.check_by_lines("alternatives")

    def _hypotheses(
        self,
        tasks: Sequence[tuple[Source, Span, Sequence[Line]]],
        device: torch.device | str,
        check: Callable[[], object] | None = None,
        block: bool = False,
    ) -> list[list[Hypothesis]]:
        """Return fairseq's hypotheses for each part, best first; see :meth:`translate_parts`.

        Raises:
            InputError: there is none.
        """
        examples = [self.example(document, part) for document, part, _ in tasks]
        beginnings = [self._beginning(*task) for task in tasks]
        lengths = torch.tensor([len(example) for example in examples])
        dataset = self.task.build_dataset_for_inference(examples, lengths)
        batch = dataset.collater([dataset[i] for i in range(len(examples))])
        batch = utils.apply_to_sample(lambda t: t.to(device), batch)
        batch |= {"check": check, "block": block}
        order = batch["id"].tolist()  # the collater sorts by length
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
                    False,
                    i in hypothesis.get("flawed", ()),
                )
            )
        return lines
