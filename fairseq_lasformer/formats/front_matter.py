"""Front matter of pages: YAML, TOML or JSON before the text, of which readers see the title and the description."""

import json
import re
from collections.abc import Callable
from dataclasses import replace

from fairseq_lasformer.formats.block import Written
from fairseq_lasformer.formats.builder import BlockBuilder

_FRONT = re.compile(
    r"\A(?:---[ \t]*(?:\r?\n(?:[ \t]*#[^\n]*)?)*\r?\n[\"']?[\w.-][^\n:]{0,200}:(?=\s).*?\r?\n(?:---|\.\.\.)"
    r"|---[ \t]*\r?\n---|---json[ \t]*\r?\n.*?\r?\n---|(\+\+\+|;;;)[ \t]*\r?\n(?:.*?\r?\n)?\1)[ \t]*(?:\r?\n|\Z)",
    re.S,
)

_SHOWN = r"(?:title|linkTitle|subtitle|description|summary|excerpt|sidebar_label|tagline)"
_FIELDS = re.compile(
    rf"(?m)^(?P<key>{_SHOWN}[ \t]*[:=][ \t]*|[ \t]*\"{_SHOWN}\"[ \t]*:[ \t]*)"
    r"(?:\"(?P<double>(?:[^\"\\\n]|\\[\"\\]){1,2000})\"|'(?P<single>(?:[^'\n]|''){1,2000})'"
    r"|(?P<plain>[^\s\"'{\[\]}|>&*!%@`#,?:-](?:[^\n]{0,2000}\S)?+))"
    r"(?=[ \t]*+(?:,[ \t]*+)?\r?$|[ \t]++#)(?![ \t]*\r?\n[ \t]+\S)"
)
"""A field with a text in one line; texts over several lines stay."""


_SPECIAL = "\"'[]{}*&!|>%@`#-?:,"
"""What a text without quotation marks cannot begin with in YAML."""

_WIDE = 0xFEE0
"""What the full-width form of such a character is away from it."""


def front_matter(text: str) -> int:
    """Return the end of a file's front matter: YAML between ``---``, TOML between ``+++``, or a JSON object."""
    match = _FRONT.match(text)
    if match:
        return match.end()
    if re.match(r"\{\s*\"", text):
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return 0
        if isinstance(value, dict) and (ending := re.compile(r"[ \t]*(?:\r?\n|\Z)").match(text, end)):
            return ending.end()
    return 0


def add_front_matter(builder: BlockBuilder, front: str) -> None:
    """Add the front matter of a page: title and description of YAML as blocks; those of others count."""
    position, write = 0, builder.write
    for field in _FIELDS.finditer(front):
        kind = field.lastgroup or ""
        raw = field[kind]
        if not front.startswith("---") or front.startswith("---json"):
            builder.misread(raw, "title", written=False)
            continue
        if kind == "plain" and re.search(r":\s|\s#", raw):
            continue
        builder.keep(front[position : field.start(kind)])
        builder.write = _WRITTEN[kind]
        builder.at("title")
        builder.begin()
        read = {"single": raw.replace("''", "'"), "double": re.sub(r"\\(.)", r"\1", raw)}
        builder.text(read.get(kind, raw), None, raw)
        builder.end()
        block = builder.blocks[-1]
        if kind == "plain" and block is not None and len(block.segments) > 1:
            builder.blocks[-1] = replace(block, write=Written(_within, _beginning, _within))
        position = field.end(kind)
    builder.keep(front[position:])
    builder.write = write
    builder.at("")


def _plain(text: str) -> str:
    """Return a text as it may stand in YAML without quotation marks."""
    if text[:1] in _SPECIAL:
        return json.dumps(text, ensure_ascii=False)
    return _within(text)


def _within(text: str) -> str:
    return re.sub(r"\s#", " ＃", re.sub(r":(?=\s|$)", " –", text))


def _beginning(text: str) -> str:
    """Return the beginning of such a text, which quotation marks alone would not enclose whole."""
    return _within(chr(ord(text[0]) + _WIDE) + text[1:] if text[:1] in tuple(_SPECIAL) else text)


_WRITTEN: dict[str, Callable[[str], str]] = {
    "double": lambda text: re.sub(r"[\"\\]", r"\\\g<0>", text),
    "single": lambda text: text.replace("'", "''"),
    "plain": _plain,
}
