"""Partly translated files: given lines, finished units, earlier versions."""

from __future__ import annotations

import re

import pytest

from fairseq_lasformer import formats
from fairseq_lasformer.apps.files.file_translator import FileTranslator
from fairseq_lasformer.apps.files.reading import Earlier, _between, given_blocks
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.formats.block import Block
from fairseq_lasformer.plugin.model import LasformerModel

PO = """msgid ""
msgstr ""

msgid "w1 w2"
msgstr "W9 W9"

#, fuzzy
msgid "w3"
msgstr "W8"

msgid "w4 %s w5"
msgstr ""
"""
XLIFF = """<xliff version="1.2"><file source-language="xx" target-language="yy"><body>
<trans-unit id="1"><source>w1 <g id="1">w2</g></source><target>W9 <g id="1">W9</g></target></trans-unit>
<trans-unit id="2"><source>w3</source><target state="needs-translation">W8</target></trans-unit>
<trans-unit id="3"><source>w4 w5</source></trans-unit></body></file></xliff>"""


@pytest.fixture(scope="module")
def model(trained_folder):
    return LasformerModel.from_pretrained(trained_folder)


def opened(text: str, form: str = "text"):
    return formats.read(text.encode(), form)


def test_given_blocks_of_a_file_stay(model):
    files = FileTranslator(model, beam=2)
    text = opened("w1 w2. w3.\n\n - w4 w5.\nw6.\n")
    (done,) = files.translate([text], given=[{0: Block(("W1 W2. W3!",)), 1: Block(("W9 no",))}])
    lines = done.data.decode().split("\n")
    assert lines[:3] == ["W1 W2. W3!", "", " - W9 no"] and lines[3]
    assert [line.line.translation for line in done.lines[:3]] == ["W1 W2.", "W3!", "W9 no"]
    (whole,) = files.translate([text], given=[{0: Block(("W1 alone",))}])  # one sentence for two
    assert whole.data.decode().startswith("W1 alone\n") and len(whole.lines) == 3
    long = opened(" ".join(["w1 w2 w3 w4 w5."] * 20) + "\n")
    with pytest.raises(InputError, match="paragraph that is too long"):
        files.translate([long], given=[{0: Block(("W1",))}])


@pytest.mark.parametrize("text, form", [(PO, "po"), (XLIFF, "xliff")])
def test_finished_units_are_context(model, text, form):
    file = opened(text, form)
    assert [(f.source, f.target, f.reviewed, f.before) for f in file.finished] == [
        ("w1 w2", "W9 W9", True, 0),
        ("w3", "W8", False, 0),
    ]
    (done,) = FileTranslator(model, beam=2).translate([file])
    assert "1 unit kept, used as context" in done.counts.summary() and done.counts.sentences == len(done.lines) == 1
    (more,) = FileTranslator(model, beam=2, unreviewed=True).translate([file])
    assert "2 units kept" in more.counts.summary()
    source = done.lines[0].line.source
    (expected,) = model.translate_documents([f"w1 w2\n{source}"], beam=2, progress=False, given=[{1: "W9 W9"}])
    assert done.lines[0].line.translation == expected.split("\n")[1]
    kept = [line for line in text.split("\n") if "W9" in line]
    assert all(line in done.data.decode() for line in kept)


def since(model, old: str, translation: str, new: str, form: str = "text", **options):
    """Return a new source translated with an earlier version and its translation."""
    files = FileTranslator(model, beam=2, **options)
    (made,) = files.translate([opened(new, form)], given=[Earlier(opened(old, form), opened(translation, form))])
    return made


def test_what_has_not_changed_keeps_its_translation_also_by_hand(model):
    old, new = "# w1 w2\n\nw3 w4 *w5 w6*. w6 w7.\n\nw8.\n", "# w1 w2\n\nw3 w4 *w5 w6*. w9 w1.\n\nw2 w2.\n\nw8.\n"
    translation = "# W1 by hand\n\nW3 W4 *W5 W6*. W6 by hand.\n\nW8 by hand.\n"
    made = since(model, old, translation, new, "markdown")
    after = made.data.decode().split("\n\n")
    assert after[0] == "# W1 by hand" and after[3] == "W8 by hand.\n" and after[1].startswith("W3 W4 ")
    assert made.counts.given == 3 and made.counts.sentences == 5  # a sentence of the changed paragraph stays, too
    assert since(model, old, translation, old, "markdown").data.decode() == translation
    with pytest.raises(InputError, match="3 paragraphs, but its translation has 1; not versions"):
        since(model, old, "W1\n", new, "markdown")
    assert since(model, "w1\n", "W1\n", "").data == b""
    moved = since(model, "w1\nw2\nw3\n", "W7\nW8\nW9\n", "w3\nw1\nw2\n", lines=True)
    assert moved.data.decode().split("\n")[1:3] == ["W7", "W8"] and moved.counts.given == 2
    gone = since(model, "w1\nw2\nw3\n", "W7\nW8\nW9\n", "w1\nw3\n", lines=True)
    assert gone.data == b"W7\nW9\n"


