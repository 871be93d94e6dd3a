"""Every format: everything except text comes back byte for byte, and all text is translated exactly once."""

from __future__ import annotations

import io
import random
import re
import zipfile

import pytest
from helpers import ROOT

from fairseq_lasformer import formats
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.formats import subtitles
from fairseq_lasformer.formats.compose import compose
from fairseq_lasformer.formats.markup import html_pieces
from fairseq_lasformer.formats.projection import by_place
from fairseq_lasformer.formats.sentences import sentences, splitter

AS_IT_COMES = formats.Finishing(mark=False, width=0)


def translated(data: bytes, form: str, change=str.upper, finishing=AS_IT_COMES) -> tuple[bytes, list[str]]:
    """Return a file with changed sentences, and the sentences."""
    file = formats.read(data, form, None, finishing)
    segments, seen = [], []
    for block in file.blocks:
        found = sentences(block, splitter("en"))
        seen += [s.text for s in found]
        segments.append(compose(block, found, [change(s.text) for s in found], by_place).segments)
    return file.write(segments), seen


class Writer:
    """Writer of random files. Words of the text are numbered (``word12q``), so each can be found again."""

    def __init__(self, seed: int) -> None:
        self.random, self.count = random.Random(seed), 0

    def pick(self, *options: str) -> str:
        return self.random.choice(options)

    def times(self, most: int) -> range:
        return range(self.random.randint(1, most))

    def word(self) -> str:
        self.count += 1
        return f"word{self.count}q"

    def sentence(self, inline=lambda word: word) -> str:
        words = [inline(self.word()) for _ in range(self.random.randint(1, 9))]
        return " ".join(words) + self.pick(".", "!", "?", ".", ", right?")

    def paragraph(self, inline=lambda word: word, between: str = " ") -> str:
        return between.join(self.sentence(inline) for _ in self.times(4))

    def text(self) -> bytes:
        end = self.pick("\n", "\r\n")
        lines = []
        for _ in self.times(12):
            lines += [self.pick("", "  ", "\t", "- ", "  * ", "3. ") + self.paragraph() + self.pick("", "  ")]
            lines += [""] * self.random.randint(0, 2)
        return (self.pick("", "\ufeff") + end.join(lines) + self.pick("", end)).encode()

    def html(self) -> bytes:
        def inline(word: str) -> str:
            return self.pick(
                word,
                word,
                word,
                f"<b>{word}</b>",
                f'<a href="x?a=1&amp;b=&lt;2">{word}</a>',
                f"<em><i>{word}</i></em>",
                f"<code>if (a &lt; b)</code> {word}",
                f"{word} &amp;",
                f'<span class="c">{word}</span>',
                f"{word}<!-- no -->",
            )

        body = []
        for _ in self.times(8):
            p = self.paragraph(inline, self.pick(" ", "\n   "))
            body.append(
                self.pick(
                    f"<p>{p}</p>",
                    f"<div  class='a'><h2>{p}</h2>\n</div>",
                    f"<ul><li>{p}<li>{self.paragraph(inline)}</ul>",
                    f"<table><tr><td>{p}</td><td> </td></tr></table>",
                    f"<p>{p}<br/>{self.paragraph(inline)}</p>",
                    f'<p translate="no">keep &eacute; this</p>&nbsp;<pre>\n keep this </pre>{p}',
                )
            )
        head = f"<!DOCTYPE html>\n<html><head><title>{self.sentence()}</title>"
        head += "<script>if (a < b) { f('<p>no</p>') }</script>"
        return (head + "<style>p > b {}</style></head>\n<body>" + "\n".join(body) + "</body></html>\n").encode()

    def markdown(self) -> bytes:
        def inline(word: str) -> str:
            return self.pick(
                word,
                word,
                word,
                f"**{word}**",
                f"*{word}*",
                f"__{word}__",
                f'[{word}](http://a.b/c_d "t")',
                f"`a_b*` {word}",
                f"{word} ![alt](i.png)",
                f"<https://x.y> {word}",
                f"[{word}][1]",
                f"~~{word}~~",
                f"{word} 2 * 3",
            )

        parts = []
        for _ in self.times(8):
            p = self.paragraph(inline)
            parts.append(
                self.pick(
                    f"## {p} ##",
                    p,
                    p.replace(" ", "\n", 1),
                    f"> {p}\n> {self.paragraph(inline)}",
                    f"- {p}\n- {self.paragraph(inline)}\n  - {self.sentence(inline)}",
                    f"1. {p}\n2. {self.sentence(inline)}",
                    f"| {self.sentence()} | {self.word()} |\n|---|:-:|\n| {self.sentence(inline)} | |",
                    f"```sh\nkeep this\n```\n\n{p}",
                    f"{self.sentence()}\n=====",
                    f"<div>\n{self.sentence()}\n</div>",
                    f"{p}  \n{self.sentence()}",
                    "    keep code\n\n---",
                )
            )
        front = self.pick("", "---\nlayout: keep this\n---\n\n")
        return (front + "\n\n".join(parts) + "\n\n[1]: http://keep.this\n").encode()

    def subtitles(self) -> bytes:
        end, point = self.pick("\n", "\r\n"), self.pick(",", ".")
        cues, words = [] if point == "," else ["WEBVTT - keep", "", "NOTE keep this", ""], []
        for _ in self.times(10):
            words += self.paragraph().split(" ")
        time = 0
        while words:
            time += self.random.randint(1, 5)
            lines = []
            for _ in self.times(2):
                n = self.random.randint(1, 5)
                line, words = " ".join(words[:n]), words[n:]
                lines += [self.pick("", "", "<i>", "- ") + line] if line else []
            lines = [line + "</i>" if "<i>" in line else line for line in lines]
            cues += [
                str(len(cues)),
                " --> ".join(f"00:{t // 60:02}:{t % 60:02}{point}000" for t in (time, time + 1)),
            ]
            cues += [*lines, ""]
        return end.join(cues).encode()

    def po(self) -> bytes:
        entries = ['msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n']
        self.sources: list[str] = []
        for _ in self.times(10):
            words = [self.pick("%s", "{name}", "%(n)d", '\\"', "keepme", "keepme") for _ in self.times(4)]
            words[0] = "keepme"
            entries.append(f'#: a.c:{len(entries)}\nmsgid "{" ".join(words)}.\\n"\nmsgstr ""\n')
            self.sources.append(" ".join(words))
        return "\n".join(entries).encode()

    def xliff(self) -> bytes:
        source = 'keep <g id="1">keep</g> &amp; <x id="2"/>keep.'
        new = 'KEEP <g id="1">KEEP</g> &amp; <x id="2"/>KEEP.'
        units, self.expected = "", ""
        for i in self.times(10):
            begin = f'<trans-unit id="{i}"><source>{source}</source>'
            target = self.pick("", "<target>kept</target>", "<target/>")
            units += f"{begin}{target}</trans-unit>"
            self.expected += f"{begin}{target if 'kept' in target else f'<target>{new}</target>'}</trans-unit>"
        top, end = '<?xml version="1.0"?>\n<xliff version="1.2"><file><body>', "</body></file></xliff>"
        self.expected = top + self.expected + end
        return (top + units + end).encode()

    def archive(self, names: dict[str, str]) -> bytes:
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("mimetype", "keep", zipfile.ZIP_STORED)
            for name, text in names.items():
                archive.writestr(name, text)
            archive.writestr("media/image.png", bytes(range(256)))
        return made.getvalue()

    def docx(self) -> bytes:
        def run(text: str) -> str:
            bold = self.pick("", "<w:rPr><w:b/></w:rPr>", '<w:rPr><w:i/><w:lang w:val="en"/></w:rPr>')
            return f'<w:r w:rsidR="00A">{bold}<w:t xml:space="preserve">{text}</w:t></w:r>'

        def paragraph() -> str:
            words = self.paragraph().split(" ")
            runs = []
            while words:
                n = self.random.randint(1, 6)
                runs.append(run(" ".join(words[:n]) + (" " if words[n:] else "")))
                words = words[n:]
            return f'<w:p><w:pPr><w:jc w:val="left"/></w:pPr>{"".join(runs)}</w:p>'

        body = "".join(
            self.pick(paragraph(), f"<w:tbl><w:tr><w:tc>{paragraph()}</w:tc></w:tr></w:tbl>", paragraph() + "<w:p/>")
            for _ in self.times(6)
        )
        space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
        return self.archive(
            {
                "word/document.xml": f'<?xml version="1.0"?>\n<w:document {space}><w:body>{body}</w:body></w:document>',
                "word/header1.xml": f"<w:hdr {space}>{paragraph()}</w:hdr>",
                "word/styles.xml": "<keep>this</keep>",
            }
        )

    def odt(self) -> bytes:
        def inline(word: str) -> str:
            note = f"<text:note><text:note-citation>1</text:note-citation><text:p>{self.word()}</text:p></text:note>"
            return self.pick(
                word, word, f'<text:span text:style-name="T1">{word}</text:span>', f"{word}<text:s/>", word + note
            )

        body = "".join(
            self.pick(
                f'<text:p text:style-name="P1">{self.paragraph(inline)}</text:p>',
                f"<text:h>{self.sentence()}</text:h><text:p/>",
            )
            for _ in self.times(8)
        )
        space = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
        return self.archive({"content.xml": f"<office {space}>{body}</office>", "meta.xml": "<keep>this</keep>"})


