"""Conversion of bytes to text and back: encoding and byte order mark."""

import codecs
import re
from collections.abc import Callable
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


LIKELY = {
    **dict.fromkeys(["cs", "hr", "hu", "pl", "ro", "sk", "sl", "sq"], ("cp1250", "iso8859_2")),
    **dict.fromkeys(["be", "bg", "mk", "ru", "sr", "uk"], ("cp1251", "koi8_r", "koi8_u", "cp866", "iso8859_5")),
    "el": ("cp1253", "iso8859_7"),
    **dict.fromkeys(("az", "ku", "tr"), ("cp1254", "iso8859_9")),
    "he": ("cp1255", "iso8859_8"),
    **dict.fromkeys(("ar", "fa", "ur"), ("cp1256", "iso8859_6")),
    **dict.fromkeys(("et", "lt", "lv"), ("cp1257", "iso8859_13")),
    "vi": ("cp1258",),
    "th": ("cp874", "tis_620"),
    "ja": ("cp932", "shift_jis", "euc_jp", "iso2022_jp"),
    "ko": ("cp949", "euc_kr", "johab"),
    "zh": ("gb18030", "gbk", "gb2312", "big5", "big5hkscs", "cp950"),
}
"""Encodings of files by language, the usual one first; before Unicode, others were used for no text in it."""

WESTERN = ("cp1252",)
"""The encoding of files in all other languages."""


_BY_CODEC = {
    "cp1252": "ascii us-ascii latin1 latin-1 l1 cp819 ibm819 windows-1252 iso-ir-100 csisolatin1 ansi_x3.4-1968 none "
    "iso646-us x-user-defined",
    "cp1254": "latin5 l5 csisolatin5 iso-ir-148",
    "cp874": "tis-620 dos-874 windows-874",
    "gb18030": "gb2312 gb_2312 gb_2312-80 chinese csgb2312 csiso58gb231280 iso-ir-58 x-gbk gbk",
    "cp932": "shift_jis shift-jis sjis x-sjis ms_kanji windows-31j csshiftjis ms932",
    "cp949": "euc-kr euckr cseuckr ks_c_5601-1987 ks_c_5601-1989 ksc5601 ksc_5601 "
    "csksc56011987 iso-ir-149 korean windows-949",
    "big5hkscs": "big5 big5-hkscs cn-big5 x-x-big5 csbig5",
    "koi8_r": "koi8-r koi8 koi koi8_r cskoi8r",
    "euc_jp": "euc-jp x-euc-jp cseucpkdfmtjapanese",
    "koi8_u": "koi8-u koi8-ru",
    "iso8859_7": "greek greek8 sun_eu_greek elot_928 ecma-118",
    "utf-8": "utf8 unicode-1-1-utf-8 unicode11utf8 unicode20utf8 x-unicode20utf8 "
    "utf-16 utf-16le utf-16be unicode ucs-2 iso-10646-ucs-2",  # these were read as ASCII
    "iso8859_8": "logical visual hebrew",
    "mac_roman": "macintosh mac csmacintosh x-mac-roman",
    "mac_cyrillic": "x-mac-cyrillic x-mac-ukrainian",
}
WEB = {name: codec for codec, names in _BY_CODEC.items() for name in names.split()}
"""Encodings that browsers use for a name, where Python uses another; see WHATWG's Encoding standard, section 4.2."""


def web_encoding(name: str) -> str:
    """Return Python's name of the encoding that browsers use for a name."""
    label = name.strip().lower()
    if label in WEB:
        return WEB[label]
    if part := re.fullmatch(r"(?:cs)?(?:iso|iso[-_ ]ir[-_ ]|iso[-_]?)?[-_]?8859[-_]?(\d{1,2})(?:[-_:][\w]+)*", label):
        return {"1": "cp1252", "9": "cp1254", "11": "cp874"}.get(part[1], f"iso8859_{part[1]}")
    if page := re.fullmatch(r"(?:x-|ms-|windows-|cp-?)(?:cp)?(\d{3,4})", label):
        return f"cp{page[1]}"
    return name


_NOT_OF_FILES = ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "charmap")


