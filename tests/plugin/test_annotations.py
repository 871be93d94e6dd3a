"""Python 3.14's spelling of optional types, which fairseq does not know."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from typing import Any, Optional, Union

import pytest
from helpers import ROOT

from fairseq_lasformer.base.annotations import without_none

Kind = Enum("Kind", "one two")

# what happens on Python 3.14, whose ``Optional[str]`` is ``str | None``
PROGRAM = """
import sys
from fairseq_lasformer.base import annotations
annotations.install()
annotations.install()
before = [*sys.meta_path]
version, sys.version_info = sys.version_info, (3, 14)
exec(sys.argv[1])
sys.version_info = version
assert sys.meta_path == before and "fairseq_lasformer" not in sys.modules  # fairseq imports it as its --user-dir
import fairseq.dataclass.utils as utils
import fairseq.tasks
assert utils.interpret_dc_type(str | None) is str and utils.interpret_dc_type(int) is int
from dataclasses import dataclass, field
from argparse import ArgumentParser
from fairseq.dataclass import FairseqDataclass
@dataclass
class Options(FairseqDataclass):
    name: str | None = field(default=None, metadata={"help": "a name"})
    number: int | None = field(default=None, metadata={"help": "a number"})
parser = ArgumentParser()
utils.gen_parser_from_dataclass(parser, Options())
found = parser.parse_args(["--name", "x", "--number", "3"])
assert (found.name, found.number) == ("x", 3), found
"""


@pytest.mark.parametrize(
    "kind, expected",
    [
        (str | None, str),
        (Optional[int], int),  # noqa: UP045
        (Kind | None, Kind),
        (None | float, float),
        (Union[int, str, None], Union[int, str, None]),  # noqa: UP007
        (int | str, int | str),
        (int, int),
        (Any, Any),
        (list[int], list[int]),
    ],
)
def test_none_is_left_out_of_what_is_read(kind, expected):
    assert without_none(lambda read: read, kind) == expected


def test_fairseq_reads_both_spellings():
    line = (ROOT / "fairseq_lasformer.pth").read_text()
    done = subprocess.run([sys.executable, "-c", PROGRAM, line], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-800:]