def restored(data: bytes, original: bytes) -> bytes:
    """Return the original of an upper-cased file, in which each word must occur exactly once."""
    text = data.decode("utf-8")
    words = re.findall(r"\bword\d+q\b", original.decode("utf-8"))
    assert words and sorted(w.upper() for w in words) == sorted(re.findall(r"\bWORD\d+Q\b", text))
    return re.sub(r"WORD\d+Q|RIGHT\?", lambda m: m[0].lower(), text).encode()


@pytest.mark.parametrize("form", ["text", "html", "markdown", "subtitles"])
def test_what_is_not_text_comes_back_byte_for_byte(form):
    for seed in range(50):
        writer = Writer(seed)
        data = getattr(writer, form)()
        made, _ = translated(data, form)
        assert restored(made, data) == data, seed


@pytest.mark.parametrize("form", ["docx", "odt"])
def test_archives_keep_everything_else(form):
    for seed in range(50):
        writer = Writer(seed)
        data = getattr(writer, form)()
        made, _ = translated(data, form)
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(io.BytesIO(made)) as new:
            assert [(i.filename, i.compress_type, i.date_time) for i in old.infolist()] == [
                (i.filename, i.compress_type, i.date_time) for i in new.infolist()
            ]
            whole = b"".join(new.read(i) for i in new.infolist() if i.filename.endswith(".xml"))
            expected = b"".join(old.read(i) for i in old.infolist() if i.filename.endswith(".xml"))
            assert restored(whole, expected) == expected, seed
            assert new.read("media/image.png") == bytes(range(256))


