"""Checks of Python requests: documents, their lines, and search options."""

from __future__ import annotations

import difflib
from typing import Any

import torch

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.text.lines import clean_line, split_lines


def numbered_sentences(document: str) -> list[tuple[int, str]]:
    """Return the lines of a document that are not blank, with their numbers, from 1."""
    cleaned = enumerate(map(clean_line, split_lines(document)), 1)
    return [(number, line) for number, line in cleaned if line]


def check_documents(documents: Any) -> None:
    """Reject anything but a list of texts.

    Raises:
        InputError: the argument is something else; the message names its type.
    """
    if isinstance(documents, str | bytes):
        raise InputError("translate_documents takes a list of documents, not one string: wrap it, [text]")
    for i, document in enumerate(documents):
        if not isinstance(document, str):
            raise InputError(f"documents[{i}] is of type {type(document).__name__}; expected text")


def check_number(name: str, value: Any) -> None:
    """Reject anything but a whole number of at least 1.

    Raises:
        InputError: the value is something else.
    """
    if type(value) is not int or value < 1:
        raise InputError(f"{name}={value!r}: expected a whole number, at least 1")


def check_options(generation: Any, options: dict[str, Any]) -> None:
    """Reject options unknown to fairseq's generation, or incompatible with one translation per document."""
    names = [*map(str, generation), "align_sentences", "no_look_ahead"]
    for name in options:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"{name}: not an option of fairseq's generation{hint}")
    if options.get("nbest", 1) != 1:
        raise InputError("nbest: one translation per document is returned; leave it out")


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
