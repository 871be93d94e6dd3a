"""Requests: a document to translate with all that is asked of it; and checks of what Python passes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.given_lines import Given
from fairseq_lasformer.text.lines import clean_line, split_lines
from fairseq_lasformer.translation_memory.remembering import Memory


class Request(NamedTuple):
    """A document to translate, and what is asked of it."""

    # its sentences, none of them blank: single lines without control characters, see `clean_line`
    sentences: Sequence[str]
    numbers: Sequence[int] = ()  # the number of each, from 1, in `given` and in messages; empty if they are 1, 2, …
    name: str = "document 1"  # what the document is called in messages
    given: Given | None = None  # translations of some sentences, by number; they appear unchanged
    # finds the tokens of the terms that a sentence requires, see `Translator.required`
    required: Callable[[str], list[list[int]]] | None = None
    memory: Memory | None = None  # a translation memory
    overlap: int | None = None  # sentences that each part of a document beyond the limit repeats; None for the task's

    @classmethod
    def of(cls, document: str, **asked: Any) -> Request:
        """Return the request of a raw text, one sentence per line; its numbers are those of its lines."""
        numbered = numbered_sentences(document)
        return cls([sentence for _, sentence in numbered], [number for number, _ in numbered], **asked)

    @property
    def numbered(self) -> list[tuple[int, str]]:
        """Its sentences with their numbers."""
        return list(zip(self.numbers or range(1, len(self.sentences) + 1), self.sentences))

    def with_exact(self) -> Request:
        """Return the request with translations that its memory holds verbatim, where none is given."""
        exact = {} if self.memory is None else self.memory.exact_lines(dict(self.numbered))
        return self._replace(given={**exact, **(self.given or {})}) if exact else self


def numbered_sentences(document: str) -> list[tuple[int, str]]:
    """Return the lines of a document that are not blank, with their numbers, from 1."""
    cleaned = enumerate(map(clean_line, split_lines(document)), 1)
    return [(number, line) for number, line in cleaned if line]


def check_documents(documents: Iterable[object]) -> None:
    """Reject anything but a list of texts.

    Raises:
        InputError: the argument is something else; the message names its type.
    """
    if isinstance(documents, str | bytes):
        raise InputError("translate_documents takes a list of documents, not one string: wrap it, [text]")
    for i, document in enumerate(documents):
        if not isinstance(document, str):
            raise InputError(f"documents[{i}] is of type {type(document).__name__}; expected text")


def check_number(name: str, value: object) -> None:
    """Reject anything but a whole number of at least 1.

    Raises:
        InputError: the value is something else.
    """
    if type(value) is not int or value < 1:
        raise InputError(f"{name}={value!r}: expected a whole number, at least 1")


def check_options(generation: Any, options: dict[str, Any]) -> None:
    """Reject options unknown to fairseq's generation, or incompatible with one translation per document."""
    names = [*map(str, generation), "align_sentences"]
    for name in options:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"{name}: not an option of fairseq's generation{hint}")
    if options.get("nbest", 1) != 1:
        raise InputError("nbest: one translation per document is returned; leave it out")
    if options.get("score_reference"):
        raise InputError("score_reference: documents are translated here, not scored; leave it out")


def check_device(device: str) -> torch.device:
    """Return the device that a model is put on; ``auto`` is the GPU if there is one.

    Raises:
        InputError: there is no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(device)
    except RuntimeError as e:
        raise InputError(f"--device {device}: expected cpu, cuda or cuda:N") from e
    if place.type not in ("cpu", "cuda"):
        raise InputError(f"--device {device}: expected cpu, cuda or cuda:N")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device {device}: there is no GPU here that torch can use")
    return place
