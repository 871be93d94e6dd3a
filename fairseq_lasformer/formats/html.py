"""HTML: the text between the tags, by paragraphs, headings, cells and the like."""

import re
from collections.abc import Sequence
from html import unescape
from xml.sax.saxutils import quoteattr

from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.front_matter import add_front_matter, front_matter
from fairseq_lasformer.formats.html_tree import INLINE, READINGS, Tree
from fairseq_lasformer.formats.languages import Languages, language
from fairseq_lasformer.formats.markup import VOID, Piece, escape, html_pieces
from fairseq_lasformer.formats.templates import shows, splits
from fairseq_lasformer.text.spans import has_letter

_IN_A_LINE = frozenset(re.findall(r"\w+", "audio canvas code iframe kbd math object samp svg var video"))
"""Elements within a sentence, too, whose content is not translated."""

_PLAIN = INLINE - {"img", "input", "wbr"}
_OPTION = re.compile(r"(<option\b[^<>]{0,1000})>([^<]{0,1000})", re.I)
_QUOTE = {'"': "&quot;"}
_RAISED = ("sup", "sub")
_COUNTED = {"textarea": "form field", "iframe": "frame", "noframes": "frame", "text": "drawing", "tspan": "drawing"}
"""Elements whose text is shown and not translated, and what they are called where that is reported."""

_SUFFIX = re.compile(
    r"(?:ing|ings|ers?|est|ed|en|ly|ness|ment|ments|able|ible|tion|tions|less|ful|ity|ize|ized|ism|ist|ists|ung|ungen|"
    r"lich|keit|heit|ern|ens|er|es|em|s)"
)
_SAYS_LANGUAGE = re.compile(
    r"""(?:http-equiv|name|property)\s*=\s*["']?(?:content-language|language|og:locale)["'\s]""", re.I
)
_CONTENT = re.compile(r"""((?<=\s)content\s*=\s*["']?)([^\s"'>]+)""", re.I)
_LANGUAGE = re.compile(r"""((?<=\s)(?:xml:)?lang\s*=\s*["']?)([^\s"'>]+)""", re.I)
_DIRECTION = re.compile(r"""((?<=\s)dir\s*=\s*["']?)(?:ltr|rtl)(?=[\s"'>/])""", re.I)


def read(text: str, languages: Languages = Languages()) -> Parsed:  # noqa: B008
    """Read the blocks of an HTML file or fragment.

    Args:
        languages: elements that say they are in the source language say the target.
    """
    builder = BlockBuilder(escape)
    start = front_matter(text)
    add_front_matter(builder, text[:start])
    add(builder, text[start:], languages)
    return builder.parsed()


def finish(original: str, translated: str) -> str:
    """Return a translated page in which choices without a value send what they did: the text that they had."""
    if "<option" not in original.lower():
        return translated
    old, new = ([option for option in _OPTION.finditer(text)] for text in (original, translated))
    if len(old) != len(new):
        return translated
    pieces, position = [], 0
    for before, after in zip(old, new):
        if before[2].strip() != after[2].strip() and not re.search(r"(?<![\w-])value\s*=", before[1]):
            value = quoteattr(" ".join(unescape(before[2]).split()), _QUOTE)
            pieces += [translated[position : after.end(1)], f" value={value}"]
            position = after.end(1)
    return "".join([*pieces, translated[position:]])


def add(builder: BlockBuilder, text: str, languages: Languages = Languages()) -> None:  # noqa: B008
    """Add the blocks of an HTML file or fragment to others."""
    tree = Tree(languages.source)
    pieces = html_pieces(text)
    raised = 0  # where a raised or lowered number ends
    for number, piece in enumerate(pieces):
        if number < raised:
            builder.keep(piece.raw)
            continue
        if piece.kind == "start" and piece.name in _RAISED and tree.translated:
            raised = _of_a_number(pieces, number)
        if raised > number:
            builder.keep(piece.raw)
            continue
        if piece.kind == "text":
            if not tree.translated:
                what = _COUNTED.get(tree.open[-1].name)
                (builder.misread(piece.raw, what) if what else builder.keep(piece.raw))
                continue
            builder.enter()
            builder.text(piece.text, tree.formatting, piece.raw)
        elif piece.kind == "broken":
            builder.leave()
            builder.misread(piece.raw, "tag")
        elif piece.kind == "code":
            shown = tree.translated and shows(piece.raw)
            if shown:
                builder.enter()
            elif tree.translated and splits(piece.raw):
                builder.leave()
            builder.keep(piece.raw, PLACEHOLDER if shown else "")
        elif piece.kind == "other":
            builder.keep(piece.raw)
        elif piece.kind == "start":
            field = piece.name == "input" and piece.attributes.get("type", "").lower() != "hidden" and tree.translated
            glued = field and (_glued(pieces, number, -1) or _glued(pieces, number, 1))
            if glued:
                builder.leave()  # a label stays before its field
            said = field and _text(pieces, number, -1).strip()
            _start(builder, tree, piece, languages, PLACEHOLDER if said else "" if field else _fill(pieces, number))
            if glued:
                builder.leave()
        else:
            before = tree.translated
            if piece.name not in VOID:
                tree.end(piece.name)
            if (before or tree.translated) and piece.name not in INLINE and piece.name not in _IN_A_LINE:
                builder.leave()
                builder.at("")
            builder.keep(piece.raw, _fill(pieces, number) if builder.inside else "")
    builder.leave()


