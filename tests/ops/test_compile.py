"""The Triton kernels compile, without a GPU, to machine code for real ones, and keep within their registers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

OLDER = Path(sys.executable).parents[1] / "triton-3.6"  # of torch 2.11, see the Makefile
FEW = "search|step, 5 rows, (64|65536) positions of the translation|full pass, 1000|teacher, 4096|8 bits, 5 rows"


def compile_kernels(*options: str, older: bool = False) -> subprocess.CompletedProcess:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if older:
        env["PYTHONPATH"] = str(OLDER)
    command = [sys.executable, "-m", "benchmarks.compile_kernels", "--only", FEW, *options]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=500)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "older, archs, dtypes",
    [(False, ("80", "90"), ("float16", "float32")), (True, ("90",), ("float16",))],
    ids=["this Triton", "Triton 3.6"],
)
def test_kernels_compile_without_a_gpu(older, archs, dtypes):
    if older and not OLDER.exists():
        pytest.skip("make test-sweeps could not install it")
    done = compile_kernels("--arch", ",".join(archs), "--dtypes", ",".join(dtypes), older=older)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Triton 3.6") == older
    for kernel in (
        "_score",
        "_select",
        "_count",
        "_place",
        "_attend",
        "_combine",
        "_add_norm",
        "_rotate",
        "_write",
        "_log_softmax",
        "_best_of_chunk",
        "_best_of_item",
        "_advance",
        "_restrict_lines",
        "_count_lines",
        "_products",
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
        for arch in archs:
            assert f"sm_{arch} {dtypes[-1]} {kernel} (" in done.stdout


@pytest.mark.sweep
def test_what_spills_too_much_is_an_error():
    done = compile_kernels("--arch", "90", "--dtypes", "float16", "--max-spill", "-1")
    assert done.returncode == 1 and "too much" in done.stdout


@pytest.mark.sweep
def test_wide_heads_fit_the_shared_memory_of_desktop_gpus():
    """sm_86, 89 and 120 have 99 KiB per block; an unknown architecture is refused, not assumed to be large."""
    options = ("--arch", "86", "--dtypes", "float16", "--only", "full pass, one head of 128")
    done = compile_kernels(*options)
    assert done.returncode == 0 and done.stdout.count("_backward_keys") == 2, done.stdout + done.stderr
    done = compile_kernels("--arch", "61")
    assert done.returncode == 1 and "error: --arch 61" in done.stderr


COUNT = """
import random, torch
from benchmarks.compile_kernels import compiling
from triton.runtime.jit import JITFunction
from fairseq_lasformer import ops
from fairseq_lasformer.ops import AttentionMask, RowSample, StraightThrough, Teachers

compiled = []
def count(self, key, *args):
    compiled.append(self.fn.__name__)
    self.device_caches["sm_90"][0][key] = self  # it is known from now on
    return self
JITFunction._do_compile = count
torch.manual_seed(1)
random.seed(1)

def attend(n_batch, n_queries, n_keys, causal):
    padding = None
    if n_batch > 1:
        padding = torch.zeros(n_batch, n_keys, dtype=torch.bool)
        padding[1:, -random.randint(1, max(1, n_keys // 4)):] = True
    mask = AttentionMask(padding, causal)
    sizes = n_queries, n_keys, n_keys
    q, k, v = (torch.randn(n_batch, n, 2, 16).half().transpose(1, 2).requires_grad_() for n in sizes)
    sel_q, sel_k = (torch.randn(n_batch, n, 16).half().requires_grad_() for n in (n_queries, n_keys))
    bits = ops.topk_bitmask(sel_q, sel_k, mask, random.choice([1000000, 400000]))
    stride = max(1, min(16, n_batch * n_queries // 128))
    sample = RowSample(random.randrange(stride), stride)
    out = ops.tiled_attention(q, k, v, bits, mask, StraightThrough(sel_q, sel_k, True, sample), 0.1)
    ignored = None if padding is None or not causal else padding
    taught = ops.tiled_supervise(sel_q, sel_k, Teachers([q], [k], ignored), bits, mask, sample)
    torch.autograd.backward([out, taught.kl], [torch.ones_like(out), torch.ones_like(taught.kl)])

with compiling(90):
    for update in range(150):
        n_batch = random.choice([1, 2, 4, 8, 16])
        source, target = (random.randint(20, max(21, 400 // n_batch)) for _ in range(2))
        for n_queries, n_keys, causal in ((source, source, False), (target, target, True), (target, source, False)):
            attend(n_batch, n_queries, n_keys, causal)
        if update == 49:
            early = len(compiled)
print(len(compiled), len(compiled) - early)
"""


@pytest.mark.sweep
def test_batches_of_all_shapes_compile_few_kernels():
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, env=env, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    total, late = map(int, done.stdout.split())
    assert 10 < total <= 30 and late <= 2, done.stdout
