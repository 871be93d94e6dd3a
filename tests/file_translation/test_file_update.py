"""Partly translated files: given lines, finished units, updates."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_lasformer import formats
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.file_translation import update_jobs
from fairseq_lasformer.file_translation.file_translator import FileTranslator
from fairseq_lasformer.file_translation.file_update import FileUpdater
from fairseq_lasformer.file_translation.reading import _between, given_blocks
from fairseq_lasformer.file_translation.update_record import Entry, UpdateRecord
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


def test_an_updated_file_keeps_what_has_not_changed(model):
    updater = FileUpdater(FileTranslator(model, beam=2))
    old, new = "# w1 w2\n\nw3 w4 *w5 w6*. w6 w7.\n\nw8.\n", "# w1 w2\n\nw3 w4 *w5 w6*. w9 w1.\n\nw2 w2.\n\nw8.\n"
    (made,) = updater.files.translate([opened(old, "markdown")])
    edited = made.data.replace(b"\n\n", b"\n\n", 1)
    found = updater.update(opened(old, "markdown"), opened(edited.decode(), "markdown"), opened(new, "markdown"))
    before, after = edited.decode().split("\n\n"), found.made.data.decode().split("\n\n")
    assert after[0] == before[0] and after[3] == before[2] and found.changed
    # the model writes no full stops: the paragraph of two sentences is one line of the translation, and is new
    assert found.states == ["kept", "new", "new", "new", "kept"] and found.gone == 1 and "3 new" in found.summary()
    same = updater.update(opened(old, "markdown"), opened(edited.decode(), "markdown"), opened(old, "markdown"))
    assert same.made.data == edited and not same.changed
    with pytest.raises(InputError, match="not versions of the same document"):
        updater.update(opened(old, "markdown"), opened("W1\n", "markdown"), opened(new, "markdown"))
    empty = updater.update(opened("w1\n"), opened("W1\n"), opened(""))
    assert empty.made.data == b"" and empty.gone == 1


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
    found = FileUpdater(FileTranslator(model, beam=2)).update(old, kept, old)
    made = found.made.data.decode().split("\n", 2)[2].rstrip("\n")
    assert found.states == ["kept"] and re.sub(r"</?i>", "", made).split() == re.sub(r"</?i>", "", translation).split()
    assert made == expected or expected is None and made.count("<i>") == made.count("</i>") == 1


@pytest.mark.command
def test_the_command_updates_a_text(trained_folder, tmp_path, capsys):
    names = {"old": "w1 w2\nw3\n", "new": "w1 w2\nw3\nw4 w5\n", "table": "1\tW9 W9\n"}
    paths = {name: tmp_path / f"{name}.txt" for name in (*names, "made", "updated")}
    for name, text in names.items():
        paths[name].write_text(text)
    model = str(trained_folder)
    assert main(["translate", model, str(paths["old"]), "-o", str(paths["made"]), "--given", str(paths["table"])]) == 0
    assert paths["made"].read_text().startswith("W9 W9\n")
    words = ["update", model, str(paths["old"]), str(paths["made"]), str(paths["new"]), "-o", str(paths["updated"])]
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--exit-code"])
    assert stopped.value.code == 3 and "1 new" in capsys.readouterr().err
    updated = paths["updated"].read_text().split("\n")
    assert updated[:2] == paths["made"].read_text().split("\n")[:2] and updated[2]
    assert main([*words[:4], str(paths["old"]), "-o", str(paths["updated"]), "--exit-code", "--quiet"]) == 0
    for wrong, message in (
        ([*words[:3], str(paths["old"]), *words[4:6], str(paths["new"])], "is written, but also the argument new"),
        ([*words[:3], str(tmp_path / "none.txt"), *words[4:]], "cannot be read"),
        ([*words[:4], str(paths["table"]), *words[5:], "--from", "po"], "contains its own translation"),
        (["translate", model, str(tmp_path), "-o", str(tmp_path / "o"), "--given", str(paths["table"])], "not for a"),
    ):
        assert main(wrong) == 1 and message in capsys.readouterr().err
    piped = subprocess.run(
        [sys.executable, "-m", "fairseq_lasformer", "translate", model, "--given", str(paths["table"])],
        input=b"w1 w2\nw3\n",
        capture_output=True,
        check=True,
    )
    assert piped.stdout.startswith(b"W9 W9\n")


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


def test_what_was_stored_tells_which_lines_were_edited(model):
    updater = FileUpdater(FileTranslator(model, beam=2))
    old, new = opened("w1 w2\nw3\nw4 w5\n"), opened("w6\nw1 w2\nw3\nw4 w5\n")
    (made,) = updater.files.translate([old])
    lines = made.data.decode().split("\n")
    edited = opened("\n".join([lines[0], "W9 W9", *lines[2:]]))
    found = updater.update(old, edited, new, machine=opened(made.data.decode()))
    assert found.states[2] == "edited" and "edited" not in found.states[:2] + found.states[3:]
    assert found.made.data.decode().split("\n")[2] == "W9 W9"
    untouched = updater.update(old, edited, new, machine=edited)
    assert "edited" not in untouched.states
    with pytest.raises(InputError, match="not versions of the same document"):
        updater.update(old, edited, new, machine=opened("W1\n"))


def versions(tmp_path, model) -> tuple[list[str], Path]:
    """Return the words of an update in place, and its translation; the new source begins one line later."""
    old, new, made = (tmp_path / name for name in ("old.txt", "new.txt", "made.txt"))
    old.write_text("w1 w2\nw3\nw4 w5\n")
    new.write_text("w3\nw4 w5\nw6\n")
    made.write_text("W1\nW2\nW3\n")
    return ["update", str(model), *map(str, (old, made, new)), "-o", str(made), "--lines", "--beam", "2"], made


def test_an_update_in_place_is_made_once(trained_folder, tmp_path, capsys):
    words, made = versions(tmp_path, trained_folder)
    before = made.read_text()
    assert main(words) == 0
    updated = made.read_text()
    assert updated.split("\n")[:2] == before.split("\n")[1:3] and "1 new" in capsys.readouterr().err
    assert main(words) == 0 and "done before" in capsys.readouterr().err and made.read_text() == updated
    link = tmp_path / "link.txt"
    link.symlink_to(made)
    assert main([*words[:6], str(link), *words[7:]]) == 0 and made.read_text() == updated
    assert main([*words[:-1], "1"]) == 1 and "put the old translation back" in capsys.readouterr().err
    made.write_text(updated.upper())  # edited
    assert main(words) == 0 and made.read_text() == updated.upper()
    made.write_text(before)  # put back
    assert main(words) == 0 and made.read_text() == updated


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("step", ["before it is replaced", "after it is replaced"])
def test_a_killed_update_in_place_is_recognised(trained_folder, tmp_path, monkeypatch, folder, step):
    words, made = versions(tmp_path, trained_folder)
    if folder:
        for name in ("old", "new", "made"):
            (tmp_path / name).mkdir()
            (tmp_path / f"{name}.txt").rename(tmp_path / name / "a.txt")
        words = [word.removesuffix(".txt") for word in words]
        made = tmp_path / "made/a.txt"
    add = UpdateRecord.add

    def dying(self, name, entry):
        if entry.done == (step == "after it is replaced"):
            if not entry.done:
                add(self, name, entry)
            raise KeyboardInterrupt
        add(self, name, entry)

    before = made.read_text()
    with monkeypatch.context() as patch:
        patch.setattr(UpdateRecord, "add", dying)
        assert main(words) == 130
    killed = made.read_text()
    assert (killed == before) == (step == "before it is replaced")
    assert main(words) == 0
    updated = made.read_text()
    assert updated.split("\n")[:2] == before.split("\n")[1:3] and killed in (before, updated)
    assert main(words) == 0 and made.read_text() == updated
    # and where someone else has changed it since the kill, nothing is replaced
    record = made.parent / ".lasformer-update/updates"
    record.write_text("".join(line + "\n" for line in record.read_text().split("\n")[:1]))
    made.write_text("W7\nW8\nW9\n")
    assert main(words) == 1 and made.read_text() == "W7\nW8\nW9\n"


def test_a_torn_record_is_ignored(tmp_path):
    entry = Entry("s", "o", "n", "b", "m", True)
    record = UpdateRecord(tmp_path / "x")
    record.add("a", entry)
    record.ledger.path.write_bytes(record.ledger.path.read_bytes() + b'["b", "s", "o')
    record = UpdateRecord(tmp_path / "x")
    assert record.entries == {"a": entry}
    record.add("c", entry)
    assert UpdateRecord(tmp_path / "x").entries == {"a": entry, "c": entry}


def test_an_unrelated_file_is_not_replaced(trained_folder, tmp_path, capsys):
    words, made = versions(tmp_path, trained_folder)
    other = tmp_path / "other.txt"
    other.write_text("mine")
    assert main([*words[:6], str(other), *words[7:]]) == 1
    assert "--overwrite replaces it" in capsys.readouterr().err and other.read_text() == "mine"
    assert main([*words[:6], str(other), *words[7:], "--overwrite"]) == 0 and other.read_text() != "mine"


def folders(tmp_path):
    texts = {"same.txt": "w1 w2\nw3\n", "sub/changed.md": "# w1\n\nw2 w3.\n", "gone.txt": "w9\n"}
    for folder in ("old", "new"):
        for name, text in texts.items():
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(text)
    (tmp_path / "new/gone.txt").unlink()
    (tmp_path / "new/sub/changed.md").write_text("# w1\n\nw2 w3.\n\nw5.\n")
    (tmp_path / "new/fresh.txt").write_text("w7 w8\n")
    (tmp_path / "new/picture.png").write_text("")


def test_a_folder_is_updated_and_a_killed_run_resumes(trained_folder, tmp_path, capsys, monkeypatch):
    folders(tmp_path)
    old, new, known, out = (tmp_path / name for name in ("old", "new", "known", "out"))
    beam = ["--beam", "2"]
    assert main(["translate", str(trained_folder), str(old), "-o", str(known), *beam, "--quiet"]) == 0
    words = ["update", str(trained_folder), *map(str, (old, known, new)), "-o", str(out), *beam]
    update, calls = update_jobs.update_one, []

    def dying(updater, job, *rest):
        calls.append(job.new.name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return update(updater, job, *rest)

    monkeypatch.setattr(update_jobs, "update_one", dying)
    assert main(words) == 130
    assert len(list(out.glob("*.txt")) + list(out.glob("sub/*.md"))) == 1
    capsys.readouterr()
    assert main(words) == 0
    shown = capsys.readouterr().err
    assert calls == ["fresh.txt", "same.txt", "same.txt", "changed.md"] and "fresh.txt: done before" in shown
    assert "gone; their translations are kept" in shown and "picture.png" in shown
    assert (out / "same.txt").read_text() == (known / "same.txt").read_text()
    before, after = ((folder / "sub/changed.md").read_text().split("\n\n") for folder in (known, out))
    assert after[0] == before[0] and len(after) == 3 and (out / "fresh.txt").read_text().strip()
    assert not (out / "gone.txt").exists()
    # in place: the old translation is replaced, once
    assert main([*words[:5], "-o", str(known), *beam]) == 0
    assert (known / "sub/changed.md").read_text() == (out / "sub/changed.md").read_text()
    capsys.readouterr()
    assert main([*words[:5], "-o", str(known), *beam]) == 0
    assert capsys.readouterr().err.count("done before") == 3


def test_a_file_of_a_folder_fails_alone(trained_folder, tmp_path, capsys):
    folders(tmp_path)
    old, new, known, out = (tmp_path / name for name in ("old", "new", "known", "out"))
    known.mkdir()
    (known / "same.txt").write_text("W1 W2\n")  # a line is missing, and the other files have no translation
    (out / "sub").mkdir(parents=True)
    (out / "fresh.txt").write_text("mine")
    words = ["update", str(trained_folder), *map(str, (old, known, new)), "-o", str(out), "--beam", "1"]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "fresh.txt: exists, and no update wrote it" in error and "changed.md: its translation is missing" in error
    assert "not versions of the same document" in error and "3 of 3 files could not be updated" in error
    assert (out / "fresh.txt").read_text() == "mine" and not (out / "same.txt").exists()
    for wrong, message in (
        ([*words[:3], str(known / "same.txt"), *words[4:]], ": not a folder, but"),
        ([*words[:6], str(new), *words[7:]], "is a folder of sources"),
    ):
        assert main(wrong) == 1 and message in capsys.readouterr().err
