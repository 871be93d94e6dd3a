"""gettext's .po: entries without a translation get one.

Directives are those of an entry's flag (``c-format``); a plural form for several numbers is translated from
``msgid_plural``. Translations that ``msgfmt --check`` would refuse stay empty, and new ones are marked ``#, fuzzy``.
Credits of translators stay empty as well: they are names. Accelerators: :mod:`formats.accelerators`.
"""

import gettext
import html
import re
from collections import Counter
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.accelerators import Accelerators
from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.languages import Languages, plural_rule
from fairseq_lasformer.formats.markup import REFERENCE, escape
from fairseq_lasformer.formats.placeholders import (
    ANYWHERE,
    BY_FLAG,
    CODE,
    ROLES,
    TAGS,
    TEX,
    directives,
    is_metavariable,
)
from fairseq_lasformer.text import icu
from fairseq_lasformer.text.lines import lines_with_ends
from fairseq_lasformer.text.spans import whole_name

_STRINGS = r'"((?:[^"\\\r\n]|\\.)*"(?:\s*"(?:[^"\\\r\n]|\\.)*")*|[^\r\n]*")\s*$'
_FIELD = re.compile(rf"(\s*)(msgctxt|msgid|msgid_plural|msgstr(?:\[\d+\])?)(\s*){_STRINGS}")
_MORE = re.compile(rf"\s*{_STRINGS}")
_BETWEEN = re.compile(r'(?<!\\)"\s*"')
_FIELDS_IN_A_LINE = re.compile(r'(?<=")[ \t]+(?=(?:msgid|msgid_plural|msgstr(?:\[\d+\])?)[ \t]*")')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_BREAKS = re.compile(r"((?<!\\)(?:\\[ntr])+)")
_PLURALS = re.compile(r"nplurals\s*=\s*(\d+)\s*;\s*plural\s*=([^;\\]+)")
_TEMPLATE_RULE = re.compile(r'("Plural-Forms:\s*)nplurals=INTEGER; plural=EXPRESSION;')
_CREDITS = re.compile(r"translator[-_]credits|NAME OF TRANSLATORS|EMAIL OF TRANSLATORS|Your (?:names|emails)")
_ENDED = re.compile(r"[.:,;!?…。！？：；؟।](?:\\?[\"'”’»)\]])*\s*\Z")
_CHARSET = re.compile(r"(\bcharset=)([^\s\"\\;]*)")
_REFERENCE = re.compile(REFERENCE)
_FENCE = re.compile(r"\s*(?:`{3,}[^`]*|~{3,})\Z")
_NUMBERS = 201  # numbers, from 0, whose plural form is tried


class Field(NamedTuple):
    """A field of an entry, over one or more lines."""

    # first, last: its lines, from `first` up to but not including `last`
    first: int
    last: int
    name: str  # `msgid`, `msgstr[0]`, …
    value: str  # its text, escaped as in the file
    source: str  # for a translation, the text that it translates
    singular: str  # the text of `msgid`
    flags: frozenset[str]
    entry: int  # number of the entry's first line, comments included


def fields_of(lines: list[str]) -> list[Field]:
    """Return all fields of a file, without comments and obsolete entries."""
    fields: list[Field] = []
    entry: dict[str, str] = {}
    flags: set[str] = set()
    begin, i, plural = 0, 0, _one_is_singular("")
    while i < len(lines):
        field = _FIELD.match(lines[i])
        if field is None:
            if not lines[i].strip():
                entry, flags, begin = {}, set(), i + 1
            elif lines[i].startswith("#,"):
                if any(key.startswith("msgstr") for key in entry):  # no blank line between entries
                    entry, flags, begin = {}, set(), i
                flags |= {flag.strip() for flag in lines[i][2:].split(",")}
            i += 1
            continue
        end = i + 1
        while end < len(lines) and _MORE.match(lines[end]):
            end += 1
        value = _value(field[4]) + "".join(
            _value(more[1]) for line in lines[i + 1 : end] if (more := _MORE.match(line))
        )
        name = field[2]
        if name in ("msgctxt", "msgid") and any(key.startswith("msgstr") for key in entry):
            entry, flags, begin = {}, set(), i
        entry[name] = value
        source = ""
        if name.startswith("msgstr"):
            number = int(name[7:-1]) if "[" in name else 0
            singular = name == "msgstr" or number in plural
            source = entry.get("msgid" if singular else "msgid_plural", "")
            if name == "msgstr" and not entry.get("msgid"):
                plural = _one_is_singular(value)
        fields.append(Field(i, end, name, value, source, entry.get("msgid", ""), frozenset(flags), begin))
        i = end
    return fields


