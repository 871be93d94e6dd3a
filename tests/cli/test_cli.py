"""The command line: options, versions, one line on mistakes."""

from __future__ import annotations

import pytest
from helpers import run

import fairseq_lasformer
from fairseq_lasformer.cli.main import main


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
