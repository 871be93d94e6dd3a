"""The command line: options, versions, one-line errors."""

from __future__ import annotations

import argparse
import importlib

import pytest
from helpers import run

import fairseq_lasformer
from fairseq_lasformer.cli import fairseqs_options
from fairseq_lasformer.cli.main import COMMANDS, main


def test_every_option_can_be_looked_up(capsys):
    assert main(["options"]) == 0
    text = capsys.readouterr().out
    for option in ("--select-gradient", "--sparsity-threshold", "--moe-experts", "--delight", "--word-dropout"):
        assert option in text
    assert "--selection-weight (default: 0.01)" in text and "--encoder--name" not in text
    assert main(["options", "sparsity"]) == 0
    text = capsys.readouterr().out
    assert "--sparsity-step" in text and "--encoder-layers" not in text
    assert main(["options", "nonsense"]) == 1


def test_the_version_and_the_module_form():
    assert run("lasformer", "--version").stdout.strip() == f"fairseq_lasformer {fairseq_lasformer.__version__}"
    assert run("python", "-m", "fairseq_lasformer", "--version").stdout.startswith("fairseq_lasformer ")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["score", "none.de", "h"], "none.de: cannot be read"),
        (["cost", "none.pt"], "none.pt: no such checkpoint"),
        (["cost", "none.pt", "--lengths", "a,b"], "--lengths a,b"),
        (["average", "o", "none.pt"], "none.pt: no such checkpoint"),
        (["generate", "nowhere", "none.pt", "o"], "was not prepared"),
        (["prepare", "o", "-s", "a", "-t", "b"], "nothing to prepare"),
    ],
)
def test_bad_arguments_end_in_one_line(arguments, message, capsys):
    from fairseq_lasformer.cli.main import main

    assert main(arguments) == 1
    error = capsys.readouterr().err.strip()
    assert message in error and error.startswith("error: ") and "\n" not in error


def test_missing_hypotheses_are_named(tmp_path, capsys):
    from fairseq_lasformer.cli.main import main

    (tmp_path / "ref").write_text("a b\n\nc d\n\ne f\n")
    (tmp_path / "hyp").write_text("a b\n")
    assert main(["score", str(tmp_path / "ref"), str(tmp_path / "hyp")]) == 1
    assert "no hypothesis for document(s) 2 to 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("generate", ["--format", "raw"], ["--layout", "raw"]),
        ("contrast", ["--cuda"], ["--device", "cuda"]),
        ("reproduce", ["--trust"], ["--trust-first-download"]),
    ],
)
def test_old_names_of_options_keep_working_and_say_what_they_are_called_now(command, old, new, capsys, monkeypatch):
    seen = []
    module = importlib.import_module(f"fairseq_lasformer.cli.{COMMANDS[command].module}")
    monkeypatch.setattr(module, f"run_{command}", lambda args: seen.append(vars(args)))
    places = {"generate": ["d", "c", "o"], "contrast": ["c", "p"], "reproduce": ["ted_en-de", "lasformer"]}[command]
    assert main([command, *places, *old]) == main([command, *places, *new]) == 0
    assert seen[0] == seen[1]
    assert (
        capsys.readouterr().err
        == f"note: {old[0]} is now called {' '.join(new[:2]) if old == ['--cuda'] else new[0]}\n"
    )


def test_device_beam_and_tokens_are_the_same_options_everywhere(capsys):
    meant = {}
    for command in ("translate", "serve", "generate", "ablate", "contrast", "report"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        for option in (
            "--device DEVICE cpu, cuda,",
            "--beam BEAM hypotheses per",
            "--max-tokens MAX_TOKENS tokens computed together",
        ):
            name = option.split()[0]
            assert (name in text) == (option in text), (command, option)
            meant.setdefault(name, []).append(name in text)
    assert all(meant["--device"]) and sum(meant["--beam"]) == 5 and sum(meant["--max-tokens"]) == 5


def test_the_device_of_generate_is_fairseqs(monkeypatch):
    args = argparse.Namespace(device="cuda:1", beam=3, max_tokens=None, options=["--beam", "7"])
    assert fairseqs_options(args) == ["--device-id", "1", "--beam", "3", "--beam", "7"]
    args = argparse.Namespace(device="cpu", beam=5, max_tokens=900, options=[])
    assert fairseqs_options(args) == ["--cpu", "--max-tokens", "900"]