def _value(strings: str) -> str:
    """Return the text of successive strings in a line, without the first quotation mark."""
    return _BETWEEN.sub("", strings[:-1])


def _lines(text: str) -> list[str]:
    """Return the lines of a file; several fields in a line are as many."""
    return [part for line in lines_with_ends(text) for part in _parted(line)]


def _parted(line: str) -> list[str]:
    """Return a line before each field in it but the first."""
    if "msg" not in line[1:] or line.startswith("#"):
        return [line]
    edges = [0, *(field.end() for field in _FIELDS_IN_A_LINE.finditer(line)), len(line)]
    return [line[a:b] for a, b in zip(edges, edges[1:])]


def _one_is_singular(header: str) -> frozenset[int]:
    """Return the plural forms for the number one alone, which may be translated from ``msgid``."""
    match = _PLURALS.search(header)
    if match is None:
        return frozenset({0})
    try:
        rule = gettext.c2py(match[2].strip())  # it accepts only numbers, n and operators
        forms = [int(rule(n)) for n in range(_NUMBERS)]
    except (ValueError, RecursionError, ZeroDivisionError, OverflowError):
        return frozenset()
    return frozenset(form for form, n in Counter(forms).items() if n == 1 and forms[1] == form)


def languages(text: str) -> tuple[str | None, str | None]:
    """Return the source and target language that the header names."""
    match = re.search(r'^(?:msgstr\s*)?"Language:\s*([A-Za-z][\w@-]*)\s*\\n"', text, re.M)
    return None, match[1] if match else None


def charset(data: bytes) -> str | None:
    """Return the encoding that the header names; None if it names none, or one in which the file is not."""
    header = re.sub(rb'"\s*\n\s*"', b"", data[:8192])  # its lines may be wrapped
    match = re.search(rb"Content-Type:[^\"]*?\bcharset=([A-Za-z0-9_.:-]+)", header)
    if match is None:
        return None
    try:
        name = match[1].decode()
        data.decode(name)
    except (LookupError, UnicodeError):
        return None  # CHARSET, as in templates
    return name


def with_charset(text: str, name: str) -> str:
    """Return a file whose header names an encoding."""
    return _CHARSET.sub(lambda m: m[1] + name, text, count=1)


def read(text: str) -> Parsed:
    """Read the messages whose translations are empty, each in the place of its translation."""
    builder = BlockBuilder(_escape)
    lines = _lines(text)
    fields, position = fields_of(lines), 0
    marks = Accelerators.of(field.source for field in fields)
    stale: set[int] = set()  # entries whose translations are of another text
    known = {i for field in fields for i in range(field.first, field.last)}

    def keep(start: int, stop: int) -> None:
        for i in range(start, stop):
            comment = not lines[i].strip() or lines[i].lstrip().startswith("#")
            (builder.keep(lines[i]) if comment or i in known else builder.misread(lines[i], "line"))

    for field in fields:
        if not _open(field):
            if field.entry not in stale and _is_stale(lines, field):
                stale.add(field.entry)
                keep(position, field.first)
                position = field.first
                builder.misread(field.value, "outdated message", written=False)
            if field.name.startswith("msgstr") and field.value and field.source:
                values = (marks.without(value) for value in (field.source, field.value))
                source, target = (_plain(value, _pattern(field)) for value in values)
                builder.finished(source, target, "fuzzy" not in field.flags)
            continue
        keep(position, field.first)
        before, after = _around(lines, field)
        builder.keep(before)
        _message(builder, marks.without(field.source), _pattern(field))
        builder.keep(after)
        position = field.last
    keep(position, len(lines))
    if not any(field.name.startswith("msgstr") for field in fields):
        raise InputError("contains no message (msgid, msgstr)")
    return builder.parsed().of_languages(languages(text))


