"""Mistakes on the command line give one line that says what to do."""

from __future__ import annotations

import re

import pytest
from helpers import ROOT, train

from fairseq_lasformer.cli.main import main


@pytest.mark.command
@pytest.mark.parametrize(
    "arguments, message",
    [
        (["generate", "DATA", "FOLDER", "o"], "is a folder; name the checkpoint in it"),
        (["info", "nowhere"], "nowhere: no such file or folder"),
        (["info", "TEXT"], "refused, not a torch checkpoint"),
        (["score", "TEXT", "TEXT", "--tokenize", "foo"], "--tokenize foo: expected one of"),
        (["score", "--bootstrap", "TEXT", "TEXT"], "--bootstrap compares systems"),
        (
            ["score", "contrast", "FOLDER/checkpoint_last.pt", "set", "--device", "cuda"],
            "--device cuda: there is no GPU here",
        ),
        (["info", "FOLDER/checkpoint_last.pt", "--lengths", "1" + "0" * 400], "is not a number of tokens"),
        (["prepare", "o", "-s", "en", "-t", "en", "--train", "TEXT"], "the two languages must have different names"),
        (["prepare", "o", "-s", "x", "-t", "y", "--train", "TEXT", "--workers", "0"], "--workers 0"),
        (["prepare", "o:p", "-s", "x", "-t", "y", "--train", "TEXT"], "fairseq splits paths at colons"),
        (["prepare", "o,p", "-s", "x", "-t", "y", "--train", "TEXT", "--size", "0"], "--size 0: at least one merge"),
        (["ablate", "CONFIG", "--table", "7", "--reference", "TEXT", "--submit", ""], "names no command"),
        (["ablate", "CONFIG", "--table", "7", "--reference", "TEXT", "--submit", '"x'], '--submit "x'),
    ],
)
def test_mistakes_are_told_in_one_line(prepared, tmp_path, monkeypatch, capsys, arguments, message):
    import torch

    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("one line of text\n")
    for language in ("x", "y"):
        (tmp_path / f"text.{language}").write_text("ab cd\n")
    folder = tmp_path / "folder"
    train(prepared, folder, "--max-update", 1, "--disable-validation") if "FOLDER" in " ".join(arguments) else None
    places = {"DATA": prepared, "FOLDER": folder, "TEXT": "text", "CONFIG": ROOT / "configs/demo.yaml"}
    words = [re.sub("DATA|FOLDER|TEXT|CONFIG", lambda m: str(places[m[0]]), a) for a in arguments]
    assert main(words) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and message in error
