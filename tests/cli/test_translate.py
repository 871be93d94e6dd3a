"""lasformer translate, as typed."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import run

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.shared_options import shard_of
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.documents import hub


@pytest.fixture
def letter(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_text("w1 w2 w3. w4 w5.\n\nw6 w7\n")
    return path


@pytest.mark.command
def test_standard_input_to_standard_output_is_quiet(by_lines_folder, letter):
    command = [Path(sys.executable).with_name("lasformer"), "translate", by_lines_folder, "--beam", "2"]
    done = subprocess.run(command, input=letter.read_bytes(), capture_output=True)
    assert done.returncode == 0 and done.stderr == b""
    assert [bool(line.strip()) for line in done.stdout.decode().split("\n")] == [True, False, True, False]
    assert run("lasformer", *command[1:], letter, "--quiet").stdout == done.stdout.decode()


def test_files_and_forms_of_output(by_lines_folder, letter, tmp_path, capsys):
    assert main(["translate", str(by_lines_folder), str(letter), "-o", str(tmp_path / "out.txt"), "--beam", "2"]) == 0
    assert "out.txt: 3 sentences" in capsys.readouterr().err
    options = ["--format", "jsonl", "--nbest", "2", "--beam", "2", "--quiet"]
    assert main(["translate", str(by_lines_folder), str(letter), "-o", f"{tmp_path}/made/", *options]) == 0
    rows = [json.loads(row) for row in (tmp_path / "made/letter.txt.jsonl").read_text().splitlines()]
    assert [row["source"] for row in rows] == ["w1 w2 w3.", "w4 w5.", "w6 w7"] and all(
        "alternatives" in r for r in rows
    )
    assert capsys.readouterr() == ("", "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["letter.txt", "made", "out.txt"]  # no state is left behind


def test_a_folder_with_a_bad_file(by_lines_folder, letter, tmp_path, capsys):
    (tmp_path / "bad.srt").write_text("no times")
    out = tmp_path / "out"
    assert main(["translate", str(by_lines_folder), str(tmp_path), "-o", str(out), "--beam", "1"]) == 1
    told = capsys.readouterr().err
    assert f"error: {tmp_path / 'bad.srt'}: contains no subtitle" in told
    assert "error: 1 of 2 files could not be translated" in told and (out / "letter.txt").exists()
    assert main(["translate", str(by_lines_folder), str(tmp_path), "-o", str(out), "--beam", "1"]) == 1
    assert "letter.txt: already translated" in capsys.readouterr().err


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(by_lines_folder, letter, tmp_path, capsys, monkeypatch):
    class Full:
        def write(self, data: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", SimpleNamespace(buffer=Full()))
        assert main(["translate", str(by_lines_folder), str(letter), "--quiet"]) == 1
    assert capsys.readouterr().err.endswith("error: standard output: cannot be written (No space left on device)\n")
    (tmp_path / "bad.docx").write_text("no archive")
    out = tmp_path / "out"
    out.mkdir()
    assert main(["translate", str(by_lines_folder), str(tmp_path / "bad.docx"), "-o", str(out / "x.docx")]) == 1
    assert not [*out.iterdir()]


@pytest.mark.parametrize(
    "words, message",
    [
        (["nothing.txt"], "nothing.txt: no such file or folder"),
        (["letter.xyz"], "letter.xyz: unknown format; known: .txt"),
        (["letter.pdf"], "letter.pdf: unknown format; PDF is not supported"),
        (["letter.doc"], "letter.doc: unknown format; save it as .docx"),
        (["letter.txt", "-o", "de"], "-o de: would be a file of this name; write de/ for a folder"),
        (["letter.txt", "-o", "loop"], "loop: cannot be written"),
        (["letter.txt", "--device", "meta"], "--device meta: expected cpu, cuda"),
        (["letter.txt", "--device", "mps"], "--device mps: expected cpu, cuda"),
        (["letter.txt", "--encoding", "undefined"], "--encoding undefined: no such encoding of text"),
        (["letter.txt", "--max-tokens", "-5"], "--max-tokens -5: expected at least 1"),
        (["letter.txt", "--overlap", "-1"], "--overlap -1: expected at least 0"),
        (["letter.txt", "--shard", "0/3"], "--shard 0/3: expected I/N"),
        (["letter.txt", "--glossary", "long"], "long:1: a term of more than 50 words"),
        (["letter.docx"], "letter.docx: name the translated file with -o"),
        (["letter.txt", "-o", "letter.txt"], "is written, but also what is translated"),
        (["."], "name the folder for the translations with -o"),
        (["letter.txt", "--nbest", "2"], "--nbest: needs --format tsv or jsonl"),
        (["letter.txt", "--from", "word"], "--from word: expected one of text, "),
        (["letter.txt", "--format", "csv"], "--format csv: expected one of text, tsv, jsonl"),
        (["letter.txt", "--beam", "0"], "at least 1"),
        (["letter.txt", "--device", "tpu:x"], "--device tpu:x: expected cpu, cuda"),
        (["letter.txt", "--encoding", "klingon"], "klingon: no such encoding"),
        ([".", "-o", "out", "--shard", "3/2"], "--shard 3/2: expected I/N"),
        (["letter.txt", "--glossary", "none"], "none: the glossary cannot be read"),
    ],
)
def test_mistakes_are_named(words, message, by_lines_folder, letter, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("letter.xyz", "letter.docx", "letter.pdf", "letter.doc"):
        Path(name).write_text("w1")
    Path("loop").symlink_to("loop")
    Path("long").write_text("w1 " * 3000 + "\tW1\n")
    assert main(["translate", str(by_lines_folder), *words]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, message",
    [
        (["nowhere", "letter.txt"], "nowhere: no such file or folder; expected a checkpoint, or the folder of one"),
        ([".", "letter.txt"], "it contains model/, which are models"),
        (["letter.txt"], "letter.txt: not a model; the model comes first: lasformer translate MODEL letter.txt"),
        (["letter.txt", "model"], "the model comes first: lasformer translate model letter.txt"),
    ],
)
def test_mix_ups_are_answered_with_what_to_do(words, message, by_lines_folder, letter, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("model").symlink_to(by_lines_folder)
    assert main(["translate", *words]) == 1
    said = capsys.readouterr().err.strip()
    assert message in said and "\n" not in said


def test_a_language_is_no_option(by_lines_folder, letter, capsys):
    with pytest.raises(SystemExit):
        main(["translate", str(by_lines_folder), str(letter), "--to", "de"])
    assert "a model translates from one language into another" in capsys.readouterr().err


@pytest.mark.parametrize("between", [[], ["--beam", "1"]])
def test_several_files(between, by_lines_folder, letter, tmp_path, capsys):
    """As a shell expands ``*.md``, also with options between them."""
    (tmp_path / "page.md").write_text("# w1 w2\n\nw3 w4.\n")
    out, words = tmp_path / "out", ["translate", str(by_lines_folder)]
    words += [str(letter), *between, str(tmp_path / "page.md"), "--beam", "1", "-o", str(out)]
    assert main(words) == 0
    told = capsys.readouterr().err
    assert "letter.txt: 3 sentences" in told and "page.md: 2 sentences" in told
    assert (out / "page.md").read_text().startswith("# ") and len((out / "letter.txt").read_text().splitlines()) == 3
    assert main(words) == 0 and capsys.readouterr().err.count("already translated") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["letter.txt", "page.md"], "several files: name the folder for the translations with -o"),
        (["letter.txt", "page.md", "-o", "old.txt"], "-o old.txt: exists and is not a folder"),
        ([".", "-o", "old.txt"], "-o old.txt: exists and is not a folder"),
        (
            ["letter.txt", "sub/letter.txt", "-o", "out"],
            "would be the translation of letter.txt and the translation of",
        ),
        (["letter.txt", "sub", "-o", "out"], "sub: not a file; translate a folder"),
        (["letter.txt", "-", "-o", "out"], "-: no such file or folder"),
        (["letter.txt", "page.md", "-o", "out", "--given", "old.txt"], "--given: only for a single text"),
        (["letter.txt", "-o", "old.txt"], "old.txt: exists already; --overwrite replaces it"),
        (["letter.txt", "--encoding-out", "klingon"], "--encoding-out klingon: no such encoding"),
        (["letter.txt", "--encoding-out", "a\0b"], "no such encoding"),
        (["letter.txt", "--encoding-out", "base64"], "--encoding-out base64: no such encoding"),
        (["letter.txt", "--encoding-out", "IDNA"], "--encoding-out IDNA: not an encoding of text files"),
        (["letter.txt", "--encoding-out", "punycode"], "--encoding-out punycode: not an encoding of text files"),
        (["letter.txt", "--encoding-out", "unicode_escape"], "not an encoding of text files"),
        (["letter.txt", "--encoding", "raw-unicode-escape"], "--encoding raw-unicode-escape: not an encoding"),
        (["letter.txt", "--given", "/dev/zero"], "/dev/zero: no such file; --given names a file"),
    ],
)
def test_outputs_are_checked_before_the_model_is_loaded(
    words, message, by_lines_folder, letter, tmp_path, monkeypatch, capsys
):
    def load(*_, **__):
        raise AssertionError("the model was loaded")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "load_model", load)
    Path("sub").mkdir()
    for name in ("page.md", "sub/letter.txt", "old.txt"):
        Path(name).write_text("w1\n")
    assert main(["translate", str(by_lines_folder), *words]) == 1
    assert message in capsys.readouterr().err and Path("old.txt").read_text() == "w1\n"
    assert not Path("out").exists()


def test_shards():
    assert shard_of(None) == (0, 1) and shard_of("2/4") == (1, 4)
    for wrong in ("0/4", "5/4", "x", "1/", "-1/2"):
        with pytest.raises(InputError, match="expected I/N"):
            shard_of(wrong)


@pytest.mark.command
def test_a_killed_translation_resumes(by_lines_folder, tmp_path):
    text = "\n".join(f"w{i % 9 + 1} w{i % 7 + 1} w3 w5." for i in range(240)) + "\n"
    (tmp_path / "long.txt").write_text(text)
    command = [Path(sys.executable).with_name("lasformer"), "translate", by_lines_folder, tmp_path / "long.txt"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run("lasformer", *command[1:], "-o", tmp_path / "whole.txt", "--beam", 2)
    process = subprocess.Popen(
        [*command, "-o", tmp_path / "out.txt", "--beam", "2"], env=environment, stderr=subprocess.PIPE
    )
    end = time.monotonic() + 100
    journal = tmp_path / ".out.txt.lasformer" / ".lasformer-parts"
    while time.monotonic() < end and not (journal.is_dir() and any(p.stat().st_size > 2000 for p in journal.iterdir())):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "out.txt").exists()
    run("lasformer", *command[1:], "-o", tmp_path / "out.txt", "--beam", 2)
    assert (tmp_path / "out.txt").read_bytes() == (tmp_path / "whole.txt").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["long.txt", "out.txt", "whole.txt"]


@pytest.mark.parametrize("ending", [".txt", ".txt.jsonl"])
def test_the_longest_names_can_be_written(ending, by_lines_folder, letter, tmp_path):
    """File systems allow 255 bytes; temporary files and folders beside it have names of their own."""
    out = tmp_path / ("a" * (255 - len(ending)) + ending)
    more = ["--format", "jsonl"] if ending.endswith("jsonl") else []
    assert main(["translate", str(by_lines_folder), str(letter), "-o", str(out), "--beam", "1", "--quiet", *more]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([out.name, "letter.txt"]) and out.stat().st_size


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "error: there is not enough memory"),
        (ImportError("libx.so: cannot map\nfile"), "error: libx.so: cannot map file (lasformer doctor"),
    ],
)
def test_what_a_limit_of_memory_raises_is_one_line(error, said, by_lines_folder, letter, monkeypatch, capsys):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(hub, "load_model", fail)
    assert main(["translate", str(by_lines_folder), str(letter)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)


def test_the_summary_quotes_what_to_look_at(by_lines_folder, tmp_path, capsys):
    """The model writes no numbers, and what it writes for ten lines is mostly nonsense."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"w{i} costs {1000 + i} w2 w3\n" for i in range(5)))
    words = ["translate", str(by_lines_folder), str(text), "--beam", "1", "--lines", "-o"]
    assert main([*words, str(tmp_path / "out.txt"), "--report", str(tmp_path / "report.tsv")]) == 0
    said = capsys.readouterr().err
    assert "5 lacking a number of the source (number 1: “w0 costs 1000 w2 w3”; number 2: “w1 costs" in said
    assert "number 3: “w2 costs 1002 w2 w3”; 4, 5)" in said
    names, row, _ = (line.split("\t") for line in (tmp_path / "report.tsv").read_text().splitlines())
    table = dict(zip(names, row))
    assert table["numbers"] == "5"
    assert main([*words, str(tmp_path / "out.jsonl"), "--format", "jsonl"]) == 0
    said = capsys.readouterr().err
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    n = sum(row["doubtful"] for row in rows)
    assert str(n) == table["doubtful"] and (f"{n} doubtful (" in said) == bool(n)


def test_a_name_that_is_not_text_is_reported(by_lines_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for name in (b"in/a.txt", b"in/\xff.txt"):
        Path(os.fsdecode(name)).write_text("w1 w2\n")
    for report in ("r.tsv", "r.json"):
        words = ["translate", str(by_lines_folder), "in", "-o", f"out-{report}", "--report", report]
        assert main(words) == 0
        assert "in/a.txt" in Path(report).read_text() and "xff.txt" in Path(report).read_text()


def test_a_beam_has_a_limit(by_lines_folder, capsys):
    assert main(["translate", str(by_lines_folder), "x.txt", "--beam", "1000000"]) == 1
    assert "--beam 1000000: expected at least 1 and at most 1000" in capsys.readouterr().err
