"""Kernels that are compiled ahead are those that a training launches; what cannot be compiled ahead stops nothing."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from fairseq_lasformer.ops.gpu.ahead import Attentions, Helper, Target, processes
from fairseq_lasformer.plugin.patches import bfloat16_training, first_kernels

TRAINING = """
import sys, torch
from benchmarks.compile_kernels import compiling
from fairseq_lasformer import ops
from fairseq_lasformer.ops import AttentionMask, RowSample, StraightThrough, Teachers

def attend(n_batch, length, causal, padded):
    dtype = torch.float16
    q, k, v = (torch.randn(n_batch, length, 2, 32).to(dtype).transpose(1, 2).requires_grad_() for _ in range(3))
    sel_q, sel_k = (torch.randn(n_batch, length, 16).to(dtype).requires_grad_() for _ in range(2))
    padding = torch.zeros(n_batch, length, dtype=torch.bool) if padded else None
    mask = AttentionMask(padding, causal)
    bits = ops.topk_bitmask(sel_q, sel_k, mask, 50_000)
    sample = RowSample(0, max(1, n_batch * length // 512))
    out = ops.tiled_attention(q, k, v, bits, mask, StraightThrough(sel_q, sel_k, True, sample))
    taught = ops.tiled_supervise(sel_q, sel_k, Teachers([q], [k], padding), bits, mask, sample)
    torch.autograd.backward([out, taught.kl], [torch.ones_like(out), torch.ones_like(taught.kl)])

with compiling(90) as found:
    for n_batch, length in ((1, 33), (40, 50), (3, 300), (7, 520)):
        for causal in (False, True):
            attend(n_batch, length, causal, n_batch > 1)
print(len(found))
"""


TARGET = Target(90, 232_448)


def compiled(cache: Path) -> set[str]:
    return {str(path.relative_to(cache)) for path in cache.rglob("*.cubin")}


@pytest.mark.sweep
def test_a_training_finds_all_of_its_kernels_also_if_two_begin_together(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    helpers = Helper(TARGET), Helper(TARGET)
    for helper in helpers:
        helper.compile([Attentions(2, 32, 16, "float16")], 600, 2)
    numbers = {(helper.wait(500) or (0, 0.0))[0] for helper in helpers}
    (number,) = numbers
    ahead = compiled(tmp_path)
    assert 10 < number <= 30 and len(ahead) == number
    done = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 100 and compiled(tmp_path) == ahead


@pytest.mark.sweep
def test_a_cache_that_cannot_be_written_and_a_helper_that_ends_are_told_as_none(tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    taken = tmp_path / "cache"
    taken.write_text("not a folder")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(taken))
    helper = Helper(TARGET)
    helper.compile([Attentions(2, 32, 16, "float16")], 64, 1)
    assert helper.wait(300) is None
    killed = Helper(TARGET)
    killed.process.kill()
    killed.process.wait()
    killed.compile([Attentions(2, 32, 16, "float16")], 64, 1)
    assert killed.wait(10) is None
    slow = Helper(TARGET)
    assert slow.wait(0.01) is None and slow.process.poll() is not None


def test_two_cores_stay_with_the_training():
    assert [processes(n) for n in (1, 2, 3, 8, 64)] == [1, 1, 1, 6, 16]


def test_the_attentions_of_a_model_are_described_once_each(build):
    model = build(select_dim=32, dropout=0.1, attention_dropout=0.2)
    described = first_kernels.attentions_of(model, torch.bfloat16)
    assert described == [Attentions(4, 8, 32, "bfloat16", 0.2, True, True, "forward", True)]
    assert first_kernels.attentions_of(build(select_modules="none"), torch.float16)[0].select == 0


def test_a_training_on_a_gpu_waits_for_the_kernels_and_ends_its_helper(build, monkeypatch, caplog):
    from fairseq import checkpoint_utils

    told: list[object] = []

    class Fake:
        def __init__(self, target: Target) -> None:
            told.append(target)

        def compile(self, *what: object) -> None:
            told.append(what)

        def wait(self, seconds: float) -> tuple[int, float]:
            told.append("waited")
            return 7, 1.5

        def end(self) -> None:
            told.append("ended")

    monkeypatch.setattr(first_kernels.ahead, "Helper", Fake)
    monkeypatch.setattr(Target, "of", classmethod(lambda cls, device: TARGET))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint", lambda cfg, trainer: told.append("loaded"))
    task = SimpleNamespace(cfg=Namespace(attention_backend="auto", max_source_positions=9, max_target_positions=8))
    trainer = SimpleNamespace(
        get_model=build, device=torch.device("cuda"), task=task, cfg=Namespace(common=Namespace(amp=False))
    )
    cfg = Namespace(common=Namespace(cpu=False), distributed_training=Namespace(device_id=0))

    def main(cfg: object) -> None:
        checkpoint_utils.load_checkpoint(None, trainer)

    with caplog.at_level("INFO"):
        first_kernels._with_helper(main, cfg)
    target, (attentions, longest, _), *rest = told
    assert attentions[0].dtype == "float32" and (longest, target) == (9, TARGET)
    assert rest == ["loaded", "waited", "ended"]
    assert "Triton: 7 kernels are ready, 1.5 seconds after the start" in caplog.messages
    told.clear()
    cfg.common.cpu = True
    first_kernels._with_helper(main, cfg)
    assert told == ["loaded"]


def test_bfloat16_on_a_gpu_is_not_a_tpu(monkeypatch):
    for gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda gpu=gpu: gpu)
        given = bfloat16_training._without_tpu(lambda args: args, Namespace(bf16=True, tpu=True))
        assert given.tpu is not gpu
    assert bfloat16_training._without_tpu(lambda args: args, Namespace(bf16=False, tpu=True)).tpu
