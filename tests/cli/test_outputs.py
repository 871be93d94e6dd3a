"""What a command writes is none of what it reads, and replaces nothing of others."""

from __future__ import annotations

import argparse
import itertools
import json
import os
from importlib import import_module
from pathlib import Path

import pytest

from fairseq_lasformer.cli.main import COMMANDS, function_of, main
from fairseq_lasformer.cli.outputs import NEW, OWN, same_file
from fairseq_lasformer.evaluation.doubts import HEADER


def parser_of(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    getattr(import_module(f"fairseq_lasformer.cli.{COMMANDS[name].module}"), f"add_{function_of(name)}")(parser)
    return parser


def is_path(action: argparse.Action) -> bool:
    return action.dest in ("input", "out", "files") or getattr(action.type, "__name__", "") in ("Path", "model_path")


def words_of(name: str, values: dict[str, str]) -> list[str]:
    """Return a command with these values, and some value for everything else that it needs."""
    words, positional = name.split(), []
    for action in parser_of(name)._actions:
        value = values.get(action.dest)
        if action.option_strings:
            if value is not None or action.required:
                some = value or (str(next(iter(action.choices))) if action.choices else "7")
                words += [action.option_strings[-1], some]
        elif action.choices:
            positional.append(str(next(iter(action.choices))))
        else:
            positional += [value or f"no-{action.dest}"] * (2 if action.dest == "checkpoints" else 1)
    return words + positional


PAIRS = [
    (name, output, action.dest)
    for name, command in COMMANDS.items()
    for output in command.writes
    if output in (paths := [action.dest for action in parser_of(name)._actions if is_path(action)])
    for action in parser_of(name)._actions
    if action.dest in paths and action.dest != output and (name, output, action.dest) != ("update", "out", "translated")
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
    assert len(PAIRS) > 50 and {name for name, *_ in PAIRS} >= {"translate", "update", "average", "score", "prepare"}


WRITTEN = [(name, output, kind) for name, its in COMMANDS.items() for output, kind in its.writes.items() if kind != OWN]


@pytest.mark.parametrize(("name", "output", "kind"), WRITTEN)
def test_files_of_others_are_not_replaced(name, output, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for content in ("mine", "{}", '{"mine": 1}', "<html><title>mine"):
        (tmp_path / "file").write_text(content)
        assert main(words_of(name, {output: "file"})) == 1
        assert "file: exists already; --overwrite replaces it" in capsys.readouterr().err
    ours = {
        "scores": json.dumps({"systems": {}}),
        "table": HEADER + "all\t1\n",
        "page": '<html><meta name="generator" content="fairseq_lasformer">',
    }
    (tmp_path / "file").write_text(ours.get(kind, "mine"))
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
