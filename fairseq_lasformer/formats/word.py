"""Word's .docx: paragraphs ``w:p``, whose text is in ``w:t`` and formatted by the ``w:rPr`` of its run ``w:r``.

See ECMA-376, part 1, section 17. Results of fields (page numbers, references) are computed again by Word: they are no
text, except those of ``HYPERLINK`` and ``TOC``. Text that is deleted or moved away is not read, nor are readings above
words (``w:rt``).
"""

import posixpath
import re
import zipfile
from typing import NamedTuple
from xml.parsers import expat

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, Parsed
from fairseq_lasformer.formats.builder import BlockBuilder
from fairseq_lasformer.formats.languages import Languages, language
from fairseq_lasformer.formats.markup import Piece, escape, xml_pieces
from fairseq_lasformer.formats.office import Archive, Parts, labels_with_words, one_prefix, prefix_of, read_archive
from fairseq_lasformer.text.spans import has_letter

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"

_PARTS = re.compile(r"word/(?:document|header\d*|footer\d*|footnotes|endnotes|comments)\.xml")
_KINDS = ("header", "footer", "footnotes", "endnotes", "comments")
_MARKED = re.compile(r"(?:styles|settings|numbering)\w*\.xml")
_SHOWN = {
    "diagrams/data": "diagram",
    "charts/chart": "chart",
    "drawings/": "drawing",
    "glossary/document": "building block",
}
_TEXT_FIELDS = ("HYPERLINK", "TOC", "FORMTEXT")
_LONG_FIELDS = ("TOC", "INDEX", "TOA", "BIBLIOGRAPHY", "ADDIN", "IF", "INCLUDETEXT", "DATABASE")
"""Fields whose result may be several paragraphs."""

_UNSEEN = ("moveFrom", "del", "rt")
_EAST, _RIGHT = ("ja", "ko", "zh"), ("ar", "fa", "he", "ur")


def read_docx(data: bytes, languages: Languages = Languages()) -> Archive:  # noqa: B008
    """Read the paragraphs of a Word document: body, headers, footers, notes and comments.

    Args:
        languages: runs and styles that say they are in the source language say the target.
    """
    archive = read_archive(data, _parts, _parsed, "a .docx file")
    return archive._replace(finish=lambda text: _in_language(_keeping_space(text), languages))


def _parts(archive: zipfile.ZipFile) -> Parts:
    names = set(archive.namelist())
    main = next((target for kind, target in _related(archive, "") if kind == "officeDocument"), "")
    main = main if main in names else "word/document.xml"
    folder = posixpath.dirname(main)
    parts = {main, *(target for kind, target in _related(archive, main) if kind in _KINDS)}

    def shown(name: str) -> str:
        inner = name.removeprefix(f"{folder}/")
        return next((what for start, what in _SHOWN.items() if inner.startswith(start) and inner.endswith(".xml")), "")

    return Parts(
        main,
        lambda name: name in parts or _PARTS.fullmatch(name) is not None,
        lambda name: posixpath.dirname(name) == folder and _MARKED.fullmatch(posixpath.basename(name)) is not None,
        shown,
        lambda archive: _further(archive, main),
    )


def _further(archive: zipfile.ZipFile, main: str) -> list[tuple[str, str]]:
    """Return the documents that Word imports when it opens this one, and words in the labels of lists."""
    names, folder = set(archive.namelist()), posixpath.dirname(main)
    parts = [
        ("imported chunk", target) for kind, target in _related(archive, main) if kind == "aFChunk" and target in names
    ]
    lists = posixpath.join(folder, "numbering.xml")
    if lists in names:
        said = archive.read(lists).decode("utf-8", "replace")
        labels = re.findall(r'<\w{1,20}:lvlText\s[^<>]{0,200}?\bval="([^"<>]{0,400})"', said)
        parts += labels_with_words(labels, lists)
    return parts


def _related(archive: zipfile.ZipFile, part: str) -> list[tuple[str, str]]:
    """Return the parts that a part names, each with its kind; of the archive itself for an empty name."""
    folder, name = posixpath.split(part)
    place = posixpath.join(folder, "_rels", f"{name}.rels")
    try:
        pieces = xml_pieces(archive.read(place).decode("utf-8-sig"))
    except (KeyError, InputError, UnicodeDecodeError, expat.ExpatError):
        return []
    related = []
    for piece in pieces:
        said = piece.attributes
        if piece.local == "Relationship" and "Target" in said and said.get("TargetMode") != "External":
            target = said["Target"]
            path = target[1:] if target.startswith("/") else posixpath.normpath(posixpath.join(folder, target))
            related.append((said.get("Type", "").rpartition("/")[2], path))
    return related


