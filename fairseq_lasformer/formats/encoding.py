"""Conversion of bytes to text and back: encoding and byte order mark."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import NamedTuple

from fairseq_lasformer.errors import InputError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Decoded(NamedTuple):
    """A text file.

    Attributes:
        text: its text, without byte order mark; line endings as in the file.
        mark: its byte order mark, or empty.
        guessed: whether the encoding was guessed.
    """

    text: str
    encoding: str
    mark: bytes
    guessed: bool

    def encode(self, text: str, errors: str = "strict") -> bytes:
        """Encode another text in the same way.

        Args:
            errors: ``xmlcharrefreplace`` if the format can express any character.

        Raises:
            InputError: the encoding lacks a character of the text.
        """
        try:
            return self.mark + text.encode(self.encoding, errors)
        except UnicodeEncodeError as e:
            raise InputError(
                f"the translation contains {text[e.start]!r}, which {self.encoding} lacks; convert the file to UTF-8"
            ) from e


def decode(data: bytes, named: str | None = None, declared: Callable[[bytes], str | None] | None = None) -> Decoded:
    """Decode a file.

    The encoding is the first that applies: the one named, that of the byte order mark, the one that the file declares,
    UTF-8, and the one that charset-normalizer finds most likely.

    Args:
        named: the encoding, if known.
        declared: finds the encoding that a file of this format declares.

    Raises:
        InputError: the file is not text, or not in the encoding named.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark) and named is None:
            return _decode(data[len(mark) :], encoding, mark, False)
    if named is not None:
        mark = next((m for m, e in _MARKS if data.startswith(m) and _same(e, named)), b"")
        return _decode(data[len(mark) :], named, mark, False)
    found = declared(data) if declared else None
    if found is not None:
        return _decode(data, found, b"", False)
    try:
        decoded = _decode(data, "utf-8", b"", False)
    except InputError:
        decoded = None
    if decoded is None:
        from charset_normalizer import from_bytes

        best = from_bytes(data[: 1 << 20]).best()
        if best is None or b"\0" in data:
            raise InputError("is not text, or its encoding could not be detected; name it with --encoding")
        decoded = _decode(data, best.encoding, b"", True)
    if "\0" in decoded.text:
        raise InputError("is not text (it contains zero bytes)")
    return decoded


def _same(a: str, b: str) -> bool:
    try:
        return codecs.lookup(a).name.replace("-", "_") == codecs.lookup(b).name.replace("-", "_")
    except LookupError:
        return False


def _decode(data: bytes, encoding: str, mark: bytes, guessed: bool) -> Decoded:
    try:
        return Decoded(data.decode(encoding), codecs.lookup(encoding).name, mark, guessed)
    except LookupError as e:
        raise InputError(f"{encoding}: no such encoding") from e
    except UnicodeDecodeError as e:
        raise InputError(f"is not {encoding} (byte {e.start + 1}); name its encoding with --encoding") from e
    except UnicodeError as e:  # undefined, idna, punycode
        raise InputError(f"{encoding}: not a text encoding; name a different one with --encoding") from e
