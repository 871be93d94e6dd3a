"""Texts of ``--help``, as they are in ``help.txt``: no option changes unnoticed.

``UPDATE_HELP=1 pytest tests/cli/test_help.py`` writes the file again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairseq_lasformer.cli.main import COMMANDS, main

TEXTS = Path(__file__).with_name("help.txt")
WIDTH = "100"


def of(command: str, capsys: pytest.CaptureFixture) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*command.split()[1:], "--help"])
    assert ended.value.code == 0
    return f"$ {command} --help\n{capsys.readouterr().out}"


def test_help_of_every_command_is_as_recorded(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", WIDTH)
    texts = [of(command, capsys) for command in ("lasformer", *(f"lasformer {name}" for name in COMMANDS))]
    if os.environ.get("UPDATE_HELP"):
        TEXTS.write_text("\n".join(texts), encoding="utf-8")
    assert "\n".join(texts) == TEXTS.read_text(encoding="utf-8")
