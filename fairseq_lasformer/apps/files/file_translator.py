"""Translation of files of any known format: one document each, whose structure is preserved."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_lasformer import formats
from fairseq_lasformer.apps.files.journal import Journal
from fairseq_lasformer.apps.files.reading import FileDocument, FileReader, Given
from fairseq_lasformer.apps.files.translated import SentenceCounts, TranslatedFile, TranslatedSentence
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.hub import DocumentHubInterface
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.documents.source import Line, Source
from fairseq_lasformer.documents.word_attention import word_alignment
from fairseq_lasformer.evaluation.doubts import doubts, lost_numbers
from fairseq_lasformer.formats import Finishing, OpenFile
from fairseq_lasformer.formats.compose import compose
from fairseq_lasformer.search.glossary import Glossary
from fairseq_lasformer.translation_memory.remembering import Memory


class FileTranslator:
    """A translator of files, with a model.

    Args:
        overlap: see :meth:`DocumentHubInterface.translate_documents`.
        lines: each line is one sentence; by default, sentences are detected.
        alternatives: number of further translations of each sentence.
        max_tokens: maximum number of tokens per batch.
        unreviewed: whether finished texts that need a review are also read as context.
        memory: see :class:`Memory`.
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
        unreviewed: bool = False,
        memory: Memory | None = None,
        **options: Any,
    ) -> None:
        self.model, self.overlap, self.max_tokens, self.most = model, overlap, max_tokens, alternatives
        self.memory = memory
        self.translator = model.translator(max(beam, alternatives + 1), **options)
        if alternatives:
            self.translator.check_alternatives()
        self.required = self.translator.required_terms(glossary, memory, model.codec)
        self.unknown, self.n_words = model.src_dict.unk(), len(model.tgt_dict)
        spelled = None if self.required or memory else functools.cache(self._spells)
        self.reader = FileReader(model.codec, lines, unreviewed, functools.cache(self._knows_not), spelled)
        # without separators, the lines of a document are only known if each is translated by itself
        self.whole_documents = model.codec.keeps_boundaries

    def _knows_not(self, symbols: str) -> bool:
        """Return whether the model does not know some symbols."""
        text = self.model.codec.encode_source(symbols)
        tokens = self.model.src_dict.encode_line(text, add_if_not_exist=False, append_eos=False)
        return bool((tokens == self.unknown).any())

    def _spells(self, name: str) -> bool:
        """Return whether the model's subwords spell a name, in one piece for every two characters, or more."""
        pieces = len(self.model.codec.encode_source(name).split())
        return pieces > 2 and 2 * pieces >= len(name)

    def open(
        self,
        data: bytes,
        form: str,
        encoding: str | None = None,
        finishing: Finishing = Finishing(),  # noqa: B008
        any_language: bool = False,
    ) -> OpenFile:
        """Read a file to translate; see :func:`formats.read`.

        Args:
            any_language: also a file that states other languages than the model's.
        """
        file = formats.read(data, form, encoding, finishing, *self.languages)
        if not any_language:
            formats.check_languages(file, *self.languages)
        return file

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of source and target language."""
        return self.model.settings.source_lang, self.model.settings.target_lang

    def translate(
        self,
        files: Sequence[OpenFile],
        tick: Callable[[int], object] = lambda n: None,
        journals: Sequence[Path | None] | None = None,
        begin: Callable[[int, int], object] = lambda n, tokens: None,
        given: Sequence[Given | None] | None = None,
    ) -> list[TranslatedFile]:
        """Translate files together, each as one document; see :meth:`translate_each`."""
        translated: dict[int, TranslatedFile] = {}
        for i, file in self.translate_each(files, tick, journals, begin, given):
            if isinstance(file, InputError):
                raise file
            translated[i] = file
        return [translated[i] for i in range(len(files))]

    def translate_each(
        self,
        files: Sequence[OpenFile],
        tick: Callable[[int], object] = lambda n: None,
        journals: Sequence[Path | None] | None = None,
        begin: Callable[[int, int], object] = lambda n, tokens: None,
        given: Sequence[Given | None] | None = None,
    ) -> Iterator[tuple[int, TranslatedFile | InputError]]:
        """Translate files together, each as one document, and yield each when its last sentence is done.

        Args:
            tick: called with numbers of translated sentences.
            journals: for each file, a place to keep its lines until it is done, for a killed run to resume from.
            begin: called with the total number of sentences, and of their tokens.
            given: for each file, what is known of its translation.

        Yields:
            the number of a file, and the translated file, or the reason why it could not be written.
        """
        read = [self.with_exact(self.reader.read(file, its)) for file, its in zip(files, given or [None] * len(files))]
        documents = [Journal(path) for path in journals or [None] * len(files)]
        for i, lines, unknown in self._documents(read, tick, documents, begin):
            if isinstance(lines, InputError):
                yield i, lines
                continue
            try:
                result = self.rendered(read[i], lines)
                yield i, result._replace(counts=result.counts._replace(unknown=unknown))
            except InputError as e:
                yield i, e

    def with_exact(self, document: FileDocument) -> FileDocument:
        """Return a document that also gives the sentences found verbatim in the memory."""
        if self.memory is None:
            return document
        free = {i + 1: document.lines[i] for i in document.own if i + 1 not in document.given}
        exact = self.memory.exact_lines(free)
        return document._replace(given={**document.given, **exact}, exact=len(exact))

    def _documents(
        self,
        read: Sequence[FileDocument],
        tick: Callable[[int], object],
        journals: Sequence[Journal],
        begin: Callable[[int, int], object],
    ) -> Iterator[tuple[int, list[TranslatedSentence] | InputError, float]]:
        """Translate documents, and yield each when it is done.

        Yields:
            its number, its lines, or why they cannot be told apart, and the share of unknown tokens.
        """
        requests = [self.request(document) for document in read]
        owner = list(range(len(read)))
        if not self.whole_documents:
            owner = [i for i, request in enumerate(requests) for _ in request.sentences]
            requests = [r._replace(sentences=[s], given=None) for r in requests for s in r.sentences]
        sources = [self.model.source(request, self.translator) for request in requests]
        tokens = sum(len(line) for source in sources for line in source.sentences)
        begin(sum(len(document.lines) for document in read), tokens)
        known: list[list[Line]] = [[] for _ in sources]
        if self.whole_documents:
            known = [journal.lines(len(d.lines), self.n_words) for journal, d in zip(journals, read)]
        waiting = collections.Counter(owner)
        translated: dict[int, dict[int, list[Line]]] = {i: {} for i in range(len(read))}

        def finished(document: int) -> tuple[int, list[TranslatedSentence], float]:
            parts = [source for i, source in zip(owner, sources) if i == document]
            tokens = torch.cat([t for source in parts for t in source.sentences] or [torch.empty(0)])
            unknown = float((tokens == self.unknown).float().mean()) if tokens.numel() else 0.0
            lines = [line for _, its in sorted(translated[document].items()) for line in its]
            if not self.whole_documents:
                return document, self.with_sources(read[document], lines), unknown
            source = sources[document]
            shown = self.with_sources(read[document], lines, self._others(source, lines), source)
            return document, shown, unknown

        def settled(document: int) -> tuple[int, list[TranslatedSentence] | InputError, float]:
            try:
                return finished(document)
            except InputError as e:
                return document, e, 0.0

        def done(number: int, lines: list[Line]) -> None:
            tick(len(lines))
            if self.whole_documents:
                journals[number].add(lines)

        for document, one in enumerate(read):
            if not one.lines:
                yield finished(document)
        resumed = lambda i: tick(len(known[i]))  # noqa: E731
        device = self.model.device
        for i, lines in self.translator.translate_all(sources, self.max_tokens, device, known, done, resumed):
            translated[owner[i]][i] = lines
            waiting[owner[i]] -= 1
            if not waiting[owner[i]]:
                yield settled(owner[i])

    def request(self, document: FileDocument) -> Request:
        """Return what is asked of a document."""
        return Request(
            document.lines,
            given=document.given,
            required=self.required,
            memory=self.memory,
            overlap=self.overlap,
        )

    def source(self, document: FileDocument) -> Source:
        """Return the tokens of a document."""
        return self.model.source(self.request(document), self.translator)

    def _others(self, source: Source, lines: list[Line]) -> list[list[Line]]:
        """Return other translations of each line, if any are wanted."""
        if not self.most:
            return []
        return self.translator.alternatives(source, lines, self.most, self.model.device)

    def with_sources(
        self,
        document: FileDocument,
        lines: Sequence[Line],
        others: Sequence[Sequence[Line]] = (),
        source: Source | None = None,
    ) -> list[TranslatedSentence]:
        """Pair the sentences of a document with their translations, as text.

        Args:
            lines: the translations of all lines read.
            others: other translations of each; empty for none.
            source: the translated source, with the matches of a memory.
        """
        texts = document.lines
        if len(texts) != len(lines):
            raise InputError(
                f"{len(texts)} sentences have {len(lines)} translations; this model cannot keep lines apart"
            )

        pieces = []
        for number, i in enumerate(document.own, 1):
            text, upper = document.capitals.get(i, texts[i]), i in document.capitals
            more = [self.model.line(number, text, other) for other in (others[i] if others else ())]
            best = self.model.line(number, text, lines[i])
            best = best._replace(translation=document.given.get(i + 1, best.translation))
            if upper:
                best, *more = (one._replace(translation=one.translation.upper()) for one in (best, *more))
            matches = source.matches[i] if source is not None and source.matches is not None else ()
            pieces.append(TranslatedSentence(best, [(other.translation, other.score) for other in more], matches))
        return pieces

    def rendered(self, document: FileDocument, lines: list[TranslatedSentence]) -> TranslatedFile:
        """Make a file of its translated sentences."""
        following = iter(lines)
        segments: list[Sequence[str]] = []
        lost, guessed, lines = 0, 0, []
        for i, (block, shown, here) in enumerate(zip(document.file.blocks, document.hidden, document.sentences)):
            its = [next(following)._replace(names=shown.names(sentence.segments)) for sentence in here]
            hidden = document.kept.get(i, ())
            if len(hidden) == len(block.segments):
                segments.append(hidden)
                lines += its
                continue
            translations = [one.line.translation for one in its]
            composed = compose(shown.block, here, translations, lambda a, b: word_alignment(self.model, a, b))
            segments.append(shown.segments(composed.segments))
            lines += [one._replace(said=said) for one, said in zip(its, composed.sentences)]
            lost, guessed = lost + composed.lost, guessed + composed.guessed
        lines = [line._replace(doubts=reasons) for line, reasons in zip(lines, doubts([line.pair for line in lines]))]
        data = document.file.write(segments)
        room = ((block.place.most, sum(map(len, texts))) for block, texts in zip(document.file.blocks, segments))
        counts = SentenceCounts(
            len(lines),
            sum(line.line.repaired for line in lines),
            tuple((line.line.number, line.source) for line in lines if line.doubts),
            document.cut,
            sum(sentence.cleaned for here in document.sentences for sentence in here),
            lost,
            context=document.n_context,
            exact=document.exact,
            given=sum(i + 1 in document.given for i in document.own) - document.exact,
            numberless=tuple((line.line.number, line.source) for line in lines if lost_numbers(line.pair)),
            unread=document.file.unread,
            units=document.file.units,
            guessed=guessed,
            left_out=document.file.left_out(data),
            long=sum(0 < most < length for most, length in room),
        )
        return TranslatedFile(data, lines, counts)
