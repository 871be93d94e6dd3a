"""gettext's .po: entries without a translation get one."""

from __future__ import annotations

import re

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.formats.block import PLACEHOLDER, BlockBuilder, Parsed

_FIELD = re.compile(r'(\s*)(msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)(\s*)"(.*)"\s*$')
_MORE = re.compile(r'\s*"(.*)"\s*$')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_PLACEHOLDER = re.compile(
    r"%\([\w.]+\)[#0\- +]*\d*[a-zA-Z]|%[#0\-+]*\d*(?:\.\d+)?[a-zA-Z%]|\{[\w.!:]*\}|<[^<>]+>|&\w+;"
)
_BREAKS = re.compile(r"((?:\\n|\\t|\\r)+)")


def read(text: str) -> Parsed:
    """The messages whose translations are empty, in the place of those.

    Placeholders (``%s``, ``{name}``, tags) are markup. A message with plural forms has its singular translated for the
    first form, and its plural for the others.

    Raises:
        InputError: there is no message.
    """
    builder = BlockBuilder(_escape)
    lines = text.splitlines(keepends=True)
    fields: dict[str, str] = {}  # what has been read of the entry
    i, found = 0, False
    while i < len(lines):
        field = _FIELD.match(lines[i])
        if field is None:
            if not lines[i].strip():
                fields = {}
            builder.keep(lines[i])
            i += 1
            continue
        end = i + 1
        while end < len(lines) and _MORE.match(lines[end]):
            end += 1
        value = field[4] + "".join(more[1] for line in lines[i + 1 : end] if (more := _MORE.match(line)))
        name = field[2]
        if name in ("msgctxt", "msgid") and any(key.startswith("msgstr") for key in fields):
            fields = {}
        fields[name] = value
        found = found or name.startswith("msgstr")
        source = fields.get("msgid_plural", "") if name not in ("msgstr", "msgstr[0]") else fields.get("msgid", "")
        if name.startswith("msgstr") and not value and source:
            quote = lines[i].index('"', field.end(3))
            builder.keep(lines[i][: quote + 1])
            _message(builder, source)
            last = lines[end - 1]
            builder.keep(last[last.rindex('"') :])
        else:
            for line in lines[i:end]:
                builder.keep(line)
        i = end
    if not found:
        raise InputError("holds no message (msgid, msgstr)")
    return builder.parsed()


def _message(builder: BlockBuilder, source: str) -> None:
    """Adds a message, line by line."""
    for piece in _BREAKS.split(source):
        if _BREAKS.fullmatch(piece):
            builder.keep(piece)
        elif piece:
            builder.begin()
            position = 0
            for placeholder in _PLACEHOLDER.finditer(piece):
                _text(builder, piece[position : placeholder.start()])
                builder.keep(placeholder[0], "" if placeholder[0][0] in "<&" else PLACEHOLDER)
                position = placeholder.end()
            _text(builder, piece[position:])
            builder.end()


def _text(builder: BlockBuilder, raw: str) -> None:
    if raw:
        builder.text(re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[0]), raw), None, raw)


def _escape(text: str) -> str:
    named = {value: key for key, value in _ESCAPES.items()}
    return "".join(f"\\{named[c]}" if c in named else c for c in text)
