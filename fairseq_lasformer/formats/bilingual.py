"""Files in both languages: each text of the original, and its translation below it (``--bilingual``)."""

import re
from collections.abc import Callable, Sequence

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats import subtitles
from fairseq_lasformer.formats.bilingual_word import word
from fairseq_lasformer.formats.block import Block, Parsed
from fairseq_lasformer.formats.front_matter import front_matter
from fairseq_lasformer.formats.languages import Languages
from fairseq_lasformer.formats.markup import VOID, escape
from fairseq_lasformer.text.lines import lines_with_ends

_BARE = ("title", "option", "optgroup", "textarea")
"""Elements whose text has no markup and no second line: both are in one."""

_BOOK = re.compile(r"<(?:\w+:)?(?:ncx|package)\b|<nav\b[^<>]*epub:type")
"""Tables of contents and package files of EPUB, whose elements hold a single text, too."""

_TAG = re.compile(r"""<(/?)([a-zA-Z][\w:-]*)(?:[^<>"']|"[^"]{0,2000}"|'[^']{0,2000}'){0,4000}>""")
_ATTRIBUTE = re.compile(r"""\s([\w:-]+)(?:\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>]+))?""")
_ONCE = re.compile(r"<(script|style|iframe|video|audio|svg|object|canvas)\b.{0,9999}?</\1\s*>", re.I | re.S)
_CODE = re.compile(r"\{%-?\s{0,40}(\w+).{0,400}?%\}", re.S)
_IMAGE = re.compile(
    r"!\[(?:[^\[\]\n]|\[[^\[\]\n]{0,400}\]){0,400}\](?:\([^()\n]{0,2000}\)|\[[^\]\n]{0,400}\])?(?:\{[^{}\n]{0,400}\})?"
    r"|(?<!!)\[\s{0,40}\]\([^()\n]{0,2000}\)"
)
_DEFINITION = re.compile(r"[ \t]*(?:\[\^[^\]\n]+\]:|\*\[[^\]\n]+\]:|[%|](?=[ \t]))[ \t]*")
_HEADING = re.compile(r"(?:\A|\n)([ \t>]*)((?:[-*+]|\d+[.)])[ \t]+)?(#{1,6}[ \t]+)?\Z")
_BELOW = re.compile(r"[ \t>]*(?:=+|-+|\{:[^{}\n]*\})[ \t]*(?:\r?\n|\Z)")
_ATTRIBUTES = re.compile(r"[ \t>]*\{:[^{}\n]*\}[ \t]*(?:\r?\n|\Z)")
"""What belongs to the heading above it: its underline, its attributes."""

_AFTER = re.compile(r"(?:[ \t]*\{[ \t]*[#.:/][^{}\n]*\}|[ \t]+#+)+[ \t]*\Z")
_BEGINS = re.compile(r"\d+(?=[.)]\s)|(?=`{3}|~{3}|!!!|[#>+*:-]\s|\[[^\]\n]*\]:|\|)")
"""What would make a paragraph something else, but not a heading."""


def check(form: str) -> None:
    """Refuse a format that cannot have both languages."""
    if form not in (*_JOINED, *_IN_BLOCKS):
        both = ", which has both languages anyway" if form in ("po", "xliff") else ""
        raise InputError(f"--bilingual: for text, markdown, html, docx, epub and subtitles, not for {form}{both}")


def both(
    form: str,
    parsed: Parsed,
    segments: Sequence[Sequence[str]],
    languages: Languages,
    finish: Callable[[str, str], str] = lambda old, new: new,
) -> str:
    """Return a file with the text of the original and its translation.

    Args:
        segments: see :meth:`Parsed.render`.
        finish: finishes a translated file, given the text before and after.
    """
    originals = [block.segments for block in parsed.blocks]
    old = parsed.render(originals)
    if form not in _IN_BLOCKS:
        return _JOINED[form](old, finish(old, parsed.render(segments)))
    joined = _in_blocks(parsed, old, originals, segments, languages, form == "epub" and _BOOK.search(old) is not None)
    return finish(old, joined) if form == "html" else joined


def _lines(old: str, new: str) -> str:
    """Return lines, each with its translation below it."""
    rows: list[str] = []
    ends = re.compile(r"(\r\n?|\n)")
    lines = [ends.split(text) for text in (old, new)]
    ending = next(iter(lines[0][1::2]), "\n")
    for number, (a, b) in enumerate(zip(*lines, strict=True)):
        rows.append(a if number % 2 or not b.strip() or a.strip() == b.strip() else f"{a}{ending}{b}")
    return "".join(rows)


def _cues(old: str, new: str) -> str:
    """Return cues, each with the lines of its translation below its own."""
    lines, others = lines_with_ends(old), lines_with_ends(new)
    cues: list[str] = []
    position, ending = 0, _break(old)
    for (start, end, _), (begin, stop, _) in zip(subtitles.cues_of(lines), subtitles.cues_of(others), strict=True):
        texts = lines[start:end], others[begin:stop]
        original, said = ([line.rstrip("\r\n") for line in text if line.strip()] for text in texts)
        cues += lines[position:end]
        position = end
        if original != said:
            last = cues.pop()
            text = last.rstrip("\r\n")
            cues.append(ending.join([text, *said]) + last[len(text) :])
    return "".join([*cues, *lines[position:]])