def test_segments_of_a_kept_translation_do_not_go_between_other_markup():
    ours = Block(("a ", "b", "c"), (("<i>",), ("</i>", "\n")), fills=("", " "))
    assert _between(Block(("A", "B", "C"), (("\n", "<i>"), ("</i>",)), fills=(" ", "")), ours) == ("A ", "B", "C")
    assert _between(Block(("A", "B", "C"), (("\n",), ("<i>",)), fills=(" ", "")), ours) == ()


@pytest.mark.parametrize(
    "source, translation, expected",
    [
        ("w1 w2 <i>w3</i> w4", "W1 W2\n<i>W3</i> W4", "W1 W2 <i>W3</i> W4"),
        ("w1 w2\n<i>w3</i> w4", "W1 W2 <i>W3</i> W4", "W1 W2\n<i>W3</i> W4"),
        ("w1 <i>w2</i> w3", "W1\n<i>W2</i>\nW3", "W1 <i>W2</i> W3"),
        ("w1 w2 w3", "W1 W2\nW3", "W1 W2 W3"),
        ("<i>w1</i> w2 w3", "W1\nW2 <i>W3</i>", None),  # other markup: the words are kept, and go where it is now
    ],
)
def test_a_line_of_a_kept_translation_may_break_elsewhere(model, source, translation, expected):
    cue = "1\n00:00:01,000 --> 00:00:03,000\n{}\n"
    old, kept = opened(cue.format(source), "subtitles"), opened(cue.format(translation), "subtitles")
    (found,) = FileTranslator(model, beam=2).translate([old], given=[Earlier(old, kept)])
    made = found.data.decode().split("\n", 2)[2].rstrip("\n")
    assert found.counts.given == 1 and re.sub(r"</?i>", "", made).split() == re.sub(r"</?i>", "", translation).split()
    assert made == expected or expected is None and made.count("<i>") == made.count("</i>") == 1


def test_a_half_translated_copy_is_given(model, trained_folder, tmp_path, capsys):
    cue = "{}\n00:00:0{}.000 --> 00:00:0{}.500\n{}\n\n"
    cues = "".join(cue.format(i, i, i, line) for i, line in enumerate(["w1 w2", "w3 w4", "w5"]))
    (tmp_path / "film.vtt").write_text("WEBVTT\n\n" + cues)
    words = ["translate", trained_folder, tmp_path / "film.vtt", "-o", tmp_path / "out.vtt", "--beam", 2, "--quiet"]
    (tmp_path / "film.yy.vtt").write_text((tmp_path / "film.vtt").read_text().replace("w3 w4", "W9 W9"))
    assert main(list(map(str, [*words, "--given", tmp_path / "film.yy.vtt"]))) == 0
    made = (tmp_path / "out.vtt").read_text().split("\n\n")
    (text,) = model.translate_documents(["w1 w2\nw3 w4\nw5"], beam=2, progress=False, given=[{2: "W9 W9"}])
    given = text.split("\n")
    assert [" ".join(cue.split("\n")[2:]).strip() for cue in made[1:4]] == [given[0], "W9 W9", given[2]]
    (tmp_path / "short.vtt").write_text("WEBVTT\n\n" + cue.format(0, 0, 0, "W1"))
    assert main(list(map(str, [*words, "--overwrite", "--given", tmp_path / "short.vtt"]))) == 1
    assert "has 1 paragraphs or cues, but the source has 3" in capsys.readouterr().err
    with pytest.raises(InputError, match="not for po, whose finished units are given"):
        given_blocks(b"", b"", "po", None, "f")


@pytest.fixture
def versions(tmp_path):
    """Folders of old sources, their translations (one edited) and new sources."""
    texts = {
        "old": {"a.txt": "w1 w2\nw3\n", "b.txt": "w4\nw5\n", "gone.txt": "w9\n"},
        "made": {"a.txt": "W1 W2\nby hand\n", "b.txt": "W4\nW5\n", "gone.txt": "W9\n"},
        "new": {"a.txt": "w1 w2\nw8\nw3\n", "b.txt": "w4\nw5\n", "c.txt": "w6\n"},
    }
    for folder, files in texts.items():
        (tmp_path / folder).mkdir()
        for name, text in files.items():
            (tmp_path / folder / name).write_text(text)
    return tmp_path


def translate(folder, *words):
    return main(["translate", *map(str, words), "--lines", "--beam", "2", "--device", "cpu"])