def test_every_message_is_filled_and_its_placeholders_survive():
    for seed in range(50):
        writer = Writer(seed)
        data = writer.po().decode()
        made = translated(data.encode(), "po")[0].decode()
        filled = re.findall(r'msgstr "(.+)"', made)
        assert filled == [s.replace("keepme", "KEEPME") + ".\\n" for s in writer.sources]
        assert re.sub(r'(?<=msgstr ").+(?=")', "", made) == data


def test_units_without_a_translation_get_one():
    for seed in range(50):
        writer = Writer(seed)
        assert translated(writer.xliff(), "xliff")[0].decode() == writer.expected


def test_what_has_a_translation_keeps_it():
    data = b'msgid "one file"\nmsgid_plural "%d files"\nmsgstr[0] ""\nmsgstr[1] ""\n\nmsgid "done"\nmsgstr "fertig"\n'
    made = translated(data, "po")[0].decode()
    assert 'msgstr[0] "ONE FILE"\nmsgstr[1] "%d FILES"\n' in made and 'msgstr "fertig"' in made


def test_a_pause_ends_a_sentence():
    cues = "1\n00:00:01,000 --> 00:00:02,000\nno end\n\n2\n00:00:0{},000 --> 00:00:09,000\nnext one\n"
    assert translated(cues.format(3).encode(), "subtitles")[1] == ["no end next one"]
    assert translated(cues.format(5).encode(), "subtitles")[1] == ["no end", "next one"]


@pytest.mark.parametrize(
    "lines",
    [
        "<i>- no end</i>\n<i>- next one</i>",
        "{\\an8}- no end\n- next one",
        "{\\an8}<i> – no end</i>\n- <b>next one</b>",
        "<v Ann><i>>> no end</i>\n-<b>- next one</b>",
    ],
)
def test_a_speakers_dash_stays_before_and_after_tags(lines):
    made, texts = translated(f"1\n00:00:01,000 --> 00:00:03,000\n{lines}\n".encode(), "subtitles")
    assert texts == ["no end", "next one"]
    shown = lines.replace("no end", "NO END").replace("next one", "NEXT ONE")
    assert made.decode().endswith(f"\n{shown}\n")