def _break(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _in_blocks(
    parsed: Parsed,
    old: str,
    originals: Sequence[Sequence[str]],
    segments: Sequence[Sequence[str]],
    languages: Languages,
    bare: bool,
) -> str:
    """Return a file, each block with its translation in it, and headings of Markdown with it below them."""
    front, at = front_matter(old), 0
    pieces: list[str] = []
    waiting, below = "", _BELOW  # the translation of a heading, with what stands before its line, and after the heading
    for number, piece in enumerate(parsed.pieces, 1):
        if isinstance(piece, str):
            at += len(piece)
            if waiting and "\n" in piece:
                piece, waiting = _below(piece, waiting, below, number == len(parsed.pieces)), ""
            pieces.append(piece)
            continue
        one = Parsed((piece,), parsed.blocks)
        a, b = one.render(originals), one.render(segments)
        block = parsed.blocks[piece]
        if at < front or not (block.place.kind or block.write is escape or _IMAGE.sub("", a).strip()):
            pieces.append(b)
        elif not b.strip() or a.strip() == b.strip():
            pieces.append(a)
        elif block.write is escape:
            pieces.append(_element(block, a, b, languages, bare))
        elif block.place.kind[:1] == "h":
            heading = _HEADING.search("".join(pieces[-1:]))
            before = heading[1] + " " * len(heading[2] or "") if heading else ""
            said = _AFTER.sub("", _once(b))
            start = _BEGINS.match(said)
            pieces.append(a)
            below = _ATTRIBUTES if heading and heading[3] else _BELOW
            waiting = before + (f"{said[: start.end()]}\\{said[start.end() :]}" if start else said)
        else:
            pieces.append(_paragraph(a, b))
        at += len(a)
    return "".join([*pieces, f"\n{waiting}" if waiting else ""])


def _below(piece: str, said: str, below: re.Pattern[str], last: bool) -> str:
    """Return what follows a heading, with its translation in the next line that is free."""
    line, rest = piece.split("\n", 1)
    while its := below.match(rest):
        line, rest = f"{line}\n{its[0].rstrip()}", rest[its.end() :]
    ends = _break(piece)
    quote = re.match(r"[ \t>]*", said)
    blank = "" if re.match(r"[ \t\r>]*\n", rest) or (not rest and last) else (quote[0].rstrip() if quote else "") + ends
    return f"{line}\n{said}{ends}{blank}{rest}"


def _paragraph(a: str, b: str) -> str:
    """Return a text of Markdown with its translation behind a line break; each definition has its own."""
    lines, others = a.split("\n"), b.split("\n")
    if len(lines) == len(others) and all(map(_DEFINITION.match, lines)):
        return "\n".join(f"{x}<br/>{_DEFINITION.sub('', y, count=1)}" for x, y in zip(lines, others))
    text, said = a.rstrip(), _once(b)
    space = " " if text.endswith("\\") else ""
    return f"{text}{space}<br/>{said}{a[len(text) :]}" if said else a


def _once(text: str) -> str:
    """Return a text without images, media and names, which its original has already."""

    def named(tag: re.Match[str]) -> str:
        if tag[2].lower() in ("img", "input", "source", "embed"):
            return ""
        return _ATTRIBUTE.sub(lambda one: "" if one[1].lower() in ("id", "name", "xml:id") else one[0], tag[0])

    return _TAG.sub(named, _IMAGE.sub("", _ONCE.sub("", text))).strip()


def _balanced(text: str) -> str:
    """Return a text without tags of elements, and of templates, of which it has a single end."""
    opened: list[re.Match[str]] = []
    lone: list[re.Match[str]] = []
    for tag in _TAG.finditer(text):
        if tag[1]:
            partner = opened.pop() if opened and opened[-1][2].lower() == tag[2].lower() else None
            lone += [] if partner else [tag]
        elif tag[2].lower() not in VOID and not tag[0].endswith("/>"):
            opened.append(tag)
    for tag in sorted([*lone, *opened], key=lambda tag: -tag.start()):
        text = text[: tag.start()] + text[tag.end() :]
    names = [code[1] for code in _CODE.finditer(text)]
    ends = sum(name.startswith("end") for name in names)
    return _CODE.sub("", text) if names and (2 * ends < len(names) or names[0].startswith(("end", "el"))) else text


def _element(block: Block, a: str, b: str, languages: Languages, bare: bool) -> str:
    """Return the content of an element of HTML: its text, and the translation in an element of its own."""
    said = _balanced(_once(b))
    said = re.sub(" {2,}", " ", said)
    text = " ".join(_TAG.sub("", said).split())
    if not text:
        return a
    if bare or block.place.kind in _BARE:
        end = re.search(r"(?:</[^<>]*>|\s)*\Z", a)
        place = end.start() if end else len(a)
        return f"{a[:place]} / {text}{a[place:]}"
    direction = f' dir="{languages.direction}"' if languages.direction else ""
    start = f'<span class="translation" lang="{languages.code}"{direction} style="display: block">'
    return f"{a.rstrip()}{start}{said}</span>{a[len(a.rstrip()) :]}"


_JOINED: dict[str, Callable[[str, str], str]] = {"text": _lines, "subtitles": _cues, "cues": _cues, "docx": word}
_IN_BLOCKS = ("markdown", "html", "epub")