class _Field(NamedTuple):
    """An open field: what it says so far, and whether its result has begun."""

    instruction: str
    result: bool = False

    @property
    def hidden(self) -> bool:
        """Return whether text at this place is no text."""
        words = self.instruction.split()
        return not self.result or not words or words[0].upper() not in _TEXT_FIELDS

    @property
    def is_long(self) -> bool:
        """Return whether its result may be several paragraphs."""
        return self.instruction.strip().upper().startswith(_LONG_FIELDS)


class _Reader:
    """The state of a file that is being read."""

    def __init__(self, text: str) -> None:
        self.builder = BlockBuilder(escape)
        self.prefix = prefix_of(text, WORD, "w")
        self.cells = 0  # open cells of tables
        self.states: list[list[str]] = []  # properties of the open runs
        self.links: list[str] = []
        self.kept: list[str] | None = None  # the properties being read
        self.inside = ""  # the open element with text: t or instrText
        self.fields: list[_Field] = []  # the open fields, over any number of paragraphs
        self.simple: list[bool] = []  # for each open fldSimple, whether it is hidden
        self.unseen = 0
        self.controls: list[bool] = []  # for each open content control, whether its text is also elsewhere
        self.drawn = False  # whether this is text of a drawing

    @property
    def hidden(self) -> bool:
        """Return whether text at this place is not read."""
        return bool(self.unseen) or any(self.simple) or any(self.controls) or any(field.hidden for field in self.fields)

    @property
    def state(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Formatting at this place."""
        return tuple(self.links), tuple(self.states[-1]) if self.states else ()

    def add(self, piece: Piece) -> None:
        """Add a piece of the file."""
        builder, local = self.builder, piece.local if piece.name.startswith(self.prefix) else ""
        starts, ends = piece.kind == "start", piece.kind == "end"
        if local == "p" and (starts or ends):
            if starts:
                builder.keep(piece.raw)
                builder.at("td" if self.cells else "p")
                builder.begin()
            else:
                builder.end()
                builder.keep(piece.raw)
                # one that nothing ends must not hide the rest of the document
                self.fields = [field for field in self.fields if not field.hidden or field.is_long]
            return
        if starts:
            self._start(piece, local)
        if piece.name == "a:t":
            self.drawn = starts
        self.cells += (local == "tc") * (starts - ends)
        if self.kept is not None:
            # Word's notes about spelling and languages are invisible
            self.kept += [piece.raw] if local not in ("lang", "noProof") else []
        if ends:
            self._end(local)
        if piece.kind == "text" and self.inside:
            self._text(piece)
        elif piece.name == "v:textpath" and starts or piece.kind == "text" and self.drawn:
            self.builder.misread(piece.raw, "drawing")
        elif local == "noBreakHyphen" and builder.inside and not self.hidden:
            if starts:
                builder.keep(f'<{self.prefix}t xml:space="preserve">')
                builder.text("\u2011", self.state)
                builder.keep(f"</{self.prefix}t>")
        elif starts and local in ("fldChar", "fldSimple"):
            self._field(piece, local)
        else:
            apart = local in ("tab", "ptab") or piece.attributes.get(f"{self.prefix}type") in ("page", "column")
            if starts and apart and self.states and not self.hidden and builder.inside:
                builder.part(piece.raw)
                return
            builder.keep(piece.raw, BREAK if local in ("br", "tab", "cr", "sym", "ptab") and not self.hidden else "")

    def _start(self, piece: Piece, local: str) -> None:
        builder = self.builder
        if builder.inside and local == "numPr":
            builder.kind("li")
        elif builder.inside and local == "bookmarkStart":
            name = piece.attributes.get(self.prefix + "name", "")
            builder.name("" if name.startswith("_") else name)  # _GoBack and the like are Word's own
        if local == "r":
            self.states.append([])
        elif local == "rPr" and self.states:
            self.kept = self.states[-1]
        elif local == "hyperlink":
            self.links.append(piece.raw)
        elif local in ("t", "instrText") and not piece.raw.endswith("/>"):
            self.inside = local
        elif local == "sdt":
            self.controls.append(False)
        elif local in ("dataBinding", "dropDownList", "comboBox") and self.controls:
            self.controls[-1] = True
        self.unseen += local in _UNSEEN

    def _end(self, local: str) -> None:
        if local == "r" and self.states:
            self.states.pop()
        elif local == "rPr":
            self.kept = None
        elif local == "hyperlink" and self.links:
            self.links.pop()
        elif local in ("t", "instrText"):
            self.inside = ""
        elif local == "fldSimple" and self.simple:
            self.simple.pop()
        elif local == "sdt" and self.controls:
            self.controls.pop()
        self.unseen -= local in _UNSEEN

    def _field(self, piece: Piece, local: str) -> None:
        """Begin or end a field, or the result of one, which the model reads as a placeholder."""
        kind = piece.attributes.get(self.prefix + "fldCharType", "")
        if local == "fldSimple":
            hidden = _Field(piece.attributes.get(self.prefix + "instr", ""), True).hidden
            self.builder.keep(piece.raw, PLACEHOLDER if hidden and not self.hidden else "")
            self.simple.append(hidden)
            return
        shown = False
        if kind == "begin":
            self.fields.append(_Field(""))
        elif kind == "separate" and self.fields:
            field = self.fields.pop()._replace(result=True)
            shown = field.hidden and not self.hidden
            self.fields.append(field)
        elif kind == "end" and self.fields:
            self.fields.pop()
        self.builder.keep(piece.raw, PLACEHOLDER if shown else "")

    def _text(self, piece: Piece) -> None:
        if self.inside == "instrText":
            if self.fields and not self.fields[-1].result and len(self.fields[-1].instruction) < 1000:
                self.fields[-1] = _Field(self.fields[-1].instruction + piece.text)
            self.builder.keep(piece.raw)
        elif self.hidden and any(self.controls):
            self.builder.keep("", PLACEHOLDER if self.builder.inside else "")
            self.builder.misread(piece.raw, "content control")
        elif self.hidden or self._raised(piece.text):
            self.builder.keep(piece.raw)
        elif self.states and any("vanish" in p and "0" not in p and "false" not in p for p in self.states[-1]):
            if self.builder.inside:
                self.builder.part(piece.raw)  # hidden text is no part of a sentence
            else:
                self.builder.keep(piece.raw)
        elif self.builder.inside:
            self.builder.text(piece.text, self.state, piece.raw)
        else:
            self.builder.misread(piece.raw, "text")

    def _raised(self, text: str) -> bool:
        """Return whether this is a raised or lowered number, sign or single letter, which stays beside its word."""
        raised = self.states and any("superscript" in p or "subscript" in p for p in self.states[-1])
        return bool(raised) and text == text.strip() and (len(text) == 1 or not has_letter(text))


def _parsed(text: str) -> Parsed:
    text = one_prefix(text, WORD)
    reader = _Reader(text)
    for piece in xml_pieces(text):
        reader.add(piece)
    return reader.builder.parsed()


def _keeping_space(text: str) -> str:
    """Keep the space around text, which Word ignores unless told not to: words have moved."""
    prefix = prefix_of(text, WORD, "w")
    return re.sub(rf"<{prefix}t>(?=\s|[^<]*\s</)", f'<{prefix}t xml:space="preserve">', text)


def _in_language(text: str, languages: Languages) -> str:
    """Return a file in which what is marked as the source language is marked as the target."""
    if not languages.target:
        return text
    prefix = prefix_of(text, WORD, "w")
    code = f"{language(languages.target)}-{languages.region}" if languages.region else languages.code
    spoken = language(languages.target)
    script = "eastAsia" if spoken in _EAST else "bidi" if spoken in _RIGHT else ""

    def marked(match: re.Match[str]) -> str:
        tag = match[0]
        for name in ("val", "eastAsia", "bidi"):
            said = re.search(rf'\s{prefix}{name}\s*=\s*"([^"]*)"', tag)
            if said and languages.replaces(said[1]):
                tag = tag[: said.start(1)] + code + tag[said.end(1) :]
                if name == "val" and script:
                    tag = re.sub(rf'\s{prefix}{script}\s*=\s*"[^"]*"', "", tag)
                    tag = re.sub(r"(?=\s*/?>\Z)", f' {prefix}{script}="{code}"', tag, count=1)
        return tag

    return re.sub(rf"<{prefix}(?:lang|themeFontLang)\s[^<>]*>", marked, text)
