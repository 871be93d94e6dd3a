"""A document with a given translation, scored as it is, or as if it had fewer lines or other ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.examples import TooLong
from fairseq_lasformer.documents.part_search import SCORED_TOKENS
from fairseq_lasformer.documents.scoring import against_second, continued, of_spans, total
from fairseq_lasformer.documents.source import joined
from fairseq_lasformer.documents.word_attention import owners_of
from fairseq_lasformer.text.documents import Span
from fairseq_lasformer.text.units import units

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel


class Scores(NamedTuple):
    """Scores of a line's tokens, its end included."""

    own: Tensor  # log probabilities of the tokens, float32 or float64 [N]
    second: Tensor  # those of the most likely other tokens, [N]
    other: Tensor  # these tokens, int64 [N]


class Variant(NamedTuple):
    """Some lines of a document, as a document of their own, in which they are as far apart as they were."""

    lines: Sequence[int]  # their numbers, from 0, ascending
    # sources, targets: int64 tokens of lines that are different in this variant
    sources: Mapping[int, Tensor] = {}
    targets: Mapping[int, Tensor] = {}


class Place(NamedTuple):
    """Some tokens of a line of a translation: its number, the first token, and the token after the last."""

    line: int
    first: int
    end: int


class ForcedDocument:
    """A document and its translation, both as tokens.

    Args:
        model: a :class:`DocumentHubInterface`, whose data has separators.
        source, target: lines of the document and of its translation, none of them blank.
        done: called with the number of variants in each batch that is finished.

    Attributes:
        sources, targets: int64 tokens of each line, without separators and ends.
        parts: parts that fit into the model's examples.
        words: start and end of each word in each line of the translation.

    Raises:
        InputError: there are not as many translations as lines, the model reads single sentences only, or a line is
            too long.
    """

    def __init__(
        self,
        model: BaseFairseqModel,
        source: Sequence[str],
        target: Sequence[str],
        done: Callable[[int], object] = lambda n: None,
    ) -> None:
        if len(source) != len(target):
            raise InputError(f"{len(target)} lines of translation for {len(source)} lines")
        codec = model.codec
        if not codec.separator or codec.resolutions == "sentences":
            raise InputError("the model reads single sentences, so no other line can have decided a word")
        self.model, self.texts, self.done = model, (list(source), list(target)), done
        pieces = [codec.encode_source(line) for line in source], [codec.encode_target(line) for line in target]
        self.sources, self.targets = ([self.encoded(line, side) for line in lines] for side, lines in enumerate(pieces))
        try:
            self.parts: list[Span] = codec.cut(0, *pieces, overlap=model.task.cfg.overlap) if source else []
        except TooLong as e:
            raise InputError(f"line {e.sentence + 1} has {e.tokens} tokens, more than the model's limit") from None
        self.words = [units(line) for line in target]
        self._full: dict[int, Scores] = {}
        self._alone: dict[int, Scores] = {}
        self._owners = [
            [owners_of(text, its.split(), units(text)) for text, its in zip(texts, encoded)]
            for texts, encoded in zip(self.texts, pieces)
        ]

    def encoded(self, pieces: str, side: int) -> Tensor:
        """Return the tokens of subwords, int64, without an end."""
        dictionary = (self.model.src_dict, self.model.tgt_dict)[side]
        tokens: Tensor = dictionary.encode_line(pieces, add_if_not_exist=False, append_eos=False)
        return tokens.long()

    def place(self, line: int, word: int) -> tuple[int, int]:
        """Return the first token of a word of the translation, and the token after it; equal if it has none."""
        its = [i for i, owner in enumerate(self._owners[1][line]) if owner == word]
        return (its[0], its[-1] + 1) if its else (0, 0)

    def is_word(self, line: int, word: int) -> bool:
        """Return whether a word of the translation has a letter or digit; punctuation is explained by nothing."""
        start, end = self.words[line][word]
        return any(character.isalnum() for character in self.texts[1][line][start:end])

    def only(self, line: int, side: int, word: int, keep: bool) -> Tensor:
        """Return a line's tokens of one word alone, or of all others.

        Args:
            side: 0 for the source, 1 for the translation.
        """
        tokens = (self.sources, self.targets)[side][line]
        return tokens[[i for i, owner in enumerate(self._owners[side][line]) if (owner == word) == keep]]

    def before(self, line: int) -> list[int]:
        """Return the numbers of the lines before a line that are read with it, the nearest first."""
        part = self.part(line)
        return list(range(line - 1, part.start - part.context - 1, -1))

    def part(self, line: int) -> Span:
        """Return the part that a line is translated in."""
        return next(part for part in self.parts if part.start <= line < part.start + part.size)

    def whole(self, part: Span) -> list[int]:
        """Return the numbers of all lines of a part, its context included."""
        return list(range(part.start - part.context, part.start + part.size))

    def example(self, variant: Variant) -> tuple[Tensor, Tensor]:
        """Return the tokens of the source and of the translation, each with its tag and ends."""
        sides = (self.sources, variant.sources), (self.targets, variant.targets)
        source, target = (
            self._joined([changed.get(i, lines[i]) for i in variant.lines], side)
            for side, (lines, changed) in enumerate(sides)
        )
        return source, target

    def _joined(self, lines: Sequence[Tensor], side: int) -> Tensor:
        codec, dictionary = self.model.codec, (self.model.src_dict, self.model.tgt_dict)[side]
        tag = dictionary.index(codec.tags[side]) if codec.tags[side] else None
        return joined(lines, dictionary.index(codec.separator), tag, dictionary.eos())

    def _starts(self, variant: Variant) -> dict[int, int]:
        """Return the place of the first token of each line in the translation."""
        place, starts = int(bool(self.model.codec.tags[1])), {}
        for i in variant.lines:
            starts[i] = place
            place += len(variant.targets.get(i, self.targets[i])) + 1
        return starts

    def scores(self, variants: Sequence[Variant]) -> list[dict[int, Scores]]:
        """Return the scores of all lines of variants, by number."""
        model = self.model
        examples = [self.example(variant) for variant in variants]
        lines = [variant.lines for variant in variants]
        scored = against_second(
            model.models[0], model.tgt_dict, examples, SCORED_TOKENS, model.device, self.done, lines
        )
        by_line = []
        for variant, tokens in zip(variants, scored):
            starts = self._starts(variant)
            ends = [*list(starts.values())[1:], len(tokens[0])]
            by_line.append({i: Scores(*(t[a:b] for t in tokens)) for (i, a), b in zip(starts.items(), ends)})
        return by_line

    def likelihoods(self, asked: Sequence[tuple[Variant, Sequence[Place]]]) -> list[list[float]]:
        """Return the log probability of places of the translation in variants of the document."""
        model, spans = self.model, []
        for variant, places in asked:
            starts = self._starts(variant)
            spans.append([(starts[line] + first, starts[line] + end) for line, first, end in places])
        examples = [self.example(variant) for variant, _ in asked]
        lines = [variant.lines for variant, _ in asked]
        return of_spans(model.models[0], model.tgt_dict, examples, spans, SCORED_TOKENS, model.device, self.done, lines)

    def full(self, line: int) -> Scores:
        """Return the scores of a line in its part of the document."""
        if line not in self._full:
            part = self.part(line)
            (lines,) = self.scores([Variant(self.whole(part))])
            self._full |= {i: scores for i, scores in lines.items() if i >= part.start}
        return self._full[line]

    def alone(self, line: int) -> Scores:
        """Return the scores of a line as a document of its own."""
        if line not in self._alone:
            lines = self.whole(self.part(line))
            each = self.scores([Variant([i]) for i in lines])
            self._alone |= {i: scores[i] for i, scores in zip(lines, each)}
        return self._alone[line]

    def bits(self, line: int) -> float:
        """Return the bits that the document is worth to a line's tokens, its end excluded."""
        return (total(self.full(line).own[:-1]) - total(self.alone(line).own[:-1])) / math.log(2)

    def continued(self, beginnings: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        """Complete translations of single lines with the most likely tokens.

        Args:
            beginnings: number of the line, and int64 tokens that its translation begins with.

        Returns:
            the whole translations, int64, without ends; a line stops at twice its length.
        """
        model = self.model
        ends = {model.tgt_dict.eos(), model.tgt_dict.index(model.codec.separator)}
        tag = model.codec.tags[1]
        first = torch.tensor([model.tgt_dict.index(tag)] if tag else [], dtype=torch.int64)
        pairs = [(self._joined([self.sources[line]], 0), torch.cat([first, tokens])) for line, tokens in beginnings]
        most = [2 * len(self.targets[line]) + 10 for line, _ in beginnings]
        continuations = continued(model.models[0], model.tgt_dict, pairs, ends, most, SCORED_TOKENS, model.device)
        return [tokens[len(first) :] for tokens in continuations]

    def text(self, tokens: Tensor) -> str:
        """Return tokens of a translation as text."""
        return str(self.model.codec.decode_line(self.model.tgt_dict.string(tokens)))