def test_cues_of_two_speakers_are_not_wrapped_together():
    start = "1\n00:00:01,000 --> 00:00:03,000\n"
    long = "<i>- no</i>\n<i>- a line of more than the forty-two characters that fit</i>\n"
    assert subtitles.finish(f"{start}<i>- a</i>\n<i>- b</i>\n", start + long, 42) == start + long


def test_an_empty_element_ends_once():
    assert [(p.kind, p.raw) for p in html_pieces("<br/>a<hr>")] == [
        ("start", "<br/>"),
        ("end", ""),
        ("text", "a"),
        ("start", "<hr>"),
        ("end", ""),
    ]


def test_words_next_to_space_keep_it():
    """Word drops space at the edges of a text unless the text says that it matters."""
    run = "<w:r>{}<w:t>{}</w:t></w:r>"
    runs = run.format("", "one;") + run.format("<w:rPr><w:b/></w:rPr>", "two") + run.format("", ";three")
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    data = Writer(1).archive({"word/document.xml": f"<w:document {space}><w:p>{runs}</w:p></w:document>"})
    made = translated(data, "docx", lambda text: "eins; zwei; drei")[0]
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        text = archive.read("word/document.xml").decode()
    assert re.sub("<[^>]*>", "", text) == "eins; zwei; drei"
    assert not re.search(r"<w:t>(\s|[^<]*\s<)", text) and '<w:t xml:space="preserve">' in text


@pytest.mark.parametrize("path", sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]), ids=lambda p: p.name)
def test_our_own_pages(path):
    """Real Markdown, upper-cased: only the case of letters changes, outside code and links."""
    data = path.read_bytes()
    made, seen = translated(data, "markdown")
    assert made.decode().casefold() == data.decode().casefold() and len(seen) > 3
    fences = r"^```.*?^```"
    assert re.findall(fences, made.decode(), re.S | re.M) == re.findall(fences, data.decode(), re.S | re.M)


def test_what_begins_a_list_does_not_within_a_cell():
    table = "| a | b |\n|---|---|\n| + 264 | 1. x |\n\n"
    made = translated((table + "plain\n").encode(), "markdown", lambda text: text.replace("plain", "- 5 degrees"))[0]
    assert made.decode() == table + "\\- 5 degrees\n"


def test_a_document_made_by_python_docx():
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("the heading", 1)
    paragraph = document.add_paragraph("plain and ")
    paragraph.add_run("bold").bold = True
    paragraph.add_run(" and ")
    paragraph.add_run("italic.").italic = True
    document.add_table(1, 2).rows[0].cells[1].text = "in a cell"
    document.sections[0].header.paragraphs[0].text = "in the header"
    made = io.BytesIO()
    document.save(made)
    done = docx.Document(io.BytesIO(translated(made.getvalue(), "docx")[0]))
    assert [p.text for p in done.paragraphs] == ["THE HEADING", "PLAIN AND BOLD AND ITALIC."]
    assert [(r.text, r.bold, r.italic) for r in done.paragraphs[1].runs if r.bold or r.italic] == [
        ("BOLD", True, None),
        ("ITALIC.", None, True),
    ]
    assert done.tables[0].rows[0].cells[1].text == "IN A CELL"
    assert done.sections[0].header.paragraphs[0].text == "IN THE HEADER"


@pytest.mark.parametrize(
    "form, data, message",
    [
        ("docx", b"PK\x03\x04 and no more", "not a .docx file"),
        ("odt", Writer(1).docx(), "content.xml is missing"),
        ("xliff", b"<a>", "not well-formed XML"),
        ("xliff", b"<a/>", "not an XLIFF file"),
        ("xliff", b'<!DOCTYPE x [<!ENTITY a "b">]><xliff>&a;</xliff>', "declares an entity"),
        ("subtitles", b"no times", "no subtitle"),
        ("po", b"nothing", "no message"),
        ("text", b"\x00\x01\x02", "is not text"),
        ("text", b"\xff\xfe\x00", "not utf-16-le"),
    ],
)
def test_damaged_files_are_named(form, data, message):
    with pytest.raises(InputError, match=message):
        formats.read(data, form)