def test_a_folder_is_translated_since_an_earlier_version(trained_folder, versions, capsys):
    words = (trained_folder, versions / "new", "--since", versions / "old", versions / "made", "-o", versions / "out")
    assert translate(versions, *words) == 0
    told = capsys.readouterr().err
    assert "gone; not translated: gone.txt (1)" in told and "2 given" in told
    out = {path.name: path.read_text().splitlines() for path in (versions / "out").glob("*.txt")}
    assert out["a.txt"][::2] == ["W1 W2", "by hand"] and out["b.txt"] == ["W4", "W5"] and len(out["c.txt"]) == 1
    assert translate(versions, *words) == 0 and capsys.readouterr().err.count("already translated") == 3
    # another translation of the earlier version makes another file
    (versions / "made" / "b.txt").write_text("W4\nby hand\n")
    assert translate(versions, *words, "--quiet") == 0
    assert (versions / "out" / "b.txt").read_text() == "W4\nby hand\n"
    assert (versions / "made" / "a.txt").read_text() == "W1 W2\nby hand\n"  # inputs stay as they are


@pytest.mark.command
def test_workers_write_the_same_since_an_earlier_version(trained_folder, versions):
    words = (trained_folder, versions / "new", "--since", versions / "old", versions / "made", "--quiet", "-o")
    assert translate(versions, *words, versions / "one") == 0
    assert translate(versions, *words, versions / "two", "--jobs", 2) == 0
    one, two = ({p.name: p.read_bytes() for p in (versions / name).glob("*.txt")} for name in ("one", "two"))
    assert len(one) == 3 and one == two


def test_a_file_is_translated_since_an_earlier_version(trained_folder, versions, capsys):
    one = [folder / "a.txt" for folder in (versions / "new", versions / "old", versions / "made")]
    assert translate(versions, trained_folder, one[0], "--since", *one[1:], "-o", versions / "out.txt") == 0
    lines = (versions / "out.txt").read_text().splitlines()
    assert lines[::2] == ["W1 W2", "by hand"] and "2 given" in capsys.readouterr().err
    assert translate(versions, trained_folder, one[0], "--since", *one[1:]) == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_what_cannot_be_since_is_refused(trained_folder, versions, capsys):
    old, made, new = (versions / name for name in ("old", "made", "new"))
    (versions / "p.po").write_text(PO)
    (made / "b.txt").unlink()
    cases = [
        ((new / "a.txt", "--since", old / "a.txt", made / "a.txt", "-o", made / "a.txt"), "is written, but also"),
        ((new, "--since", old, made, "-o", made), "is also a folder of --since"),
        ((new, "--since", old, made / "a.txt", "-o", versions / "o"), "not a folder, but"),
        ((new / "a.txt", "--since", old / "a.txt", made / "none.txt", "-o", versions / "o.txt"), "no such file"),
        ((versions / "p.po", "--since", versions / "p.po", versions / "p.po", "-o", versions / "o.po"), "not for po"),
        ((new / "a.txt", "--since", old / "a.txt", made / "a.txt", "--given", made / "a.txt"), "without --given"),
        (("-", "--since", old / "a.txt", made / "a.txt"), "for one file or folder that is named"),
    ]
    for words, message in cases:
        assert translate(versions, trained_folder, *words) == 1
        assert message in (error := capsys.readouterr().err), error
    assert (made / "a.txt").read_text() == "W1 W2\nby hand\n"
    # in a folder, a file without its translation fails alone
    assert translate(versions, trained_folder, new, "--since", old, made, "-o", versions / "out") == 1
    assert "b.txt: no such file" in capsys.readouterr().err and (versions / "out" / "a.txt").exists()


def test_an_earlier_version_may_lie_in_the_folder_and_its_translation_have_another_encoding(
    trained_folder, tmp_path, capsys
):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "made").mkdir()
    for name, text in (("old/a.txt", "w1 é\nw3\n"), ("a.txt", "w1 é\nw3\n"), ("b.txt", "w2\n")):
        (tmp_path / name).write_text(text, encoding="latin-1")
    for name in ("a.txt", "b.txt"):  # b.txt is new, though a translation has its name
        (tmp_path / "old" / "made" / name).write_text("Ä1 ж\nby hand\n", encoding="utf-8")
    words = (tmp_path, "--since", tmp_path / "old", tmp_path / "old/made", "-o", tmp_path / "out")
    encodings = ("--encoding", "latin-1", "--encoding-out", "utf-8")
    assert translate(tmp_path, trained_folder, *words, *encodings) == 0
    assert "gone" not in capsys.readouterr().err
    made = {p.relative_to(tmp_path / "out").as_posix(): p.read_bytes() for p in (tmp_path / "out").rglob("*.txt")}
    assert set(made) == {"a.txt", "b.txt"} and made["a.txt"].decode() == "Ä1 ж\nby hand\n"
