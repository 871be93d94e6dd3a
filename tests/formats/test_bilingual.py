"""Files in both languages: the original stays, and each text has its translation below it."""

import io
import re
import xml.etree.ElementTree as ElementTree
import zipfile

import pytest

from fairseq_lasformer import formats
from fairseq_lasformer.base.errors import InputError

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def both(data: bytes, form: str, target: str = "de", change=str.upper) -> bytes:
    """Return a file with its text, and the same in capitals."""
    file = formats.read(data, form, None, formats.Finishing(bilingual=True), "en", target)
    return file.write([tuple(map(change, block.segments)) for block in file.blocks])


PAGE = '<p id=x>One <b id="y">two</b> <img src=x>three.</p>'
SAID = '<span class="translation" lang="de" style="display: block">ONE <b>TWO</b> THREE.</span>'


@pytest.mark.parametrize(
    "form, text, expected",
    [
        ("text", "One. Two.\n\n - three\n42\n", "One. Two.\nONE. TWO.\n\n - three\n - THREE\n42\n"),
        ("text", "one\r\n\r\ntwo", "one\r\nONE\r\n\r\ntwo\r\nTWO"),
        ("markdown", "# Head {#a}\ntext\n", "# Head {#a}\nHEAD\n\ntext<br/>TEXT\n"),
        ("markdown", "# Head #\n\n## 1. Next", "# Head #\nHEAD\n\n## 1. Next\n1\\. NEXT"),
        ("markdown", "- a [b](#c)\n  d\n\n> e\n", "- a [b](#c)\n  d<br/>A [B](#c)\n  D\n\n> e<br/>E\n"),
        ("markdown", "| a | 1 |\n|---|---|\n| b | c |\n", "| a<br/>A | 1 |\n|---|---|\n| b<br/>B | c<br/>C |\n"),
        ("markdown", "---\ntitle: One\n---\n![](x.png)\n", "---\ntitle: ONE\n---\n![](x.png)\n"),
        ("markdown", f"{PAGE}\n", PAGE.replace("</p>", f"{SAID}</p>") + "\n"),
        ("text", "one\rtwo", "one\rONE\rtwo\rTWO"),
        ("markdown", "# Head { #a }\n{: .b }\ntext", "# Head { #a }\n{: .b }\nHEAD\n\ntext<br/>TEXT"),
        ("markdown", "# Head\n- text\n", "# Head\nHEAD\n\n- text<br/>TEXT\n"),
        ("markdown", "> # Head\n> text\n", "> # Head\n> HEAD\n>\n> text<br/>TEXT\n"),
        ("markdown", "Head\n----\n\ntext\\\n", "Head\n----\nHEAD\n\ntext\\ <br/>TEXT\\\n"),
        (
            "markdown",
            "# ~~~ one\n\ntwo ![a [b]](c.png){d=1}\n",
            "# ~~~ one\n\\~~~ ONE\n\ntwo ![a [b]](c.png){d=1}<br/>TWO\n",
        ),
        ("markdown", "[^1]: one is.\n[^2]: two is.\n", "[^1]: one is.<br/>ONE IS.\n[^2]: two is.<br/>TWO IS.\n"),
        (
            "html",
            '<b>one<br>two</b> <img alt="a > b"> three',
            '<b>one<T>ONE</T><br>two</b> <img alt="a > b"> three<T>TWO THREE</T>',
        ),
        (
            "html",
            "{% if a %}<b>one{% else %}<b>two{% endif %}</b>",
            "{% if a %}<b>one<T>ONE</T>{% else %}<b>two{% endif %}</b><T><b>TWO</b></T>",
        ),
        ("html", PAGE, PAGE.replace("</p>", f"{SAID}</p>")),
        ("html", "<title>One</title><option>two", '<title>One / ONE</title><option value="two">two / TWO'),
        ("html", "<html lang=en><p>42<script>a</script>", "<html lang=en><p>42<script>a</script>"),
    ],
)
def test_each_text_has_its_translation_below(form, text, expected):
    expected = expected.replace("<T>", SAID[: SAID.index(">") + 1]).replace("</T>", "</span>")
    assert both(text.encode(), form).decode() == expected