def _around(lines: list[str], field: Field) -> tuple[str, str]:
    """Return the text before and after a field's value in its first and last line, quotation marks included."""
    line, last = lines[field.first], lines[field.last - 1]
    quote = line.index('"', line.index(field.name) + len(field.name))
    return line[: quote + 1], last[last.rindex('"') :]


def _open(field: Field) -> bool:
    """Return whether a field is a missing translation."""
    empty = field.name.startswith("msgstr") and not field.value
    return empty and bool(field.source) and not _CREDITS.fullmatch(field.singular)


def _is_stale(lines: list[str], field: Field) -> bool:
    """Return whether a field is a translation of another text, as its entry says (``#| msgid``)."""
    if not (field.name.startswith("msgstr") and field.value and "fuzzy" in field.flags):
        return False
    return any(line.startswith("#|") for line in lines[field.entry : field.first])


def _pattern(field: Field) -> re.Pattern[str]:
    """Return the pattern of what a message keeps: directives of its flag, or what looks like one; tags and entities."""
    flags = field.flags & BY_FLAG.keys()
    spaced = all(one[1:2] == " " for one in directives(field.source, BY_FLAG["c-format"]))
    if "{" in field.source and len(flags) > 1 and spaced:
        flags -= {"python-format", "c-format"}  # "{n}% free": a percent sign is one
    patterns = [BY_FLAG[flag].pattern for flag in sorted(flags)]
    return re.compile("|".join([TEX, CODE, *(patterns or [ANYWHERE.pattern]), f"(?P<tag>{ROLES}|{TAGS})"]))


def finish(original: str, translated: str, mark: bool, languages: Languages = Languages()) -> str:  # noqa: B008
    """Empty the translations of a translated file that msgfmt would refuse, and mark the other new ones ``#, fuzzy``.

    Args:
        made: the translated file; its lines are those of the original, except for new translations.
        mark: whether to mark new translations.
        languages: the target is named in a header that names no language.
    """
    lines = _lines(translated)
    before = fields_of(_lines(original))
    accelerators = Accelerators.of(field.source for field in before)
    after = fields_of(lines)
    if [field.name for field in before] != [field.name for field in after]:
        return translated  # a carriage return in a translation, say: its entries are unknown
    filled: set[int] = set()  # first lines of entries
    for old, new in zip(before, after):
        if not _open(old) or not new.value:
            continue
        if _is_refused(old, new.value):
            value = ""
        else:
            value = accelerators.marked(old.source, _without_new_end(old.source, new.value))
            filled.add(new.entry)
        if value != new.value:
            opening, closing = _around(lines, new)
            lines[new.first : new.last] = [opening + value + closing, *[""] * (new.last - new.first - 1)]
    if mark:
        for begin in sorted(filled, reverse=True):
            _mark(lines, begin)
    translated = "".join(lines)
    if languages.target:
        translated = re.sub(r'^("Language:) *(?=\\n"\s*$)', rf"\1 {languages.target}", translated, count=1, flags=re.M)
        forms = {int(field.name[7:-1]) for field in before if "[" in field.name} or {0, 1}
        if (rule := plural_rule(languages.target)) and forms == set(range(int(rule[0]))):
            translated = _TEMPLATE_RULE.sub(rf"\1nplurals={rule[0]}; plural={rule[1]};", translated, count=1)
    return translated


def left_out(original: str, translated: str) -> int:
    """Return the number of messages whose translation msgfmt would refuse, so that they have none."""
    before, after = fields_of(_lines(original)), fields_of(_lines(translated))
    blocks = [_open(old) and any(block for block in _plain(old.source, _pattern(old))) for old in before]
    return sum(text and not new.value for text, new in zip(blocks, after)) if len(before) == len(after) else 0


