"""The recipes of CONTRIBUTING.md, as a new contributor would follow them: what they show works."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers import HERE, ROOT, recipe

from fairseq_lasformer import formats
from fairseq_lasformer.cli import scores
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.ops.backends import triton_kernels
from fairseq_lasformer.ops.gpu import kernels


def test_a_score(module, monkeypatch, tmp_path, capsys):
    written = module("contributed_score", recipe("evaluation/line_counts.py"))
    with_option = dataclass(frozen=True, kw_only=True)(type("Score", (scores.Score, written.LineCounts), {}))
    monkeypatch.setattr(scores, "Score", with_option)
    (tmp_path / "reference").write_text("a b c d\ne f g h\n\ni j k l\n")
    (tmp_path / "output").write_text("a b c d\te f g h\ni j\tk l\n")
    words = ["score", str(tmp_path / "reference"), str(tmp_path / "output"), "--json", str(tmp_path / "scores.json")]
    assert main([*words, "--by-lines"]) == 0
    found = json.loads((tmp_path / "scores.json").read_text())["systems"]["output"]
    told = capsys.readouterr().out
    assert found["by_lines"] == {"same": 1, "different": 1} and "d-BLEU" in told
    assert "output: 1 documents have as many lines as their reference" in told


def test_a_file_format(module, monkeypatch):
    written = module("contributed_format", recipe("formats/properties.py"))
    monkeypatch.setitem(formats.FORMATS, "properties", formats.TextFormat((".properties",), written.read))
    assert formats.format_of("menu.properties") == "properties"
    data = b"# comment=stays\n\nfile.open=Open a file\r\nfile.empty=\nhelp=Get help"
    opened = formats.read(data, "properties")
    assert [block.text for block in opened.blocks] == ["Open a file", "Get help"]
    assert opened.write([block.segments for block in opened.blocks]) == data
    translated = b"# comment=stays\n\nfile.open=OPEN A FILE\r\nfile.empty=\nhelp=GET HELP"
    assert opened.write([[block.text.upper()] for block in opened.blocks]) == translated


@pytest.mark.triton
def test_a_gpu_kernel(tmp_path, monkeypatch):
    if not HERE["triton"]:
        pytest.skip("no Triton here")
    (tmp_path / "scaled.py").write_text(recipe("ops/gpu/kernels/scaled.py"))
    monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(tmp_path)])
    triton_kernels.cache_clear()
    try:
        written = triton_kernels("scaled")
        assert written is not None
        for rows, width in ((1, 1), (3, 5), (7, 130)):
            x, factor = torch.randn(rows, width), torch.randn(rows)
            torch.testing.assert_close(written.scaled(x, factor), x * factor[:, None])
    finally:
        triton_kernels.cache_clear()
        sys.modules.pop("fairseq_lasformer.ops.gpu.kernels.scaled", None)


def test_an_option(module):
    from fairseq.dataclass.utils import gen_parser_from_dataclass

    names = "SelectionOptions, fairseq_option"  # those that the file has
    head = f"from dataclasses import dataclass\nfrom fairseq_lasformer.plugin.options import {names}\n"
    body = recipe("plugin/options.py, in class SelectionOptions")
    written = module("contributed_option", f"{head}\n\n@dataclass\nclass Longer(SelectionOptions):\n{body}")
    parser = ArgumentParser()
    gen_parser_from_dataclass(parser, written.Longer())
    assert parser.parse_args(["--select-temperature", "2"]).select_temperature == 2.0
    assert parser.parse_args([]).select_temperature == 1.0
    assert "divide the selector's scores" in parser.format_help()


@pytest.mark.command
def test_the_recipes_pass_lint(tmp_path):
    """ruff and mypy on what a contributor has pasted."""
    pasted = {
        "strided.py": recipe("nn/others/strided.py"),
        "line_counts.py": recipe("evaluation/line_counts.py"),
        "properties.py": recipe("formats/properties.py"),
    }
    for name, text in pasted.items():
        (tmp_path / name).write_text(text)
    files = [str(tmp_path / name) for name in pasted]
    found = []
    for words in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        tool = Path(sys.executable).with_name(words[0])
        command = [tool, *words[1:], "--config-file" if words == ["mypy"] else "--config", "pyproject.toml", *files]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        found += [done.stdout + done.stderr] if done.returncode else []
    assert not found, "\n".join(found)
