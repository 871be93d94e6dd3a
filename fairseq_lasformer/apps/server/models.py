"""The models of a server: texts and files in, lines and files out."""

import asyncio
import re
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer import formats
from fairseq_lasformer.apps.files.file_translator import FileTranslator
from fairseq_lasformer.apps.files.journal import Journal
from fairseq_lasformer.apps.files.reading import FileDocument
from fairseq_lasformer.apps.files.translated import TranslatedFile
from fairseq_lasformer.apps.server.engine import Engine, Event
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.documents.because import explain
from fairseq_lasformer.documents.given_lines import Given, check_given, with_given
from fairseq_lasformer.documents.hub import TranslatedLine
from fairseq_lasformer.documents.source import Line, Source
from fairseq_lasformer.documents.streaming import Stopped
from fairseq_lasformer.documents.word_attention import document_attention
from fairseq_lasformer.search.glossary import Glossary
from fairseq_lasformer.translation_memory.remembering import Memory

EXPLAINED = 300
"""Lines of a document whose words are explained: half a minute of two cores."""


class PreparedText(NamedTuple):
    """A file that can be queued."""

    document: FileDocument  # the file as a document
    source: Source  # its tokens
    size: int  # its bytes, unpacked

    @property
    def texts(self) -> list[str]:
        """Its sentences."""
        return self.document.lines

    @property
    def matches(self) -> list[list[dict[str, object]]]:
        """Similar sentences of a memory for each of its sentences; empty without a memory."""
        return [[match.shown() for match in its] for its in self.source.matches or ()]


