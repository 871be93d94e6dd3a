"""Conversion between sentences and examples: the limit, the separator, cutting and joining.

Preparation, translation from Python and contrastive scoring all use this module, so at inference a model sees text in
the form it was trained on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.subwords import DataConfig, SubwordCodec
from fairseq_lasformer.text.documents import Span, chunks, parts


def line_spans(tokens: Sequence[Any], separator: Any) -> list[tuple[int, int]]:
    """Return the start and end of each line of an example, between separators; always at least one line."""
    ends = [i for i, token in enumerate(tokens) if token == separator]
    return list(zip([0, *(end + 1 for end in ends)], [*ends, len(tokens)]))


class TooLong(Exception):
    """A sentence is too long for any example.

    Attributes:
        side: 0 for the source, 1 for the target.
        sentence: index of the sentence in its document.
        tokens: number of tokens of the sentence.
    """

    def __init__(self, side: int, sentence: int, tokens: int) -> None:
        super().__init__(f"sentence {sentence + 1} has {tokens} tokens")
        self.side, self.sentence, self.tokens = side, sentence, tokens


class ExampleRule:
    """Rule by which a prepared folder turns sentences into examples."""

    def __init__(self, settings: DataConfig) -> None:
        self.limit, self.room, self.separator = settings.limit, settings.room, settings.separator
        self.tags = settings.tags
        self.resolutions, self.max_lines = settings.resolutions, settings.max_lines

    def length(self, sentence: str) -> int:
        """Count the tokens that an encoded sentence takes up in an example.

        A separator precedes every sentence but the first; counting one for each sentence keeps the bound simple.
        """
        return self.taken(len(sentence.split()))

    def taken(self, tokens: int) -> int:
        """Return the same of a sentence with that many tokens."""
        return tokens + bool(self.separator)

    def cut(self, document: int, *sides: Sequence[str], overlap: int = 0) -> list[Span]:
        """Cut a document into parts whose examples have at most ``limit`` tokens, end of sentence included.

        No part has more than ``max_lines`` sentences.

        Args:
            document: its number.
            sides: encoded sentences of every side that counts, the same number on each.
            overlap: see :func:`parts`.
        """
        return self.cut_lengths(document, *(map(self.length, side) for side in sides), overlap=overlap)

    def cut_lengths(self, document: int, *sides: Iterable[int], overlap: int = 0, windows: bool = False) -> list[Span]:
        """See :meth:`cut`; of the sentences, what :meth:`length` counts."""
        lengths = list(map(list, zip(*sides, strict=True)))
        for i, pair in enumerate(lengths):
            if max(pair) > self.room:
                raise TooLong(pair.index(max(pair)), i, max(pair))
        if self.max_lines:
            most = self.room
            if (self.max_lines + 1) * (most // self.max_lines) <= most:
                raise InputError(f"--max-lines {self.max_lines}: too many for a --limit of {self.limit}")
            for pair in lengths:  # like another side, which is full after that many sentences
                pair.append(most // self.max_lines)
        return parts(document, lengths, self.room, overlap, windows)

    def examples(self, part: Span, training: bool = False) -> list[Span]:
        """Return the examples of one part.

        In training, the part at every resolution; in translation, the part itself, or its sentences if the model was
        trained on single sentences.

        Args:
            training: whether the examples are for training.
        """
        known = self.resolutions if training or self.resolutions == "sentences" else "documents"
        return [part] if known == "documents" else list(chunks(part, known))

    def join(self, sentences: Sequence[str], side: int) -> str:
        """Join encoded sentences into one example, after the tag of its side: 0 for the source, 1 for the target."""
        joined = (f" {self.separator} " if self.separator else " ").join(sentences)
        return f"{self.tags[side]} {joined}" if self.tags[side] else joined

    def split(self, example: str) -> list[str]:
        """Split a translation into its sentences, as far as separators delimit them."""
        if not self.separator:
            return [example]
        tokens = example.split()
        return [" ".join(tokens[start:end]) for start, end in line_spans(tokens, self.separator)]

    @property
    def keeps_boundaries(self) -> bool:
        """Return whether translations preserve sentence boundaries."""
        return bool(self.separator) or self.resolutions == "sentences"


class ExampleCodec(ExampleRule):
    """The example rule together with the subwords of a prepared folder."""

    def __init__(self, folder: str | Path, settings: DataConfig) -> None:
        super().__init__(settings)
        self.settings = settings
        self.subwords = SubwordCodec.of(folder, settings)

    @classmethod
    def load(cls, folder: str | Path) -> ExampleCodec:
        """Load the codec of a prepared folder."""
        return cls(folder, DataConfig.load(folder))

    def encode_source(self, sentence: str) -> str:
        """Encode a raw source sentence as subword tokens, separated by spaces."""
        return self.subwords.encode(sentence, self.settings.source_lang)

    def encode_target(self, sentence: str) -> str:
        """Encode a raw target sentence as subword tokens, separated by spaces."""
        return self.subwords.encode(sentence, self.settings.target_lang)

    def decode_line(self, line: str) -> str:
        """Decode a line of a translation to text."""
        return self.subwords.decode(line, self.settings.target_lang)

    def decode(self, example: str) -> list[str]:
        """Decode a translation to the text of its sentences."""
        return [self.decode_line(sentence) for sentence in self.split(example)]


class LineCodec:
    """The codec in the form that fairseq's tools expect: one line per example, with tabs between its sentences.

    The separator is also a boundary, if it occurs as a word of the line.
    """

    def __init__(self, codec: ExampleCodec) -> None:
        self.codec = codec

    def encode(self, line: str) -> str:
        """Encode a source document as subword tokens, identical to those produced by the preparation."""
        pieces = line.split("\t")
        if separator := self.codec.separator:
            pieces = [s for piece in pieces for s in re.split(rf"(?<!\S){re.escape(separator)}(?!\S)", piece)]
        sentences = [s.strip() for s in pieces if s.strip()]
        return self.codec.join([self.codec.encode_source(s) for s in sentences], 0)

    def decode(self, tokens: str) -> str:
        """Decode a translation to text."""
        return "\t".join(self.codec.decode(tokens))
