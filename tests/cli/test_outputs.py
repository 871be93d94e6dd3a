"""What a command writes is none of what it reads, and replaces nothing of others."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from pathlib import Path

import pytest

from fairseq_lasformer.base.options import FIGURES, NEW, OWN, Option, options_of
from fairseq_lasformer.base.targets import same_file
from fairseq_lasformer.cli.main import COMMANDS, main
from fairseq_lasformer.evaluation.doubts import HEADER

OPTIONS = {name: options_of(command.load(name)[1]) for name, command in COMMANDS.items()}


def is_path(one: Option) -> bool:
    return one.base is Path or one.spec.place


def words_of(name: str, values: dict[str, str]) -> list[str]:
    """Return a command with these values, and some value for everything else that it needs."""
    words, positional = name.split(), []
    for one in OPTIONS[name]:
        value = values.get(one.name)
        some = value or (str(next(iter(one.choices))) if one.choices else "7")
        if one.spec.positional:
            given = some if one.choices else value or f"no-{one.name}"
            positional += [given] * (2 if one.name == "checkpoints" else 1)
        elif value is not None or (one.default is dataclasses.MISSING and not one.many):
            words += [one.flag, *[some] * (one.spec.number or 1)]
    return words + positional


PAIRS = [
    (name, output.name, other.name)
    for name, its in OPTIONS.items()
    for output in its
    for other in its
    if output.spec.writes and is_path(other) and output is not other
]


@pytest.mark.parametrize(("name", "output", "other"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_no_output_is_an_input(name, output, other, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("file")
    os.link("file", "hard")
    for first, second in itertools.product(("file", "link", "hard"), repeat=2):
        assert main(words_of(name, {output: first, other: second})) == 1
        assert "choose another file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_all_pairs_are_tried():
    assert len(PAIRS) > 50 and {name for name, *_ in PAIRS} >= {"translate", "average", "score", "prepare"}


WRITTEN = [
    (name, one.name, command.load(name)[1].figures if one.spec.writes == FIGURES else one.spec.writes)
    for (name, its), command in zip(OPTIONS.items(), COMMANDS.values())
    for one in its
    if one.spec.writes not in ("", OWN)
]


OURS = {
    "scores": json.dumps({"systems": {}}),
    "results": json.dumps({"results": []}),
    "context": json.dumps({"context": []}),
    "rows": json.dumps({"rows": []}),
    "explanation": json.dumps({"words": [], "cxmi": 0.0}),
    "table": HEADER + "all\t1\n",
    "page": '<html><meta name="generator" content="fairseq_lasformer">',
}


@pytest.mark.parametrize(("name", "output", "kind"), WRITTEN)
def test_files_of_others_are_not_replaced(name, output, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    others = [text for its, text in OURS.items() if its != kind]
    for content in ("mine", "{}", '{"mine": 1}', "<html><title>mine", *others):
        (tmp_path / "file").write_text(content)
        assert main(words_of(name, {output: "file"})) == 1
        assert "file: exists already; --overwrite replaces it" in capsys.readouterr().err
    (tmp_path / "file").write_text(OURS.get(kind, "mine"))
    words = words_of(name, {output: "file"}) + (["--overwrite"] if kind == NEW else [])
    try:
        assert main(words) != 0
    except SystemExit:
        return
    assert "exists already" not in capsys.readouterr().err


def test_what_may_become_the_same_file_is_compared_too(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "new")
    assert same_file(tmp_path / "new", tmp_path / "folder/../new") and same_file(tmp_path / "link", tmp_path / "new")
    assert not same_file(tmp_path / "new", tmp_path / "other") and not same_file(
        tmp_path / "folder", tmp_path / "folder"
    )
    assert not same_file(Path("x" * 5000), Path("y")) and not same_file(Path("/dev/null"), Path("/dev/null"))
