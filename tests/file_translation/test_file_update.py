"""Files whose translation is partly there: given lines, finished units, updates."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fairseq_lasformer import formats
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.file_translation.file_translator import FileTranslator
from fairseq_lasformer.file_translation.file_update import FileUpdater
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
    old, new = "# w1 w2\n\nw3 *w4* w5. w6 w7.\n\nw8.\n", "# w1 w2\n\nw3 *w4* w5. w9 w1.\n\nw2 w2.\n\nw8.\n"
    (made,) = updater.files.translate([opened(old, "markdown")])
    edited = made.data.replace(b"\n\n", b"\n\n", 1)
    found = updater.update(opened(old, "markdown"), opened(edited.decode(), "markdown"), opened(new, "markdown"))
    before, after = edited.decode().split("\n\n"), found.made.data.decode().split("\n\n")
    assert after[0] == before[0] and after[3] == before[2] and found.changed
    # the model writes no full stops: the paragraph of two sentences is one line of the translation, and is new
    assert found.states == ["kept", "new", "new", "new", "kept"] and found.gone == 1 and "3 new" in found.summary()
    same = updater.update(opened(old, "markdown"), opened(edited.decode(), "markdown"), opened(old, "markdown"))
    assert same.made.data == edited and not same.changed
    with pytest.raises(InputError, match="no versions of each other"):
        updater.update(opened(old, "markdown"), opened("W1\n", "markdown"), opened(new, "markdown"))
    empty = updater.update(opened("w1\n"), opened("W1\n"), opened(""))
    assert empty.made.data == b"" and empty.gone == 1


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
        ([*words[:3], str(paths["old"]), *words[4:6], str(paths["new"])], "is a source"),
        ([*words[:3], str(tmp_path / "none.txt"), *words[4:]], "cannot be read"),
        ([*words[:4], str(paths["table"]), *words[5:], "--from", "po"], "holds its own translation"),
        (["translate", model, str(tmp_path), "-o", str(tmp_path / "o"), "--given", str(paths["table"])], "not for a"),
        (["translate", model, str(paths["old"]), "--from", "html", "--given", str(paths["table"])], "only for plain"),
    ):
        assert main(wrong) == 1 and message in capsys.readouterr().err
    piped = subprocess.run(
        [sys.executable, "-m", "fairseq_lasformer", "translate", model, "--given", str(paths["table"])],
        input=b"w1 w2\nw3\n",
        capture_output=True,
        check=True,
    )
    assert piped.stdout.startswith(b"W9 W9\n")
