"""Every letter of a file is in a sentence, or is kept for a reason, or is counted as not understood.

Files are drawn from parts. In a part, ``R`` is a word that must be read, ``K`` one that must be kept, and ``U`` one in
text that a reader cannot understand, which it must report.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lasformer import formats
from fairseq_lasformer.formats.compose import compose
from fairseq_lasformer.formats.projection import by_place
from fairseq_lasformer.formats.sentences import sentences, splitter
from fairseq_lasformer.formats.word import WORD

ROOT = Path(__file__).parents[2]
_TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
_TIME = "00:00:0{0},000 --> 00:00:0{0},900\n"


def _entry(flags: str, source: str, target: str = "") -> str:
    return f'{flags}msgid "{source}"\nmsgstr "{target}"\n\n'


def _run(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


def _field(instruction: str, result: str) -> str:
    marks = [f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")]
    return f"{marks[0]}<w:r><w:instrText>{instruction}</w:instrText></w:r>{marks[1]}{_run(result)}{marks[2]}"


def _p(inner: str) -> str:
    return f"<w:p>{inner}</w:p>"


PARTS: dict[str, list[str]] = {
    "text": [
        "R R.\n",
        "R, R at https://K.org/K!\n",
        "42\n",
        "- R R\n",
        "\n",
        "😀 R.\n",
        "{n, plural, one {R} other {R R}}\n",
    ],
    "wrapped": ["R R\nR.\n\n", "  R\n\n", "K_K.tar.gz\n\n", "R {{ K }} R.\n\n"],
    "markdown": [
        "R R.\n\n",
        "# R\n\n",
        "> [!K]\n> R R.\n\n",
        ":::K\nR.\n:::\n\n",
        ":::note[R R]\nR.\n:::\n\n",
        '!!! K "R R"\n\n    R R.\n\n',
        "- [ ] R R\n- [x] R\n\n",
        "| R | R \\| R |\n|---|---|\n| 42 | R |\n\n",
        "$$\nK\n$$\n\n",
        "R `K` [R](K.html).\n\n",
        "```K\nK K\n```\n\n",
        "{: .K }\n\n",
        "R &amp; R [[K|R]].\n\n",
        "\\begin{align}\nK\n\\end{align}\n\n",
        "\\begin{tabular}\nK\n\\end{tabular}\n\n",
        "R\n: R R\n\n",
        "<div class='K'>\nR <code>K</code>\n</div>\n\n",
        "![[K]]\n\n",
        "import K from 'K';\n\n",
    ],
    "html": [
        "<p>R <b>R</b>.</p>",
        "<p class=K>R<p>R",
        "<ul><li class=notranslate>K<li>R</ul>",
        "<div translate=no>K <span translate=yes>R</span></div>",
        "<script src=/K/>K</script>",
        "<style>K</style><pre>K</pre>",
        "<?php if ($K > 1) { echo 'K'; } ?>",
        "<p>R <%= K > 1 %> R.</p>",
        "<table><tr><td>R<td translate=no>K<tr><td>R</table>",
        "<ruby>R<rp>(</rp><rt>K</rt><rp>)</rp></ruby>",
        "<dl><dt class=notranslate>K<dd>R</dl>",
        "<select><option translate=no>K<option>R</select>",
        "<!-- K -->",
        "<p>{# K #} R {{ K }}.</p>",
        "<title>R &amp; R</title>",
    ],
    "subtitles": [
        "1\n" + _TIME.format(1) + "R R.\n\n",
        "2\n" + _TIME.format(2) + "<i>R</i>\nR.\n\n",
        "3\n00:00:03,5 -> 00:00:04\nR.\n\n",
        "4\n" + _TIME.format(4) + "R.\n\nR.\n\n",
        "5\n00:0x:05,000 --> 00:00:06,000\nU.\n\n",
        "6\n" + _TIME.format(6) + "{\\p1}m 0 0 l K K{\\p0}\n\n",
        "7\n" + _TIME.format(7) + "♪ ♪\n\n",
    ],
    "webvtt": [
        "K\n00:01.000 --> 00:02.000 line:5%\nR &amp; R.\n\n",
        "NOTE K K\n\n",
        "STYLE\n::cue {{ color: K }}\n\n".replace("{{", "{").replace("}}", "}"),
        "00:03.50 --> 00:04.000\n<v K>R.</v>\n\n",
        "U U.\n\n",
    ],
    "ass": [
        "Dialogue: 0,0:00:01.00,0:00:02.00,Default,K,0,0,0,,R, R\\NR.\n",
        "Dialogue: 0,0:00:03.00,0:00:04.00,Default,,0,0,0,,{\\i1}R{\\i0}.\n",
        "Comment: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,K\n",
        "Dialogue: 0,0:00:05.00,0:00:06.00,Sign,,0,0,0,,{\\p1}m 0 0 l K{\\p0}\n",
        "Dialogue: 0,now,0:00:06.00,Sign,,0,0,0,,U.\n",
    ],
    "po": [
        _entry("", "R R."),
        _entry("#, c-format\n", "R %s R"),
        _entry("# K\n", "K K", "K"),
        _entry("", "{n, plural, one {R} other {R R}}"),
        _entry("", "R\u2028R."),
        'msgid "K" U\n\n',
    ],
    "xliff": [
        "<trans-unit id='0'><source>R <g id='1'>R</g>.</source></trans-unit>",
        "<trans-unit id='0' translate='no'><source>K</source></trans-unit>",
        "<trans-unit id='0'><source>K</source><target><![CDATA[K]]></target></trans-unit>",
        "<trans-unit id='0'><source>R <mrk mtype='protected'>K</mrk>.</source></trans-unit>",
        "<trans-unit id='0'><source>R <ph id='1'>K</ph></source><target/></trans-unit>",
        "<trans-unit id='0'><source><![CDATA[R R]]></source></trans-unit>",
        "<group>U</group>",
    ],
    "docx": [
        _p(_run("R R.")),
        _p(_run("R ") + _field("PAGE", "K") + _run(" R.")),
        _p(_field('HYPERLINK "K"', "R R")),
        _p('<w:fldSimple w:instr="K">' + _run("K") + "</w:fldSimple>" + _run(" R")),
        _p("<w:moveFrom>" + _run("K") + "</w:moveFrom>" + _run("R")),
        _p("<w:ruby><w:rt>" + _run("K") + "</w:rt><w:rubyBase>" + _run("R") + "</w:rubyBase></w:ruby>"),
        _p("<w:del><w:r><w:delText>K</w:delText></w:r></w:del>" + _run("R")),
        "<w:sdt>" + _run("U") + "</w:sdt>",
    ],
    "odt": [
        "<text:p>R <text:span>R</text:span>.</text:p>",
        "<text:p>R <text:date>K</text:date> R.</text:p>",
        "<text:tracked-changes><text:deletion><text:p>K</text:p></text:deletion></text:tracked-changes>",
        "<text:p>R<text:note><text:note-citation>K</text:note-citation><text:note-body><text:p>R.</text:p></text:note-body>"
        "</text:note></text:p>",
        "<text:h><text:ruby><text:ruby-base>R</text:ruby-base><text:ruby-text>K</text:ruby-text></text:ruby></text:h>",
    ],
}

AROUND = {
    "html": "<body>{}</body>",
    "webvtt": "WEBVTT\n\n00:00.000 --> 00:00.900\nfirst.\n\n{}",
    "subtitles": "0\n" + _TIME.format(0) + "first.\n\n{}",
    "ass": "[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
    "Dialogue: 0,0:00:00.00,0:00:00.50,Default,,0,0,0,,first.\n{}",
    "po": 'msgid "first"\nmsgstr ""\n\n{}',
    "xliff": "<xliff version='1.2'><file original='a'><body>{}</body></file></xliff>",
    "docx": f"<w:document xmlns:w='{WORD}'><w:body>{{}}</w:body></w:document>",
    "odt": f"<office xmlns:text='{_TEXT}'>{{}}</office>",
}
OURS = sorted(
    path
    for place in ("docs", "examples", "data", "fairseq_lasformer", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    for path in [ROOT / place, *(ROOT / place).rglob("*")]
    if path.is_file() and formats.format_of(path.name)
)
MAIN = {"docx": "word/document.xml", "odt": "content.xml"}


def written(form: str, parts: list[str]) -> tuple[bytes, dict[str, str]]:
    """Return a file of some parts, and the meaning of each of its words."""
    meanings: dict[str, str] = {}

    def word(slot: re.Match[str]) -> str:
        name = f"word{'abcdefghij'[len(meanings) // 10 % 10]}{'abcdefghij'[len(meanings) % 10]}{slot[0].lower()}"
        meanings[name] = slot[0]
        return name

    body = "".join(re.sub(r"(?<![A-Za-z])[RKU](?![A-Za-z])", word, part) for part in parts)
    text = AROUND.get(form, "{}").replace("{}", body)
    return packed(form, text), meanings


def packed(form: str, text: str) -> bytes:
    if form not in MAIN:
        return text.encode()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(MAIN[form], text)
    return made.getvalue()


def shown(form: str, data: bytes) -> str:
    if form not in MAIN:
        return data.decode()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read(MAIN[form]).decode()


def read(form: str, data: bytes) -> formats.OpenFile:
    return formats.read(data, "subtitles" if form == "webvtt" else form, finishing=formats.Finishing(False, 0))


@pytest.mark.parametrize("form", PARTS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_word_is_read_or_kept_or_reported(form, data):
    parts = data.draw(st.lists(st.sampled_from(PARTS[form]), min_size=1, max_size=9))
    content, meanings = written(form, parts)
    file = read(form, content)
    seen, segments = [], []
    for block in file.blocks:
        found = sentences(block, splitter("en"))
        seen += [sentence.text for sentence in found]
        segments.append(compose(block, found, [s.text.upper() for s in found], by_place).segments)
    words = Counter(re.findall(r"word\w\w\w", " ".join(seen)))
    assert words == Counter(name for name, meaning in meanings.items() if meaning == "R"), seen
    assert len(file.unread) == sum("U" in re.findall(r"(?<![A-Za-z])U(?![A-Za-z])", part) for part in parts)
    made = shown(form, file.write(segments))
    for name, meaning in meanings.items():
        assert name.upper() in made if meaning == "R" else name in made, (name, made)


@pytest.mark.parametrize("form", PARTS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_letter_is_lost_or_doubled_in_damaged_files(form, data):
    """A file whose sentences do not change comes out as it was, whatever has been cut out of it or put into it."""
    parts = data.draw(st.lists(st.sampled_from(PARTS[form]), min_size=1, max_size=9))
    text = shown(form, written(form, parts)[0])
    pieces = ["<", ">", "-->", "\n\n", '"', "{", "}", "$$", ":::", "&amp;", "|", "\\", "</p>", "%>", "]]>", "#", "'"]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        piece = data.draw(st.sampled_from(pieces))
        text = text[:at] + piece + text[at + data.draw(st.integers(0, 12)) :]
    try:
        file = read(form, packed(form, text))
    except formats.InputError:
        return
    made = shown(form, file.write([block.segments for block in file.blocks]))
    lost = Counter(filter(str.isalpha, text)) - Counter(filter(str.isalpha, made))
    assert not lost
    if form not in ("po", "xliff", "subtitles", "webvtt", "docx"):  # those add translations, or change white space
        assert made == text


def test_what_is_not_understood_is_named_by_its_line():
    text = "0\n00:00:00,000 --> 00:00:00,900\nfirst.\n\n1\n00:0y:05,000 --> 00:00:06,000\nlost.\n\n2\n00:00:09,000 --> x\nlost.\n"
    file = formats.read(text.encode(), "subtitles")
    assert [(one.line, one.what) for one in file.unread] == [(6, "cue"), (10, "cue")] and file.units == 1


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_our_own_files_are_understood(path):
    """Nothing in a real page, text or program's page is unread, and without a change it is the same file."""
    data = path.read_bytes()
    file = formats.read(data, formats.format_of(path.name))
    assert not file.unread
    assert file.write([block.segments for block in file.blocks]) == data
