"""Files in both languages: each text of the original, and its translation below it (``--bilingual``)."""

import re
from collections.abc import Callable, Iterator, Sequence

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.block import Block, Parsed
from fairseq_lasformer.formats.front_matter import front_matter
from fairseq_lasformer.formats.languages import Languages
from fairseq_lasformer.formats.markup import escape

STYLE = "Translation"
"""Style of translations in Word; in HTML, they have the class ``translation``."""

_BARE = ("title", "option", "optgroup", "button", "textarea")
"""Elements whose text has no markup and no second line: both are in one."""

_ID = re.compile(r"""\s(?:id|name)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>]+)""", re.I)
_ONCE = re.compile(r"<script\b.*?</script\s*>|<(?:img|input|source)\b[^<>]*>", re.I | re.S)
_IMAGE = re.compile(r"!\[[^\]\n]*\](?:\([^()\n]*\)|\[[^\]\n]*\])")
_BEGINS = re.compile(r"\A(\d*)([.)#>*+-]\s)")
"""What would make a paragraph something else, but not a heading."""

_TIMES = re.compile(r"(?m)^(?=[^\n]*-->)")
_BLANK = re.compile(r"\r?\n(?:[ \t\r]*\n)+|\r?\n(?=\d+[ \t\r]*\n\Z)")
_NOTE = re.compile(r"\r?\n[ \t\r]*\n(?=(?:NOTE|STYLE|REGION)\b)")
_PARAGRAPH = re.compile(r"(<w:p(?:\s[^<>]*)?(?<!/)>|</w:p>)")
_RUN = re.compile(r"<w:r(?:\s[^<>]*)?(?<!/)>(.*?)</w:r>", re.S)
_SHOWN = re.compile(r"<w:t(?:\s[^<>]*)?>[^<]*</w:t>|<w:(?:tab|br|noBreakHyphen)(?:\s[^<>]*)?/>")
_LOOK = re.compile(r"<w:rPr(?:\s[^<>]*)?>(.*?)</w:rPr>", re.S)


def check(form: str) -> None:
    """Refuse a format that cannot have both languages."""
    if form not in (*_JOINED, *_IN_BLOCKS, "docx"):
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
    own = [block.segments for block in parsed.blocks]
    if form in _IN_BLOCKS:
        return _in_blocks(parsed, own, segments, languages, finish if form == "html" else lambda old, new: new)
    old = parsed.render(own)
    new = finish(old, parsed.render(segments))
    return _word(old, new) if form == "docx" else _JOINED[form](old, new)


def with_style(text: str) -> str:
    """Return a file of Word with the style of translations, if it is the one with styles."""
    style = f'<w:style w:type="character" w:customStyle="1" w:styleId="{STYLE}"><w:name w:val="{STYLE}"/></w:style>'
    return text if f'w:styleId="{STYLE}"' in text else text.replace("</w:styles>", f"{style}</w:styles>")


def _lines(old: str, new: str) -> str:
    """Return lines, each with its translation below it."""
    pairs = zip(old.split("\n"), new.split("\n"), strict=True)
    return "\n".join(a if a.strip() == b.strip() else f"{a}\n{b}" for a, b in pairs)


def _cues(old: str, new: str) -> str:
    """Return cues, each with the lines of its translation below its own."""
    before, *cues = _TIMES.split(old)
    made = [before]
    for number, (a, b) in enumerate(zip(cues, _TIMES.split(new)[1:], strict=True), 1):
        end, last = _end(a, number == len(cues)), _end(b, number == len(cues))
        own, said = ([line for line in text.split("\n")[1:] if line.strip()] for text in (a[:end], b[:last]))
        told = [line.rstrip("\r") for line in said]
        made.append(_break(a).join([a[:end], *told]) + a[end:] if own != said else a)
    return "".join(made)


