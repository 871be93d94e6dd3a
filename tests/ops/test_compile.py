"""The Triton kernels compile to machine code for real GPUs, without one, and keep to their registers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

FEW = "step, 5 rows, (64|65536) positions of the translation|full pass, 1000|teacher, 4096"


def compile_kernels(*options: str) -> subprocess.CompletedProcess:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "benchmarks.compile_kernels", "--only", FEW, *options]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=500)


@pytest.mark.slow
def test_kernels_compile_without_a_gpu():
    done = compile_kernels("--dtypes", "float16,float32")
    assert done.returncode == 0, done.stdout + done.stderr
    for kernel in (
        "_score",
        "_select",
        "_attend",
        "_combine",
        "_bits",
        "_forward",
        "_backward_queries",
        "_backward_keys",
        "_norms",
        "_mean",
        "_sums",
        "_targets",
        "_through_queries",
        "_through_keys",
        "_mask_gradient",
    ):
        for arch in ("sm_80", "sm_90"):
            assert f"{arch} float32 {kernel} (" in done.stdout


@pytest.mark.slow
def test_what_spills_too_much_is_an_error():
    done = compile_kernels("--arch", "90", "--dtypes", "float16", "--max-spill", "-1")
    assert done.returncode == 1 and "too much" in done.stdout
