"""Conventions of each format: gettext's rules, XLIFF's states, subtitles that can be shown, placeholders."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import zipfile

import pytest
from test_hostile import WORD, archive
from test_structure import translated

from fairseq_lasformer import formats
from fairseq_lasformer.formats import po, subtitles

FINISHED = formats.Finishing()
HEADER = (
    'msgid ""\nmsgstr ""\n"Language: {}\\n"\n"Content-Type: text/plain; charset=UTF-8\\n"\n"Plural-Forms: {};\\n"\n\n'
)
ONE, TWO = "nplurals=1; plural=0", "nplurals=2; plural=(n != 1)"
RUSSIAN = "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2)"


def check(made: str, tmp_path) -> None:
    """Check that msgfmt --check accepts a file, once nothing in it is marked."""
    if not shutil.which("msgfmt"):
        pytest.skip("no msgfmt here (Debian: apt install gettext)")
    path = tmp_path / "made.po"
    path.write_text(re.sub(r"#, fuzzy,? ?", "#, ", made).replace("#, \n", ""), encoding="utf-8")
    done = subprocess.run(["msgfmt", "--check", "-o", "/dev/null", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# real messages from GNU's and Django's .pot files
C_MESSAGES = [
    "Error in %s on line %zu: ",
    "%ld bytes, %lu blocks, %jd seconds, %td",
    "%-*s|%.*s|%03lo",
    "stray \\\\ before %lc",
    "%<PRIuMAX> of %1$s",
    "%'d%% done",
    "\\n%s: %hhd\\n",
    "% d of 100% of it",
]


def test_every_directive_of_c_survives(tmp_path):
    text = HEADER.format("de", TWO) + "\n".join(f'#, c-format\nmsgid "{m}"\nmsgstr ""\n' for m in C_MESSAGES[:4])
    text += '\n#, c-format\nmsgid "%<PRIuMAX> bytes"\nmsgstr ""\n\n#, c-format\nmsgid "%2$s of %1$d"\nmsgstr ""\n'
    text += '\n#, c-format\nmsgid "%\'d%% done\\n"\nmsgstr ""\n'
    made = translated(text.encode(), "po", finishing=FINISHED)[0].decode()
    for old, new in zip(po.fields_of(text.splitlines(True)), po.fields_of(made.splitlines(True))):
        if old.name == "msgstr" and old.source:
            pattern = po.BY_FLAG["c-format"]
            assert new.value and po.directives(new.value, pattern) == po.directives(old.source, pattern)
    assert made.count("#, fuzzy, c-format") == 7
    check(made, tmp_path)


@pytest.mark.parametrize(
    "rule, expected", [(ONE, ["%d FILES"]), (TWO, ["ONE FILE", "%d FILES"]), (RUSSIAN, ["%d FILES"] * 3)]
)
def test_a_form_for_several_numbers_is_made_of_the_plural(rule, expected, tmp_path):
    forms = "".join(f'msgstr[{i}] ""\n' for i in range(len(expected)))
    text = HEADER.format("xx", rule) + f'#, c-format\nmsgid "one file"\nmsgid_plural "%d files"\n{forms}'
    made = translated(text.encode(), "po", finishing=FINISHED)[0].decode()
    assert re.findall(r'msgstr\[\d\] "(.*)"', made) == expected
    check(made, tmp_path)


@pytest.mark.parametrize("broken", ["no directive", "%d and %s", "%s %s", "%s\\n"])
def test_what_msgfmt_would_refuse_stays_empty(broken, tmp_path):
    text = HEADER.format("de", TWO) + '#, c-format\nmsgid "see %s"\nmsgstr ""\n\n#: a.c:1\nmsgid "fine"\nmsgstr ""\n'
    filled = text.replace('"see %s"\nmsgstr ""', f'"see %s"\nmsgstr "{broken}"').replace(
        '"fine"\nmsgstr ""', '"fine"\nmsgstr "gut"'
    )
    made = po.finish(text, filled, True)
    assert '#, c-format\nmsgid "see %s"\nmsgstr ""\n' in made
    assert '#: a.c:1\n#, fuzzy\nmsgid "fine"\nmsgstr "gut"\n' in made
    assert po.finish(text, filled, False).count("fuzzy") == 0
    check(made, tmp_path)


def test_translations_of_people_are_not_marked():
    text = (
        HEADER.format("de", TWO)
        + 'msgid "done"\nmsgstr "fertig"\n\n#, fuzzy\nmsgid "old"\nmsgstr "alt"\n\n#~ msgid "x"\n'
    )
    assert translated(text.encode(), "po", finishing=FINISHED)[0].decode() == text


@pytest.mark.parametrize("version", ["1.2", "2.0"])
def test_units_that_were_filled_are_marked_for_review(version):
    if version == "1.2":
        text = (
            '<xliff version="1.2"><file source-language="en" target-language="de"><trans-unit id="1"><source>a</source>'
        )
        text += '</trans-unit><trans-unit><source>b</source><target state="new"></target></trans-unit>'
        text += '<trans-unit><source>c</source><target state="final">d</target></trans-unit></file></xliff>'
        wanted = [
            '<target state="needs-review-translation">A</target>',
            '<target state="needs-review-translation">B</target>',
        ]
        wanted += ['<target state="final">d</target>']
    else:
        text = (
            '<xliff version="2.0" srcLang="en" trgLang="de"><unit><segment state="initial"><source>a</source></segment>'
        )
        text += '<segment state="final"><source>b</source><target>c</target></segment></unit></xliff>'
        wanted = [
            '<segment state="translated"><source>a</source><target>A</target>',
            '<segment state="final"><source>b',
        ]
    made = translated(text.encode(), "xliff", finishing=FINISHED)[0].decode()
    assert all(one in made for one in wanted), made
    assert formats.read(text.encode(), "xliff").languages == ("en", "de")
    assert "review" not in translated(text.encode(), "xliff")[0].decode()


PLACEHOLDERS = ["{{ limit }}", "%s", "{0}", "${name}", "%(count)d", "%1$s", "%name%", "%@", "{name}"]


@pytest.mark.parametrize("form", ["text", "wrapped", "html", "markdown", "subtitles", "xliff", "po", "docx", "odt"])
@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
def test_placeholders_are_kept_in_every_format(form, placeholder):
    """Whatever the model makes of their stand-ins; with the same space around them as in the source."""
    line = f"the value {placeholder} should be less."
    data = {
        "subtitles": f"1\n00:00:01,000 --> 00:00:02,000\n{line}\n",
        "xliff": f"<xliff><file><trans-unit><source>{line}</source></trans-unit></file></xliff>",
        "po": f'msgid "{line}"\nmsgstr ""\n',
        "html": f"<p>{line}</p>",
    }.get(form, line).encode()
    if form == "docx":
        data = archive("word/document.xml", f"<w:document {WORD}><w:p><w:r><w:t>{line}</w:t></w:r></w:p></w:document>")
    if form == "odt":
        space = 'xmlns:text="urn:oasis:names:tc:opendocument:xmlns:text:1.0"'
        data = archive("content.xml", f"<office {space}><text:p>{line}</text:p></office>")
    for change in (str.upper, lambda text: "Der Wert soll kleiner sein.", lambda text: text.replace("X1 ", "X1")):
        made = translated(data, form, change)[0]
        if form in ("docx", "odt"):
            with zipfile.ZipFile(io.BytesIO(made)) as opened:
                made = b"".join(opened.read(name) for name in opened.namelist())
        found = made.decode()
        assert placeholder in found.replace(line, "", 1 if form in ("xliff", "po") else 0), found
        shown = re.search(
            rf"(.?){re.escape(placeholder)}(.?)", found.replace(line, "", 1 if form in ("xliff", "po") else 0)
        )
        assert shown and not shown[1].isalnum() and not shown[2].isalnum(), found


@pytest.mark.parametrize(
    "text", ["100% of it", "50%off", "a % b", "it is {nearly", "10 %, then", "5 % d", "a<b", "x_y %"]
)
def test_what_only_looks_like_one_is_text(text):
    assert translated(text.encode(), "text")[1] == [text]


CUE = "{}\n00:00:0{},000 --> 00:00:0{},500\n{}\n\n"


def test_no_cue_has_an_empty_line_or_punctuation_alone():
    text = (
        CUE.format(1, 1, 1, "I saw the old\nman")
        + CUE.format(2, 2, 2, "under the bridge.")
        + CUE.format(3, 4, 5, "Yes.")
    )
    made = translated(text.encode(), "subtitles", lambda t: t.split()[0] + ".", FINISHED)[0].decode()
    blocks = made.strip().split("\n\n")
    assert len(blocks) == 3 and [b.split("\n")[1] for b in blocks] == [
        b.split("\n")[1] for b in text.strip().split("\n\n")
    ]
    for block in blocks:
        assert all(line.strip() for line in block.split("\n"))
    words = "one two three four five six seven eight ."
    made = subtitles.finish(
        text, text.replace("I saw the old\nman", words[:-2] + "\n").replace("under the bridge.", "."), 42
    )
    first, second, _ = ("\n".join(block.split("\n")[2:]) for block in made.strip().split("\n\n"))
    assert first == "one two three four" and second == "five six seven eight."


def test_a_cue_ends_where_the_next_begins():
    text = "WEBVTT\n\n00:01.000 --> 00:02.000\nno blank line\n00:03.000 --> 00:04.000\nafter it\n\n"
    text += "7\n00:05.000 --> 00:06.000\nnor here\n8\n00:07.000 --> 00:08.000\nwith a number\n"
    made, seen = translated(text.encode(), "subtitles")
    assert made.decode().count(" --> ") == 4 and "\n8\n" in made.decode()
    assert not any("-->" in one or "8" in one for one in seen)


def test_long_lines_are_wrapped_anew():
    long = "this line is very much longer than what fits on a television under a picture"
    text = CUE.format(1, 1, 2, "short")
    made = subtitles.finish(text, text.replace("short", f"<i>{long}</i>"), 42)
    lines = made.split("\n")[2:-2]
    assert [len(re.sub("<.*?>", "", line)) <= 42 for line in lines] == [True, True] and abs(
        len(lines[0]) - len(lines[1])
    ) < 12
    assert " ".join(lines) == f"<i>{long}</i>"
    assert subtitles.finish(text, text.replace("short", long), 0).split("\n")[2] == long
    before = CUE.format(1, 1, 2, long)  # what was long before may stay long
    assert subtitles.finish(before, before, 42) == before