def check_encoding(option: str, name: str) -> None:
    """Refuse a name that stands for anything but an encoding of text files.

    Raises:
        InputError: it does; the message begins with ``option`` and the name.
    """
    try:
        codec = codecs.lookup(name).name
        "a".encode(name)
    except (LookupError, ValueError) as e:
        raise InputError(f"{option} {name}: no such encoding of text") from e
    if codec.replace("_", "-") in _NOT_OF_FILES:
        raise InputError(f"{option} {name}: not an encoding of text files; choose another, such as utf-8")


class Decoded(NamedTuple):
    """A text file."""

    text: str  # its text, without byte order mark; line endings as in the file
    encoding: str
    mark: bytes  # its byte order mark, or empty
    guessed: bool  # whether the encoding was guessed

    def can_encode(self, text: str) -> bool:
        """Return whether the encoding has every character of another text."""
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return False
        return True

    def encode(self, text: str, errors: str = "strict") -> bytes:
        """Encode another text in the same way.

        Args:
            errors: ``xmlcharrefreplace`` if the format can express any character.
        """
        try:
            return self.mark + text.encode(self.encoding, errors)
        except UnicodeEncodeError as e:
            raise InputError(
                f"the translation contains {text[e.start]!r}, which {self.encoding} lacks; convert the file to UTF-8"
            ) from e


def decode(
    data: bytes,
    named: str | None = None,
    declared: Callable[[bytes], str | None] | None = None,
    language: str = "",
) -> Decoded:
    """Decode a file.

    The encoding is the first that applies: the one named, that of the byte order mark, the one that the file declares,
    UTF-8, one that is usual for the language (:data:`LIKELY`), and the one that charset-normalizer finds most likely.

    Args:
        named: the encoding, if known.
        declared: finds the encoding that a file of this format declares.
        language: code of its language; empty if not known.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark) and named is None:
            return _decode(data[len(mark) :], encoding, mark, False)
    if named is not None:
        mark = next((m for m, e in _MARKS if data.startswith(m) and same_encoding(e, named)), b"")
        return _decode(data[len(mark) :], named, mark, False)
    codec = declared(data) if declared else None
    if codec is not None:
        return _decode(data, codec, b"", False)
    try:
        decoded = _decode(data, "utf-8", b"", False)
    except InputError:
        decoded = None
    if decoded is None:
        from charset_normalizer import from_bytes

        if b"\0" in data:
            raise InputError("is not text (it contains zero bytes)")
        best = from_bytes(data[: 1 << 20]).best()
        usual = LIKELY.get(language, WESTERN) if language else ()
        guess = best.encoding if best is not None else None
        # the statistics of a few sentences take a Western letter for one of another country
        tried = (guess, *usual) if guess in usual else (*usual, guess)
        readings = (_decoded(data, name) for name in tried if name)
        decoded = next((one for one in readings if one is not None), None)
        if decoded is None:
            raise InputError("is not text, or its encoding could not be detected; name it with --encoding")
    if "\0" in decoded.text:
        raise InputError("is not text (it contains zero bytes)")
    return decoded


def same_encoding(a: str, b: str) -> bool:
    """Return whether two names are of the same encoding."""
    try:
        return codecs.lookup(a).name.replace("-", "_") == codecs.lookup(b).name.replace("-", "_")
    except LookupError:
        return False


def _decoded(data: bytes, encoding: str) -> Decoded | None:
    """Decode a file in an encoding that is a guess; None if it is not in it."""
    try:
        return _decode(data, encoding, b"", True)
    except InputError:
        return None


def _decode(data: bytes, encoding: str, mark: bytes, guessed: bool) -> Decoded:
    try:
        return Decoded(data.decode(encoding), codecs.lookup(encoding).name, mark, guessed)
    except LookupError as e:
        raise InputError(f"{encoding}: no such encoding") from e
    except UnicodeDecodeError as e:
        raise InputError(f"is not {encoding} (byte {e.start + 1}); name its encoding with --encoding") from e
    except UnicodeError as e:  # undefined, idna, punycode
        raise InputError(f"{encoding}: not a text encoding; name a different one with --encoding") from e
