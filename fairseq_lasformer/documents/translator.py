"""Document translation with a model in memory: the translator shared by :mod:`hub` and ``lasformer generate``.

A document that is longer than the model's limit is translated in parts, one after another. Each part begins with the
last sentences of the previous part, and their translation, as context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.examples import ExampleCodec
from fairseq_lasformer.documents.part_search import PartSearch
from fairseq_lasformer.documents.requiring import require_terms
from fairseq_lasformer.documents.source import Line, Source
from fairseq_lasformer.search.batching import batches
from fairseq_lasformer.search.glossary import Glossary
from fairseq_lasformer.translation_memory.remembering import Memory


class Translator(PartSearch):
    """Beam search over documents; see :class:`PartSearch` for the arguments."""

    def groups(self, documents: Sequence[Source], max_tokens: int, max_documents: int | None = None) -> list[list[int]]:
        """Group documents to translate together: of similar length, at most ``max_tokens`` with padding.

        A document that is longer than that forms its own group.
        """
        length = [max(len(self.example(document, part)) for part in document.parts) for document in documents]
        order = sorted(range(len(documents)), key=lambda i: (len(documents[i].parts), length[i]))
        return batches(length, order, max_tokens, max_documents)

    def required(self, glossary: Glossary | str | Path, codec: ExampleCodec) -> Callable[[str], list[list[int]]]:
        """Return a function from a source sentence to the tokens of the terms that its translation must contain.

        Args:
            glossary: the glossary, or its file.

        Raises:
            InputError: the glossary cannot be read, the model cannot write one of its terms, or see
                :meth:`check_by_lines`.
        """
        self.check_by_lines("a glossary")
        read = glossary if isinstance(glossary, Glossary) else Glossary.read(glossary)
        encode = functools.partial(self.task.target_dictionary.encode_line, add_if_not_exist=False, append_eos=False)
        tokens = {term: encode(codec.encode_target(term)).tolist() for term in read.translations.values()}
        unknown = self.task.target_dictionary.unk()
        if wrong := [term for term, its in tokens.items() if unknown in its]:
            shown = ", ".join(wrong[:5]) + (", …" if len(wrong) > 5 else "")
            raise InputError(f"glossary: the model has no subwords for all letters of {shown}; leave them out")
        return lambda sentence: [tokens[term] for term in read.required(sentence)]

    def required_terms(
        self, glossary: Glossary | str | Path | None, memory: Memory | None, codec: ExampleCodec
    ) -> Callable[[str], list[list[int]]] | None:
        """Return what :meth:`required` does for a glossary and the terms of a memory; None if there are no terms.

        The glossary's translation of a term takes precedence.

        Raises:
            InputError: as :meth:`required`.
        """
        if memory is not None:
            self.check_by_lines("a memory")
        known = glossary if isinstance(glossary, Glossary) or glossary is None else Glossary.read(glossary)
        more = [] if memory is None else memory.terms
        if known is None and not more:
            return None
        given = {} if known is None else known.translations
        named = {term.casefold() for term in given}
        symbols = self.task.target_dictionary
        encoded = {term: symbols.encode_line(codec.encode_target(term), add_if_not_exist=False) for _, term in more}
        possible = [
            pair for pair in more if pair[0].casefold() not in named and symbols.unk() not in encoded[pair[1]].tolist()
        ]
        return self.required(Glossary([*given.items(), *possible]), codec)

    @torch.no_grad()
    def translate(
        self,
        documents: Sequence[Source],
        device: torch.device | str,
        known: Sequence[Sequence[Line]] | None = None,
        done: Callable[[int, list[Line]], object] = lambda document, lines: None,
    ) -> list[list[Line]]:
        """Translate documents together, part by part, and return the lines of each, in order.

        Args:
            known: lines of the first parts of each document that an earlier call passed to ``done``.
            done: called with a document's number and its lines after each part. The lines may change later.
        """
        drafts: list[list[Line]] = [list(lines) for lines in known] if known is not None else [[] for _ in documents]
        free = [document._replace(terms=None) for document in documents]
        left = [[part for part in d.parts if part.start >= len(lines)] for d, lines in zip(documents, drafts)]
        self.translate_in_order(free, left, drafts, device, done)
        self.finish(documents, drafts, device)
        return drafts

    def translate_all(
        self,
        documents: Sequence[Source],
        max_tokens: int,
        device: torch.device | str,
        known: Sequence[Sequence[Line]] | None = None,
        done: Callable[[int, list[Line]], object] = lambda document, lines: None,
        begin: Callable[[int], object] = lambda document: None,
    ) -> Iterator[tuple[int, list[Line]]]:
        """Translate documents in groups, see :meth:`groups`; yield number and lines of each that has sentences.

        Args:
            known, done: see :meth:`translate`.
            begin: called with a document's number before it is translated.
        """
        here = [i for i, document in enumerate(documents) if document.sentences]
        for group in self.groups([documents[i] for i in here], max_tokens):
            chosen = [here[i] for i in group]
            for i in chosen:
                begin(i)

            def of(number: int, lines: list[Line], chosen: list[int] = chosen) -> None:
                done(chosen[number], lines)

            before = None if known is None else [known[i] for i in chosen]
            yield from zip(chosen, self.translate([documents[i] for i in chosen], device, before, of))

    @torch.no_grad()
    def finish(self, documents: Sequence[Source], drafts: list[list[Line]], device: torch.device | str) -> None:
        """Require the terms of whole drafts in ``drafts``; given lines are nothing that was repaired."""
        require_terms(self, documents, drafts, device)
        for document, lines in zip(documents, drafts):
            for i, (line, given) in enumerate(zip(lines, document.given or ())):
                if given is not None:
                    lines[i] = line._replace(repaired=False, flawed=False)