def _break(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _end(cue: str, last: bool) -> int:
    """Return where the text of a cue ends, before comments and the name of the next cue."""
    ends = [one.start() for one in _BLANK.finditer(cue)]
    note = _NOTE.search(cue)
    end = ends[-1] if ends and not last else len(cue.rstrip())
    return min(end, note.start()) if note else end


def _in_blocks(
    parsed: Parsed,
    own: Sequence[Sequence[str]],
    segments: Sequence[Sequence[str]],
    languages: Languages,
    finish: Callable[[str, str], str],
) -> str:
    old = parsed.render(own)
    front, at = front_matter(old), 0
    made: list[str] = []
    waiting = ""  # the translation of a heading, which goes below its line
    for number, piece in enumerate(parsed.pieces, 1):
        if isinstance(piece, str):
            at += len(piece)
            if waiting and "\n" in piece:
                line, rest = piece.split("\n", 1)
                ends = _break(piece)
                blank = "" if re.match(r"[ \t\r]*\n", rest) or not rest and number == len(parsed.pieces) else ends
                piece, waiting = f"{line}\n{waiting}{ends}{blank}{rest}", ""
            made.append(piece)
            continue
        one = Parsed((piece,), parsed.blocks)
        a, b = one.render(own), one.render(segments)
        block = parsed.blocks[piece]
        if at < front or not block.place.kind and block.write is not escape and _IMAGE.sub("", a).strip() == "":
            made.append(b)
        elif a.strip() == b.strip():
            made.append(a)
        elif block.write is escape:
            made.append(_element(block, a, b, languages))
        elif re.search(r"(?:\A|\n)#{1,6}[ \t]+\Z", "".join(made[-1:])):
            made.append(a)
            waiting = _BEGINS.sub(r"\1\\\2", re.sub(r"[ \t]*\{[#.:][^{}\n]*\}\Z", "", b))
        else:
            said = _IMAGE.sub("", b).strip()
            made.append(f"{a.rstrip()}<br/>{said}{a[len(a.rstrip()) :]}" if said else a)
        at += len(a)
    return finish(old, "".join([*made, f"\n{waiting}" if waiting else ""]))


def _element(block: Block, a: str, b: str, languages: Languages) -> str:
    """Return the content of an element of HTML: its text, and the translation in an element of its own."""
    if block.place.kind in _BARE:
        return f"{a.rstrip()} / {b.strip()}{a[len(a.rstrip()) :]}"
    said = re.sub("<[^<>]*>", lambda tag: _ID.sub("", tag[0]), _ONCE.sub("", b)).strip()
    if not re.sub("<[^<>]*>", "", said).strip():
        return a
    direction = f' dir="{languages.direction}"' if languages.direction else ""
    start = f'<span class="{STYLE.lower()}" lang="{languages.code}"{direction} style="display: block">'
    return f"{a.rstrip()}{start}{said}</span>{a[len(a.rstrip()) :]}"


def _word(old: str, new: str) -> str:
    """Return a file of Word, each paragraph with the runs of its translation in a line of its own."""
    made: list[str] = []
    open_: list[tuple[list[str], list[str]]] = []  # the text of both paragraphs, without those inside
    for a, b in zip(_PARAGRAPH.split(old), _PARAGRAPH.split(new), strict=True):
        if a.startswith("<w:p") and _PARAGRAPH.fullmatch(a):
            open_.append(([], []))
        elif a == "</w:p>" and open_:
            own, said = map("".join, open_.pop())
            if own != said:
                made += ["<w:r><w:br/></w:r>", *_runs(said)]
        elif open_:
            open_[-1][0].append(a)
            open_[-1][1].append(b)
        made.append(a)
    return "".join(made)


def _runs(paragraph: str) -> Iterator[str]:
    """Yield the runs of a paragraph that show text, without what must be in a file once."""
    for run in _RUN.findall(paragraph):
        if shown := [found for found in _SHOWN.findall(run) if found]:
            look = _LOOK.search(run)
            style = "" if look and "<w:rStyle" in look[1] else f'<w:rStyle w:val="{STYLE}"/>'
            yield f"<w:r><w:rPr>{style}{look[1] if look else ''}</w:rPr>{''.join(shown)}</w:r>"


_JOINED: dict[str, Callable[[str, str], str]] = {"text": _lines, "subtitles": _cues, "cues": _cues}
_IN_BLOCKS = ("markdown", "html", "epub")