def _of_a_number(pieces: Sequence[Piece], number: int) -> int:
    """Return the end of a raised or lowered number or single letter, which stays beside its word; 0 for others."""
    text, name = "", pieces[number].name
    for i in range(number + 1, min(number + 12, len(pieces))):
        if pieces[i].kind == "end" and pieces[i].name == name:
            inside = _text(pieces, number, -1)[-1:].isalnum() and _text(pieces, i, 1)[:1].isalnum()
            short = text and text == text.strip() and (len(text) == 1 or not has_letter(text))
            return i + 1 if short and not inside else 0
        if pieces[i].kind == "text":
            text += pieces[i].text
        elif pieces[i].name not in _PLAIN:
            return 0
    return 0


def _text(pieces: Sequence[Piece], number: int, step: int) -> str:
    """Return the text before or after a piece, on the other side of inline tags; empty if another element is there."""
    for i in range(number + step, number + 16 * step, step):
        piece = pieces[i] if 0 <= i < len(pieces) else None
        if piece is None or piece.kind not in ("start", "end") or piece.name not in _PLAIN:
            return piece.text if piece is not None and piece.kind == "text" else ""
    return ""


def _glued(pieces: Sequence[Piece], number: int, step: int) -> bool:
    """Return whether there is text without a space next to a piece."""
    return not (_text(pieces, number, step) or " ")[-1 if step < 0 else 0].isspace()


def _fill(pieces: Sequence[Piece], number: int) -> str:
    """Return a break for an inline tag at which a word ends without a space; nothing for others.

    Words end between two elements, at the end of a link, where a small letter is before a capital, and where an element
    of a whole word is before letters that are no ending.
    """
    piece = pieces[number]
    if piece.name == "img" and piece.kind == "start":
        return BREAK
    if piece.kind != "end" or piece.name not in _PLAIN or number + 1 == len(pieces):
        return ""
    before, after = _text(pieces, number, -1), _text(pieces, number, 1)
    if not (before[-1:].isalnum() and after[:1].isalnum()):
        return ""
    following = pieces[number + 1]
    if following.kind == "start" or piece.name == "a" or (before[-1].islower() and after[0].isupper()):
        return BREAK if following.kind != "end" else ""
    started = pieces[number - 2] if number > 1 else None
    whole = started is not None and started.kind == "start" and not _text(pieces, number - 2, -1)[-1:].isalnum()
    letters = re.match(r"[^\W\d_]*", after)
    rest = letters[0] if letters else ""
    long = len(before) >= 4 and before.isalpha() and len(rest) >= 3 and not _SUFFIX.fullmatch(rest)
    return BREAK if whole and long else ""


def _start(builder: BlockBuilder, tree: Tree, piece: Piece, languages: Languages, fill: str) -> None:
    """Add the start of an element, with a fill if its content is translated."""
    name = piece.name
    translated, around = tree.start(piece)
    hidden, raw = not translated, piece.raw
    if hidden and not around:
        builder.keep(raw)
        return
    if name not in INLINE and not (hidden and name in _IN_A_LINE):
        builder.leave()
        builder.at(name, piece.attributes.get("id", ""))
    elif not hidden and name not in VOID:
        builder.enter()
        builder.name(piece.attributes.get("id") or piece.attributes.get("name", ""))
    said = piece.attributes.get("lang") or piece.attributes.get("xml:lang") or ""
    whole = not said and (name == "html" or (name == "body" and "dir" in piece.attributes))
    if not hidden and languages.direction and (whole or languages.replaces(said)):
        raw = _directed(piece, languages.direction)
    if not hidden and said:
        raw = _LANGUAGE.sub(lambda m: m[1] + languages.instead(m[2]), raw)
    if name == "meta" and _SAYS_LANGUAGE.search(raw):
        raw = _CONTENT.sub(lambda m: m[1] + (_alike(m[2], languages) if languages.replaces(m[2]) else m[2]), raw)
    shown = hidden and builder.inside and name not in VOID and name not in READINGS
    builder.keep(raw, PLACEHOLDER if shown else fill if builder.inside and not hidden else "")


def _directed(piece: Piece, direction: str) -> str:
    """Return the start of an element with the direction of its text."""
    if "dir" in piece.attributes:
        return _DIRECTION.sub(lambda m: m[1] + direction, piece.raw)
    return f'{piece.raw[: 1 + len(piece.name)]} dir="{direction}"{piece.raw[1 + len(piece.name) :]}'


def _alike(code: str, languages: Languages) -> str:
    """Return the target's code in the form of another: ``de_DE`` for ``en_US``."""
    return f"{language(languages.target)}_{languages.region}" if "_" in code and languages.region else languages.code
