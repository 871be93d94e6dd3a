"""``lasformer translate --receipt`` and ``verify``: equal inputs verify; otherwise, the difference is reported."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from helpers import run

from fairseq_lasformer.files import file_hash
from fairseq_lasformer.ops import cpu

pytestmark = [
    pytest.mark.command,
    pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels"),
]

TEXT = "w1 w2 w3\nw4 w5\n\nw9 w8 w7 w6\nw1\n"
PAGE = "<p>w1 w2 w3. w4 w5.</p>"


def error(*command: object, **env: str) -> str:
    done = run("lasformer", *command, check=False, **env)
    assert done.returncode == 1, done.stdout
    (line,) = done.stderr.strip().splitlines()
    return line.removeprefix("error: ")


@pytest.fixture(scope="module")
def made(trained_folder, tmp_path_factory):
    """A translated folder with receipts."""
    folder = tmp_path_factory.mktemp("receipts")
    source, out = folder / "source", folder / "out"
    source.mkdir()
    (source / "a.txt").write_text(TEXT)
    (source / "b.html").write_text(PAGE)
    (source / "glossary.tsv").write_text("w1\tW5\n")
    glossary = shutil.move(source / "glossary.tsv", folder / "glossary.tsv")
    command = ("translate", trained_folder, source, "-o", out, "--lines", "--beam", 2, "--receipt")
    run("lasformer", *command, "--glossary", glossary, "--quiet")
    run(
        "lasformer",
        *command[:4],
        folder / "json",
        *command[5:],
        "--format",
        "jsonl",
        "--decode-dtype",
        "int8",
        "--quiet",
    )
    return folder


def test_the_same_is_found_on_other_processors_and_in_other_company(made):
    for name, env in (("a.txt", {}), ("b.html", {"LASFORMER_ISA": "plain", "ATEN_CPU_CAPABILITY": "default"})):
        done = run(
            "lasformer", "translate", "--verify", made / "out" / f"{name}.receipt.json", made / "source" / name, **env
        )
        assert "the same translation" in done.stdout
    lines = [json.loads(line) for line in (made / "json" / "a.txt.jsonl").read_text().splitlines()]
    assert len({line["receipt"] for line in lines}) == 1 and len(lines[0]["receipt"]) == 64
    done = run(
        "lasformer",
        "translate",
        "--verify",
        made / "json" / "a.txt.jsonl.receipt.json",
        made / "source" / "a.txt",
        "--quiet",
    )
    assert not done.stdout
    assert not list((made / "out").glob("*.receipt.json.*"))


def test_what_is_another_is_named(made, trained_folder, prepared, tmp_path):
    receipt, source = made / "out" / "a.txt.receipt.json", made / "source" / "a.txt"
    translation = made / "out" / "a.txt"
    other = tmp_path / "a.txt"
    other.write_text(TEXT + "w1\n")
    assert "not the file that was translated: its SHA-256 differs" in error("translate", "--verify", receipt, other)
    for name, content, message in (
        ("translation", "0" * 64, "a.txt: not the translation of this receipt"),
        ("model", "0" * 64, "the model is not the receipt's: its SHA-256 differs"),
        ("data", "0" * 64, "the prepared folder is not the receipt's"),
        ("files", {"glossary": "0" * 64}, "--glossary: the file is not the receipt's"),
        ("places", {}, "name it with --model"),
        ("places", {"model": "-x.pt"}, "name it with --model"),
        ("options", {"output": "x", "form": "text"}, "contains unknown options: output"),
        ("options", {"beam": "many", "form": "text"}, "options.beam: expected a whole number, not many"),
        ("options", {"decode_dtype": "f(x)", "form": "text"}, "options.decode_dtype f(x): expected one of"),
        ("options", {"form": "exe"}, "options.form exe: expected one of"),
        ("options", [], ": not a receipt"),
    ):
        held = json.loads(receipt.read_text()) | {name: content}
        path = made / "out" / "altered.json"
        path.write_text(json.dumps(held))
        assert message in error("translate", "--verify", path, source, "--translation", translation), name
    wrong = made / "out" / "b.html"
    held = json.loads(receipt.read_text()) | {"translation": file_hash(wrong), "version": "0.0.1"}
    path.write_text(json.dumps(held))
    assert "the old one is by version 0.0.1" in error("translate", "--verify", path, source, "--translation", wrong)
    assert "name the translation with --translation" in error("translate", "--verify", path, source)
    for text in ("", "[" * 100_000, "[]", json.dumps({"source": 1})):
        path.write_text(text)
        assert ": not a receipt" in error("translate", "--verify", path, source)
    assert "no such file" in error("translate", "--verify", tmp_path / "none", source)


def test_a_moved_model_is_named_by_options(made, trained_folder, prepared, tmp_path):
    held = json.loads((made / "out" / "a.txt.receipt.json").read_text())
    held["places"] = {name: "nowhere" for name in held["places"]}
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(held))
    where = ("--model", trained_folder, "--data", prepared, "--glossary", made / "glossary.tsv")
    where += ("--translation", made / "out" / "a.txt")
    assert (
        "the same translation"
        in run("lasformer", "translate", "--verify", path, made / "source" / "a.txt", *where).stdout
    )


def test_an_altered_translation_is_not_the_receipts(made, tmp_path):
    for name in ("a.txt", "a.txt.receipt.json"):
        shutil.copy(made / "out" / name, tmp_path)
    (tmp_path / "a.txt").write_text((made / "out" / "a.txt").read_text().replace("W", "V", 1))
    assert "not the translation of this receipt" in error(
        "translate", "--verify", tmp_path / "a.txt.receipt.json", made / "source" / "a.txt"
    )


def test_what_was_given_is_counted(trained_folder, tmp_path):
    (tmp_path / "a.txt").write_text("w1 w2\nw3\n")
    (tmp_path / "given.tsv").write_text("1\tForged.\n2\tForged, too.\n")
    words = ("translate", trained_folder, tmp_path / "a.txt", "-o", tmp_path / "b.txt", "--lines", "--receipt")
    run("lasformer", *words, "--given", tmp_path / "given.tsv")
    done = run("lasformer", "translate", "--verify", tmp_path / "b.txt.receipt.json", tmp_path / "a.txt")
    assert "of 2 sentences, 2 were given, 0 taken from a memory" in done.stdout
    places = json.loads((tmp_path / "b.txt.receipt.json").read_text())["places"]
    assert places["given"] == "given.tsv" and not any(place.startswith("/") for place in places.values())


def test_only_files_are_read(made, trained_folder, prepared, tmp_path):
    receipt, source, translation = (
        made / "out" / "a.txt.receipt.json",
        made / "source" / "a.txt",
        made / "out" / "a.txt",
    )
    os.mkfifo(tmp_path / "pipe")
    for name in ("model", "data", "glossary"):
        for place in ("/dev/zero", "/proc/kmsg", str(tmp_path / "pipe"), "x" * 5000, "a\0b"):
            held = json.loads(receipt.read_text())
            held["places"] = {"model": str(trained_folder), "data": str(prepared), "glossary": "g"} | {name: place}
            (tmp_path / "receipt.json").write_text(json.dumps(held))
            message = error("translate", "--verify", tmp_path / "receipt.json", source, "--translation", translation)
            assert f"name it with --{name}" in message
    assert "no such file" in error("translate", "--verify", tmp_path / "pipe", source)
    assert "no such file" in error("translate", "--verify", receipt, tmp_path / "pipe")


def test_receipts_need_a_file_and_what_can_be_made_again(trained_folder, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    assert "--receipt: is written next to a file" in error("translate", trained_folder, tmp_path / "a.txt", "--receipt")
    command = ("translate", trained_folder, tmp_path / "a.txt", "-o", tmp_path / "b.txt", "--lines", "--receipt")
    assert "not with --consistent" in error(*command, "--consistent")