def _without_new_end(source: str, value: str) -> str:
    """Return a translation without a mark at its end where its source, a label, has none."""
    return value if _ENDED.search(source[-20:]) else value.rstrip(".:,;!?… ") or value


def _mark(lines: list[str], begin: int) -> None:
    """Mark the entry that begins at a line."""
    at = begin
    while at < len(lines) and lines[at].startswith("#") and not lines[at].startswith(("#|", "#~")):
        if lines[at].startswith("#,"):
            if not re.search(r"\bfuzzy\b", lines[at]):
                lines[at] = "#, fuzzy," + lines[at][2:]
            return
        at += 1
    end = "\r\n" if lines[at].endswith("\r\n") else "\n"
    lines[at] = f"#, fuzzy{end}{lines[at]}"


def _is_refused(field: Field, value: str) -> bool:
    """Return whether msgfmt --check refuses a translation: its directives or the line breaks at its ends differ."""
    for end in (str.startswith, str.endswith):
        if end(field.singular, "\\n") != end(value, "\\n"):
            return True
    for flag in field.flags & BY_FLAG.keys():
        wanted, there = (Counter(directives(text, BY_FLAG[flag])) for text in (field.source, value))
        if wanted != there:
            return True
    return False


def _message(builder: BlockBuilder, source: str, pattern: re.Pattern[str]) -> None:
    """Add a message, line by line; one of ICU is a single text."""
    builder.write = _escape_markup if _REFERENCE.search(source) else _escape
    if "{" in source and icu.messages(_BREAKS.sub(" ", source)):
        builder.begin()
        for piece in _BREAKS.split(source):
            if _BREAKS.fullmatch(piece):
                builder.keep(piece, BREAK)
            else:
                _text(builder, piece)
        builder.end()
        return
    fenced = False  # whether this is a block of code, as in catalogues of Markdown
    parts = _BREAKS.split(source)
    fences = sum(_FENCE.match(part) is not None for part in parts)
    for piece in parts:
        fence = fences > 1 and _FENCE.match(piece) is not None
        if fence or fenced or _BREAKS.fullmatch(piece):
            builder.keep(piece)
        elif piece:
            builder.begin()
            position = 0
            for placeholder in pattern.finditer(piece):
                start, end = placeholder.span()
                if start < position:
                    continue
                tag = placeholder.lastgroup == "tag"
                if not tag:
                    start, end = whole_name(piece, start, end, position)
                _text(builder, piece[position:start])
                position = end
                if _REFERENCE.fullmatch(placeholder[0]):
                    builder.text(html.unescape(placeholder[0]), None, placeholder[0])
                else:
                    builder.keep(
                        piece[start:end], "" if tag and not is_metavariable(placeholder[0], source) else PLACEHOLDER
                    )
            _text(builder, piece[position:])
            builder.end()
        fenced = fenced != fence


def _plain(value: str, pattern: re.Pattern[str]) -> str:
    """Return a message as one line of text."""
    builder = BlockBuilder()
    _message(builder, value, pattern)
    return " ".join(block.text for block in builder.parsed().blocks)


def _text(builder: BlockBuilder, raw: str) -> None:
    if raw:
        builder.text(re.sub(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", lambda m: _character(m[1]), raw), None, raw)


def _character(escaped: str) -> str:
    """Return the character of an escape, without its backslash; see gettext's manual, "PO Files"."""
    if escaped in _ESCAPES:
        return _ESCAPES[escaped]
    if escaped[0] == "x" and len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return chr(int(escaped, 8) % 256) if escaped[0] in "01234567" else f"\\{escaped}"


def _escape_markup(text: str) -> str:
    return _escape(escape(text).replace("\xa0", "&nbsp;"))


def _escape(text: str) -> str:
    named = {value: key for key, value in _ESCAPES.items()}
    return "".join(f"\\{named[c]}" if c in named else c for c in text)
