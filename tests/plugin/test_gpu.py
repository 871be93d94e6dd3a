"""Training steps and beam searches on a fake GPU, in a process of their own: PyTorch cannot forget the fake one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from helpers import CUDA, HERE, ROOT

pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(CUDA, reason="there is a real GPU"),
    pytest.mark.skipif(not HERE["triton"], reason="Triton is not installed"),
]


KINDS = {
    "training": 10,
    "search": 10,
}


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("kind, least", KINDS.items(), ids=KINDS)
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
        command, cwd=ROOT, env=env | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0 and f"{least} passed" in done.stdout, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.mark.parametrize(
    ("documents", "length", "kappa", "launches"), [(1, 512, 0.05, 1200), (16, 32, 1.0, 1100)], ids=["long", "short"]
)
def test_a_training_step_of_the_base_model_starts_few_kernels(documents, length, kappa, launches):
    """One document, and 16 sentences: not many more launches than fairseq's transformer."""
    command = [sys.executable, "-m", "benchmarks.launches", "--documents", documents, "--length", length]
    done = subprocess.run(
        [*map(str, command), "--kappa", str(kappa)], cwd=ROOT, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-2000:]
    counted = re.search(r"([\d,]+) launches, (\d+) synchronisations, (\d+) uploads, ([\d.]+) GB", done.stdout)
    assert counted is not None
    assert 800 < int(counted[1].replace(",", "")) <= launches
    assert int(counted[2]) <= 5 and int(counted[3]) == 0 and 1 < float(counted[4]) < 10


@pytest.mark.parametrize("search, most", [("plain", 7), ("aligned", 8)])
def test_a_step_of_beam_search_starts_few_kernels_and_hardly_ever_waits(search, most):
    command = [sys.executable, "-m", "benchmarks.launches", "--search", search, "--length", "64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    pattern = rf"{search} search, (\w+), a step: ([\d.]+) launches, ([\d.]+) synchronisations, ([\d.]+) uploads"
    counted = {part: tuple(map(float, of)) for part, *of in re.findall(pattern, done.stdout)}
    assert 60 < counted["decoder"][0] <= 90 and counted["decoder"][1:] == (0, 0)
    assert 5 < counted["search"][0] <= most and counted["search"][1:] == (round(1 / 16, 2), 0)
