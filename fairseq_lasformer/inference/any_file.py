"""Translates files of any known format: one document each, whose structure stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import replacing
from fairseq_lasformer.formats import OpenFile
from fairseq_lasformer.formats.compose import compose
from fairseq_lasformer.formats.sentences import Sentence, Splitter, sentences, splitter, trimmed, whole
from fairseq_lasformer.inference.attention import word_alignment
from fairseq_lasformer.inference.glossary import Glossary
from fairseq_lasformer.inference.translator import Line, Source
from fairseq_lasformer.plugin.hub import DocumentHubInterface, TranslatedLine


class TranslatedSentence(NamedTuple):
    """A translated sentence.

    Attributes:
        line: the sentence and its translation.
        others: other translations of it, the best ones first, each with its score.
    """

    line: TranslatedLine
    others: list[tuple[str, float]]


class Counts(NamedTuple):
    """What happened to the sentences of a file.

    Attributes:
        sentences: how many there are.
        repaired: that had gone wrong and were translated again.
        flawed: their numbers, from 1, of those that could not be repaired.
        cut: that were too long for the model, and were translated in pieces.
        cleaned: that contained control characters.
        lost: pieces of markup whose text is empty now.
    """

    sentences: int
    repaired: int
    flawed: tuple[int, ...]
    cut: int
    cleaned: int
    lost: int

    def told(self) -> str:
        """The counts in words."""
        words = [f"{self.sentences} sentence{'' if self.sentences == 1 else 's'}"]
        if self.repaired:
            words.append(f"{self.repaired} translated again")
        if self.flawed:
            more = ", …" if len(self.flawed) > 10 else ""
            words.append(f"{len(self.flawed)} doubtful (number {', '.join(map(str, self.flawed[:10]))}{more})")
        if self.cut:
            words.append(f"{self.cut} too long and cut")
        if self.cleaned:
            words.append(f"{self.cleaned} with control characters, which were left out")
        if self.lost:
            words.append(f"{self.lost} with markup that is empty now")
        return ", ".join(words)


class TranslatedFile(NamedTuple):
    """A translated file.

    Attributes:
        data: the file.
        lines: its sentences.
        counts: what happened to them.
    """

    data: bytes
    lines: list[TranslatedSentence]
    counts: Counts


class FileTranslator:
    """Translates files with a model.

    Args:
        model: a loaded model.
        beam: beam size.
        overlap: see :meth:`DocumentHubInterface.translate_documents`.
        glossary: required translations.
        lines: each line is one sentence; by default, sentences are looked for.
        alternatives: number of further translations of each sentence.
        max_tokens: maximum number of tokens per batch.
        options: further options of fairseq's generation.

    Raises:
        InputError: an option is unknown, or the glossary cannot be used.
    """

    def __init__(
        self,
        model: DocumentHubInterface,
        beam: int = 5,
        overlap: int | None = None,
        glossary: Glossary | str | Path | None = None,
        lines: bool = False,
        alternatives: int = 0,
        max_tokens: int = 8192,
        **options: Any,
    ) -> None:
        self.model, self.overlap, self.max_tokens, self.most = model, overlap, max_tokens, alternatives
        self.translator = model.translator(max(beam, alternatives + 1), **options)
        self.required = None if glossary is None else self.translator.required(glossary, model.codec)
        self.split = whole if lines else splitter(model.settings.source_lang)
        # without separators, the lines of a document are only known if each is translated by itself
        self.whole_documents = bool(model.codec.separator) and model.settings.resolutions != "sentences"

    def sentences(self, file: OpenFile) -> tuple[list[list[Sentence]], int]:
        """The sentences of each block, none longer than the model's limit; and how many had to be cut."""
        cuts = [0]
        return [sentences(block, self._fitting(cuts)) for block in file.blocks], cuts[0]

    def translate(
        self,
        files: Sequence[OpenFile],
        tick: Callable[[int], object] = lambda n: None,
        journals: Sequence[Path | None] | None = None,
        begin: Callable[[int], object] = lambda n: None,
    ) -> list[TranslatedFile]:
        """Translates files together; each is one document.

        Args:
            files: the files.
            tick: called with a number of translated sentences.
            journals: for each file, where its lines are kept until it is done, so that a killed run resumes there.
            begin: called with the number of all sentences.
        """
        split = [self.sentences(file) for file in files]
        texts = [[s.text for block in found for s in block] for found, _ in split]
        begin(sum(map(len, texts)))
        documents = [Journal(path) for path in journals or [None] * len(files)]
        lines = self._lines(texts, tick, documents)
        return [
            self.written(file, found, cut, translated) for file, (found, cut), translated in zip(files, split, lines)
        ]

    def _fitting(self, cuts: list[int]) -> Splitter:
        """The splitter, with sentences beyond the limit cut between words."""
        codec = self.model.codec

        def fits(text: str) -> bool:
            return codec.length(codec.encode_source(" ".join(text.split()))) < codec.limit

        def pieces(text: str, start: int, end: int) -> Iterable[tuple[int, int]]:
            # characters bound the subwords: most sentences need not be encoded twice
            if end - start < codec.limit // 2 or fits(text[start:end]) or end - start < 2:
                return [(start, end)]
            cuts[0] += 1
            middle = (start + end) // 2
            places = [i for i in range(start + 1, end) if text[i].isspace()]
            stops = [i for i in places if text[i - 1] in ",;:–—"]
            cut = min(stops or places or [middle], key=lambda i: abs(i - middle))
            return [*pieces(text, start, cut), *pieces(text, cut, end)]

        def split(text: str) -> list[tuple[int, int]]:
            return [
                place for span in self.split(text) for piece in pieces(text, *span) for place in trimmed(text, *piece)
            ]

        return split

    def _lines(
        self, texts: Sequence[Sequence[str]], tick: Callable[[int], object], journals: Sequence[Journal]
    ) -> list[list[TranslatedSentence]]:
        if self.whole_documents:
            sources = [self._source(text) for text in texts]
            known = [journal.lines() for journal in journals]
        else:
            sources = [self._source([sentence]) for text in texts for sentence in text]
            known = [[] for _ in sources]
        here = [i for i, source in enumerate(sources) if source.sentences]
        found: dict[int, list[Line]] = {}
        for group in self.translator.groups([sources[i] for i in here], self.max_tokens):
            chosen = [here[i] for i in group]
            tick(sum(len(known[i]) for i in chosen))

            def done(number: int, lines: list[Line], chosen: list[int] = chosen) -> None:
                tick(len(lines))
                if self.whole_documents:
                    journals[chosen[number]].add(lines)

            batch = [sources[i] for i in chosen]
            before = [known[i] for i in chosen]
            found |= dict(zip(chosen, self.translator.translate(batch, self.model.device, before, done)))
        translated = [found.get(i, []) for i in range(len(sources))]
        if self.whole_documents:
            others = [self._others(source, lines) for source, lines in zip(sources, translated)]
            return [self.told(*document) for document in zip(texts, translated, others)]
        flat = iter(translated)
        return [self.told(text, [line for _ in text for line in next(flat)]) for text in texts]

    def _source(self, text: Sequence[str]) -> Source:
        return self.model.source(0, "\n".join(text), self.translator, self.overlap, self.required)

    def _others(self, source: Source, lines: list[Line]) -> list[list[Line]]:
        """Other translations of each line, if there are to be some."""
        if not self.most:
            return []
        return self.translator.alternatives(source, lines, self.most, self.model.device)

    def told(
        self, texts: Sequence[str], lines: Sequence[Line], others: Sequence[Sequence[Line]] = ()
    ) -> list[TranslatedSentence]:
        """Sentences beside their translations, as text.

        Args:
            texts: the sentences of a document.
            lines: the translation of each.
            others: other translations of each; empty for none.

        Raises:
            InputError: there are not as many translations as sentences.
        """
        if len(texts) != len(lines):
            raise InputError(
                f"{len(texts)} sentences have {len(lines)} translations; this model cannot keep lines apart"
            )

        found = []
        for i, line in enumerate(lines):
            more = [self.model.line(i + 1, texts[i], other) for other in (others[i] if others else ())]
            best = self.model.line(i + 1, texts[i], line)
            found.append(TranslatedSentence(best, [(other.translation, other.score) for other in more]))
        return found

    def written(
        self, file: OpenFile, found: list[list[Sentence]], cut: int, lines: list[TranslatedSentence]
    ) -> TranslatedFile:
        """A file made of its translated sentences."""
        following = iter(lines)
        segments, lost = [], 0
        for block, here in zip(file.blocks, found):
            translations = [next(following).line.translation for _ in here]
            made = compose(block, here, translations, lambda a, b: word_alignment(self.model, a, b))
            segments.append(made.segments)
            lost += made.lost
        counts = Counts(
            len(lines),
            sum(line.line.repaired for line in lines),
            tuple(line.line.number for line in lines if line.line.flawed),
            cut,
            sum(sentence.cleaned for here in found for sentence in here),
            lost,
        )
        return TranslatedFile(file.write(segments), lines, counts)


class Journal:
    """The lines of a document that have been translated so far, in a file.

    Args:
        path: the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def lines(self) -> list[Line]:
        """The lines that were kept; what a kill cut short is left out."""
        if self.path is None or not self.path.exists():
            return []
        kept = self.path.read_text(encoding="utf-8").split("\n")[:-1]
        found: list[Line] = []
        for text in kept:
            found += [Line(torch.tensor(tokens, dtype=torch.int64), *rest) for tokens, *rest in json.loads(text)]
        whole = "".join(line + "\n" for line in kept)
        if self.path.stat().st_size != len(whole.encode()):
            with replacing(self.path) as file:
                file.write(whole)
        return found

    def add(self, lines: list[Line]) -> None:
        """Keep the lines of a part."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps([[line.tokens.tolist(), *line[1:]] for line in lines]) + "\n")
