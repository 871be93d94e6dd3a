"""Given translations of lines: validation and file format."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.text.lines import clean_line, split_lines

Given = Mapping[int, str]
"""Translations of some lines of a document, by line number, from 1."""

L = TypeVar("L", bound=Any)


def check_given(given: Given, numbers: Sequence[int], name: str) -> None:
    """Reject given lines that a document does not have, or that are not lines.

    Args:
        numbers: numbers of the document's lines that are not blank.
        name: what the document is called in errors.

    Raises:
        InputError: a given line is invalid; the message names it.
    """
    known, last = set(numbers), max(numbers, default=0)
    for number, text in given.items():
        if type(number) is not int or number not in known:
            why = "is blank" if type(number) is int and 0 < number < last else f"does not exist; it has {last} lines"
            raise InputError(f"{name}: a translation is given for line {number}, which {why}")
        if not isinstance(text, str) or not clean_line(text):
            raise InputError(f"{name}: the translation given for line {number} is not text")
        if len(split_lines(text)) > 1:
            raise InputError(f"{name}: the translation given for line {number} has more than one line")


def with_given(lines: Sequence[L], given: Given | None) -> list[L]:
    """Return translated lines, with the given ones inserted unchanged."""
    known = given or {}
    return [line._replace(translation=known.get(line.number, line.translation)) for line in lines]


def parse_given(text: str, n_lines: int, path: str) -> dict[int, str]:
    """Return the given lines in the text of a file.

    The file is a table of line number, tab, translation. Or it has as many lines as the document, empty where they are
    to be translated.

    Args:
        n_lines: number of the document's lines.
        path: names the file in errors.

    Raises:
        InputError: the text is neither, or contains a line twice.
    """
    lines = split_lines(text.removeprefix("\ufeff"))
    rows = [(i, *line.partition("\t")) for i, line in enumerate(lines, 1) if line.strip()]
    if rows and all(tab and number.strip().isdecimal() and len(number) < 10 for _, number, tab, _ in rows):
        given: dict[int, str] = {}
        for i, number, _, translation in rows:
            if int(number) in given:
                raise InputError(f"{path}, line {i}: gives a second translation for line {int(number)}")
            given[int(number)] = translation
        return given
    if len(lines) != n_lines:
        raise InputError(
            f"{path}: has {len(lines)} lines, but the document has {n_lines}; expected as many, empty where the "
            "translation is missing, or a table of line number, tab, translation"
        )
    return {i: line for i, line in enumerate(lines, 1) if line.strip()}