class ServedModel:
    """A model with its queue.

    Args:
        model: the model, on its device.
        max_tokens: tokens translated together.
        lanes: threads that translate; see :mod:`engine`.
        memory: see :class:`Memory`.
        key: identifies what translations depend on; lines that were kept with another are not used.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        beam: int = 5,
        max_tokens: int = 4096,
        lanes: int = 1,
        memory: Memory | None = None,
        key: str = "",
    ) -> None:
        self.name, self.model, self.key = name, model, key
        self.files = FileTranslator(model, beam, memory=memory)
        if not self.files.whole_documents:
            raise InputError(f"{name}: only models of sentences, and those whose data has a separator, are served")
        translators = [model.translator(beam) for _ in range(lanes)]
        self.reads_documents = translators[0].reads_documents
        self.engine = Engine(translators, model.device, max_tokens)

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of source and target."""
        return self.model.settings.source_lang, self.model.settings.target_lang

    def prepare(
        self,
        data: bytes,
        form: str,
        glossary: str = "",
        encoding: str | None = None,
        given: Given | None = None,
    ) -> PreparedText:
        """Read a file.

        Args:
            form: its format, one of :data:`formats.FORMATS`.
            glossary: lines of source term, tab, target term.
            encoding: encoding of a text file.
            given: translations of some sentences, by their numbers, from 1.
        """
        document = self.files.reader.read(self.files.open(data, form, encoding))
        if given:
            check_given(given, range(1, len(document.lines) + 1), "the text")
            document = document._replace(given=dict(given))
        document = self.files.with_exact(document)
        request = self.files.request(document)
        if glossary.strip():
            terms = Glossary.parse(glossary, "the glossary")
            required = self.files.translator.required_terms(terms, self.files.memory, self.model.codec)
            request = request._replace(required=required)
        return PreparedText(document, self.model.source(request, self.files.translator), formats.size(data, form))

    def finished(self, prepared: PreparedText, lines: list[Line]) -> TranslatedFile:
        """Return the translated file."""
        return self.files.rendered(prepared.document, self.files.with_sources(prepared.document, lines))

    def line(self, prepared: PreparedText, number: int, line: Line) -> TranslatedLine:
        """Return a line of a translation with its source; ``number`` counts from 0."""
        translated: TranslatedLine = self.model.line(number + 1, prepared.texts[number], line)
        return with_given([translated], prepared.document.given)[0]

    def alternatives(self, prepared: PreparedText, lines: list[Line], most: int) -> list[list[str]]:
        """Return other translations of each sentence."""
        ranked = self.files.translator.alternatives(prepared.source, lines, most, self.model.device)
        return [[self.model.line(0, "", line).translation for line in others] for others in ranked]

    def _first_shown(self, source: list[str], target: list[str], line: int) -> int:
        """Return the first of the lines up to ``line`` that fit into the model together; at most 20 before it."""
        codec, filled, first = self.model.codec, [0, 0], line + 1
        most = codec.limit, 4 * codec.limit + 50  # translations may be longer than their source
        while first > max(0, line - 20):
            sides = ((source[first - 1], codec.encode_source), (target[first - 1], codec.encode_target))
            for side, (text, encode) in enumerate(sides):
                # tokens bound characters from below, so a very long line need not be encoded
                long = len(text) > 50 * most[side]
                filled[side] += most[side] + 1 if long else codec.length(encode(text)) + 1
            if filled[0] > most[0] or filled[1] > most[1]:
                break
            first -= 1
        if first > line:
            raise InputError(f"line {line + 1} is longer than the model's limit of {codec.limit} tokens")
        return first

    async def events(
        self, prepared: PreparedText, seconds: float | None, place: Path | None = None
    ) -> AsyncGenerator[Event]:
        """Yield the events of a document until it is done. It is cancelled when nobody iterates any more.

        Args:
            seconds: time limit.
            place: file that keeps its lines, for another server to go on from.
        """
        loop, events, journal = asyncio.get_running_loop(), asyncio.Queue[Event](), Journal(place)
        known = journal.lines(len(prepared.texts), self.files.n_words)
        for number, line in enumerate(known):
            yield Event("line", number, line)
        if not prepared.texts:
            yield Event("done")
            return

        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        job = self.engine.submit(prepared.source, tell, known, journal.add)
        end = None if seconds is None else loop.time() + seconds
        try:
            while True:
                async with asyncio.timeout_at(end):
                    event = await events.get()
                yield event
                if event.kind in ("done", "failed"):
                    return
        finally:
            self.engine.cancel(job)

    def explained(
        self, left: threading.Event, source: list[str], target: list[str], number: int | None = None
    ) -> list[Json]:
        """Return the words of a translation that depend on other lines, or that are ambiguous.

        Args:
            left: set when nobody waits any more; the work then ends.
            source, target: the lines of a document and its translation.
            number: number of the line to explain, from 1; None for all, at most :data:`EXPLAINED`, less thoroughly.
        """
        if number is None and len(source) > EXPLAINED:
            raise InputError(f"because: {len(source)} lines; at most {EXPLAINED} are explained together")
        if len(source) != len(target):
            raise InputError(f"target_lines: {len(target)} lines for {len(source)}")
        if number is not None and not 1 <= number <= len(source):
            raise InputError(f"number: there is no line {number}")

        def look(n: int) -> None:
            if left.is_set():
                raise Stopped

        lines = [(i, *sides) for i, sides in enumerate(zip(source, target), 1)]
        explanation = explain(self.model, lines, None if number is None else [number], done=look)
        words: list[Json] = explanation.as_dict()["words"]
        return words

    def attended(
        self, source: list[str], target: list[str], line: int, word: int, most: int = 12
    ) -> dict[str, list[list[Any]]]:
        """Return the words that the model attends to when it writes a word: source words, and words written before.

        Args:
            source, target: the lines of a document and its translation.
            line, word: number of the line, and of its word, from 0; words are separated by spaces.
            most: maximum number of words to return.

        Returns:
            for ``source`` and ``target``, line, word and weight of each, the highest first; none for dense models.
        """
        if line >= min(len(source), len(target)) or word >= len(_words(target[line])):
            raise InputError("line, word: there is no such word")
        first = self._first_shown(source, target, line)
        here = slice(first, line + 1)
        attention = document_attention(self.model, source[here], target[here], _words)
        row = next((i for i, place in enumerate(attention.target) if place == (line - first, word)), None)

        def best(module: str, places: list[tuple[int, int]]) -> list[list[Any]]:
            weights = attention.mean(module)
            if weights is None or row is None:
                return []
            ranked = sorted(enumerate(weights[row].tolist()), key=lambda item: -item[1])
            ranked = [(i, weight) for i, weight in ranked if weight > 0.02 and not (module == "decoder" and i == row)]
            return [[places[i][0] + first, places[i][1], round(weight, 4)] for i, weight in ranked[:most]]

        return {"source": best("cross", attention.source), "target": best("decoder", attention.target)}


def _words(text: str) -> list[tuple[int, int]]:
    """Find the words of a line as the page separates them: by space."""
    return [word.span() for word in re.finditer(r"\S+", text)]


def name_of(path: Path) -> str:
    """Return a model's name, which does not reveal its path."""
    return path.name if path.is_dir() else path.parent.name or path.stem
