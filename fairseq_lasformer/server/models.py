"""The models of a server, and what a client asks of one: texts and files in, lines and files out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer import formats
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.formats import OpenFile
from fairseq_lasformer.formats.sentences import Sentence
from fairseq_lasformer.inference.any_file import FileTranslator, TranslatedFile
from fairseq_lasformer.inference.attention import attention_of, of_module
from fairseq_lasformer.inference.glossary import Glossary
from fairseq_lasformer.inference.translator import Line, Source
from fairseq_lasformer.server.engine import Engine, Event


class Prepared(NamedTuple):
    """A file that can be queued.

    Attributes:
        file: the file.
        blocks: the sentences of its blocks.
        texts: all of its sentences.
        cut: how many were too long and had to be cut.
        source: its tokens.
    """

    file: OpenFile
    blocks: list[list[Sentence]]
    texts: list[str]
    cut: int
    source: Source


class ServedModel:
    """A model with its queue.

    Args:
        name: what clients call it.
        model: the model, on its device.
        beam: beam size.
        max_tokens: tokens translated together.
        max_jobs: most documents in the queue.
        lanes: threads that translate; see :mod:`engine`.

    Raises:
        InputError: its lines are not aligned.
    """

    def __init__(
        self, name: str, model: Any, beam: int = 5, max_tokens: int = 4096, max_jobs: int = 256, lanes: int = 1
    ) -> None:
        self.name, self.model = name, model
        self.files = FileTranslator(model, beam)
        if not self.files.whole_documents:
            raise InputError(f"{name}: only models whose data has a separator are served")
        self.engine = Engine([model.translator(beam) for _ in range(lanes)], model.device, max_tokens, max_jobs)

    @property
    def languages(self) -> tuple[str, str]:
        """Codes of source and target."""
        return self.model.settings.source_lang, self.model.settings.target_lang

    def prepare(self, data: bytes, form: str, glossary: str = "", encoding: str | None = None) -> Prepared:
        """Reads a file.

        Args:
            data: the file.
            form: its format, one of :data:`formats.FORMATS`.
            glossary: lines of source term, tab, target term.
            encoding: encoding of a text file.

        Raises:
            InputError: it cannot be read, or the glossary is wrong.
        """
        file = formats.read(data, form, encoding)
        blocks, cut = self.files.sentences(file)
        texts = [sentence.text for block in blocks for sentence in block]
        required = None
        if glossary.strip():
            required = self.files.translator.required(Glossary.parse(glossary, "the glossary"), self.model.codec)
        source = self.model.source(0, "\n".join(texts), self.files.translator, None, required)
        return Prepared(file, blocks, texts, cut, source)

    def finished(self, prepared: Prepared, lines: list[Line]) -> TranslatedFile:
        """The translated file."""
        told = self.files.told(prepared.texts, lines)
        return self.files.written(prepared.file, prepared.blocks, prepared.cut, told)

    def alternatives(self, prepared: Prepared, lines: list[Line], most: int) -> list[list[str]]:
        """Other translations of each sentence."""
        found = self.files.translator.alternatives(prepared.source, lines, most, self.model.device)
        return [[self.model.line(0, "", line).translation for line in others] for others in found]

    async def events(self, prepared: Prepared, seconds: float) -> AsyncGenerator[Event]:
        """What happens to a document, until it is done. It is cancelled when nobody iterates any more.

        Raises:
            Full: the queue is full.
            TimeoutError: it takes longer than ``seconds``.
        """
        loop, found = asyncio.get_running_loop(), asyncio.Queue[Event]()
        if not prepared.texts:
            yield Event("done")
            return
        job = self.engine.submit(prepared.source, lambda event: loop.call_soon_threadsafe(found.put_nowait, event))
        end = time.monotonic() + seconds
        try:
            while True:
                event = await asyncio.wait_for(found.get(), max(0.0, end - time.monotonic()))
                yield event
                if event.kind in ("done", "failed"):
                    return
        finally:
            self.engine.cancel(job)

    def attended(
        self, source: list[str], target: list[str], line: int, word: int, most: int = 12
    ) -> dict[str, list[list[Any]]]:
        """The words that the model attends to when it writes a word: those of the source, and those it wrote before.

        Args:
            source, target: the lines of a document and its translation.
            line, word: number of the line, and of its word, from 0; words are separated by spaces.
            most: how many words to give.

        Returns:
            for ``source`` and ``target``, line, word and weight of each, the highest first; none for dense models.
        """
        codec = self.model.codec
        first = max(0, line - 20)  # what fits into the model is enough to see
        sides = []
        for texts, encode, dictionary in (
            (source, codec.encode_source, self.model.src_dict),
            (target, codec.encode_target, self.model.tgt_dict),
        ):
            pieces, owners = [], []
            for i in range(first, min(line + 1, len(texts))):
                for j, text in enumerate(texts[i].split()):
                    tokens = encode(text).split()
                    pieces += tokens
                    owners += [(i, j)] * len(tokens)
                pieces.append(codec.separator)
                owners.append((-1, -1))
            index = dictionary.encode_line(" ".join(pieces[:-1]), add_if_not_exist=False).long()
            sides.append((index.to(self.model.device), owners[:-1]))
        (tokens, columns), (words, rows) = sides
        attention = attention_of(self.model.models[0], tokens, words)
        here = [i for i, owner in enumerate(rows) if owner == (line, word)]

        def best(module: str, owners: list[tuple[int, int]]) -> list[list[Any]]:
            found = of_module(attention, module)
            if found is None or not here:
                return []
            summed: dict[tuple[int, int], float] = {}
            for owner, weight in zip(owners, found[here].mean(0).tolist()):
                if owner[0] >= 0 and not (module == "decoder" and owner == (line, word)):
                    summed[owner] = summed.get(owner, 0.0) + weight
            ranked = sorted(summed.items(), key=lambda item: -item[1])[:most]
            return [[*owner, round(weight, 4)] for owner, weight in ranked if weight > 0.02]

        # column j of the decoder's attention is the input of step j: the token before
        return {"source": best("cross", columns), "target": best("decoder", [(-1, -1), *rows])}


def name_of(path: Path) -> str:
    """What a model is called, without giving its place away."""
    return path.name if path.is_dir() else path.parent.name or path.stem
