"""Training steps and beam searches on a fake GPU, in a process of their own: PyTorch cannot forget the fake one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from helpers import CUDA, HERE, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CUDA, reason="there is a real GPU"),
    pytest.mark.skipif(not HERE["triton"], reason="Triton is not installed"),
]


@pytest.mark.parametrize("kind, least", [("training", 11), ("search", 6)])
def test_on_a_fake_gpu(kind, least):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/plugin/on_fake_gpu.py",
        "-k",
        kind,
        "-o",
        "addopts=",
        "-p",
        "no:xdist",
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=ROOT, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0 and f"{least} passed" in done.stdout, done.stdout[-4000:] + done.stderr[-1000:]
