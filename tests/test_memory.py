"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from fairseq_lasformer.base.machine import keep_freed
kept = sys.argv[1] == "keep" and keep_freed()
if sys.argv[1] == "keep" and not kept:
    sys.exit(3)
def work():
    torch.ones(25_000_000).sum()  # 100 MB
for _ in range(8):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):  # a small block may once lie where a large one was
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.command
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_pages_are_not_mapped_anew():
    faults = {}
    for way in ("keep", "leave"):
        done = subprocess.run([sys.executable, "-c", PROGRAM, way], capture_output=True, text=True)
        if done.returncode == 3:
            pytest.skip("not glibc")
        assert done.returncode == 0, done.stderr
        faults[way] = int(done.stdout)
    assert faults["keep"] * 20 < faults["leave"], faults