def test_tables_of_contents_of_books_have_both_in_one_text():
    made = io.BytesIO()
    nav = '<html xmlns:epub="e"><nav epub:type="toc"><ol><li><a href="a.xhtml">One</a></li></ol></nav></html>'
    files = {
        "META-INF/container.xml": "<container/>",
        "a.opf": "<package><metadata><dc:title>One</dc:title></metadata></package>",
        "toc.ncx": "<ncx><navLabel><text>One</text></navLabel></ncx>",
        "nav.xhtml": nav,
        "a.xhtml": '<html xmlns="http://www.w3.org/1999/xhtml"><p><i xml:id="a">One</i></p></html>',
    }
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    with zipfile.ZipFile(io.BytesIO(both(made.getvalue(), "epub"))) as archive:
        texts = {name: archive.read(name).decode() for name in files}
    for name in ("a.opf", "toc.ncx", "nav.xhtml"):
        assert texts[name] == files[name].replace(">One<", ">One / ONE<"), name
    assert f'<i xml:id="a">One</i>{SAID[: SAID.index(">") + 1]}<i>ONE</i></span></p>' in texts["a.xhtml"]


def test_right_to_left():
    assert '<span class="translation" lang="ar" dir="rtl" style' in both(b"<p>one</p>", "html", "ar").decode()


CUES = """WEBVTT

NOTE kept

00:01.000 --> 00:02.000 align:left
One two.
Three.

name
00:03.000 --> 00:04.000
Four.

00:05.000 --> 00:06.000
5

NOTE the end
"""


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("form", ["subtitles", "cues"])
def test_cues_have_both(form, ending):
    expected = CUES.replace("Three.", "Three.\nONE TWO.\nTHREE.").replace("Four.", "Four.\nFOUR.")
    made = both(CUES.replace("\n", ending).encode(), form).decode()
    assert made == expected.replace("\n", ending)


def run(text: str, look: str = "") -> str:
    return f"<w:r>{look}<w:t>{text}</w:t></w:r>"


def document(body: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("word/document.xml", f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>')
        archive.writestr("word/styles.xml", f'<w:styles xmlns:w="{WORD}"></w:styles>')
    return made.getvalue()


def test_a_paragraph_of_word_has_a_line_in_a_style_of_its_own():
    bold = '<w:rPr><w:b/><w:rPrChange w:id="1"><w:rPr><w:i/></w:rPr></w:rPrChange></w:rPr>'
    page = '<w:r><w:br w:type="page"/></w:r>'
    marked = f'<w:p><w:bookmarkStart w:id="1"/>{run("one")}{run(" two", bold)}<w:r><w:footnoteReference w:id="2"/></w:r></w:p>'
    nested = f"<w:p>{run('out')}<w:r><w:pict><w:txbxContent><w:p>{run('in')}</w:p></w:txbxContent></w:pict></w:r></w:p>"
    with zipfile.ZipFile(
        io.BytesIO(both(document(f"{marked}<w:p/>{nested}<w:p>{run('last')}{page}</w:p>"), "docx"))
    ) as archive:
        text, styles = (archive.read(f"word/{name}.xml").decode() for name in ("document", "styles"))
    assert '<w:style w:type="character" w:customStyle="1" w:styleId="Translation">' in styles
    assert text.count("w:bookmarkStart") == text.count("w:footnoteReference") == text.count("w:pict>") / 2 == 1
    said = r'<w:r><w:br/></w:r><w:r><w:rPr><w:rStyle w:val="Translation"/></w:rPr><w:t>{}</w:t></w:r>'
    start = said.format("ONE") + '<w:r><w:rPr><w:rStyle w:val="Translation"/><w:b/></w:rPr>'
    assert re.search(re.escape(start) + "<w:t[^>]*> TWO</w:t></w:r></w:p><w:p/>", text)
    assert text.endswith(f"{said.format('LAST')}{page}</w:p></w:body></w:document>") and text.count("w:rPrChange>") == 1
    assert said.format("IN") + "</w:p></w:txbxContent>" in text and said.format("OUT") + "</w:p><w:p>" in text
    paragraphs = [
        "".join(one.text or "" for one in p.iter(f"{{{WORD}}}t"))
        for p in ElementTree.fromstring(text).iter(f"{{{WORD}}}p")
    ]
    assert paragraphs == ["one twoONE TWO", "", "outinINOUT", "inIN", "lastLAST"]


@pytest.mark.parametrize("form, why", [("po", "which has both languages anyway"), ("ass", "not for ass")])
def test_other_formats_are_refused(form, why):
    with pytest.raises(InputError, match=f"--bilingual: for text.*{why}"):
        both(b"", form)
