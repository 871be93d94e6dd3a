"""Experts spread over workers compute what one worker computes, and leave one ordinary checkpoint."""

from __future__ import annotations

import itertools
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from helpers import ROOT, mixture, run

from fairseq_lasformer.checkpoints import loading
from fairseq_lasformer.nn.moe import ExpertGroup
from fairseq_lasformer.text.hypotheses import read_hypotheses

DTYPES = [torch.float64, torch.float32]


TOKENS = {1: [23], 2: [23, 0], 4: [9, 0, 11, 3]}


LAYERS = [
    {"moe_experts": 8},
    {"moe_experts": 4, "moe_gating": "gshard-top2"},
    {"moe_experts": 8, "moe_groups": 4, "moe_recompute": True},
    {"moe_experts": 4, "moe_gating": "softmax"},
]


def _layer_on(rank: int, size: int, store: str, out: str) -> None:
    """Pass one worker's share of 23 tokens through every kind of layer; treat gradients as fairseq does."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    workers = ExpertGroup(None, rank, size) if size > 1 else None
    first = sum(TOKENS[size][:rank])
    mine = slice(first, first + TOKENS[size][rank])
    found = []
    for dtype, options in itertools.product(DTYPES, LAYERS):
        torch.manual_seed(7)
        whole = mixture(dtype=dtype, **options)
        layer = mixture(dtype=dtype, workers=workers, **options)
        layer.load_state_dict(whole.state_dict())
        generator = torch.Generator().manual_seed(8)
        x, weight = torch.randn(2, 23, 6, generator=generator).to(dtype)
        noise = layer.gate.sample_noise(23, x.device, generator)
        x = x[mine].clone().requires_grad_()
        out_rows, balance = layer(x, None, None if noise is None else noise[mine])
        ((out_rows * weight[mine]).sum() + balance.loss * x.size(0)).backward()
        grads = {}
        for name, p in layer.named_parameters():
            g = torch.zeros_like(p) if p.grad is None else p.grad
            if size > 1 and hasattr(p, "expert"):
                g = g * size  # fairseq multiplies by the number of workers
                parts = [torch.empty_like(g) for _ in range(size)]
                torch.distributed.all_gather(parts, g)
                g = torch.cat(parts)
            elif size > 1:
                torch.distributed.all_reduce(g)
            grads[name] = g
        received = balance.received.clone()
        if size > 1:
            torch.distributed.all_reduce(received)
        found.append({"out": out_rows.detach(), "x": x.grad, "loss": balance.loss.detach(), "grads": grads})
        assert received.numel() == size and int(received.sum()) > 0
    torch.save(found, f"{out}.{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.command
def test_layers_spread_over_workers_equal_one(tmp_path):
    """Unequal numbers of tokens, and workers with none."""
    results = {}
    for size in TOKENS:
        arguments = (size, str(tmp_path / f"store{size}"), str(tmp_path / f"out{size}"))
        mp.spawn(_layer_on, arguments, nprocs=size)
        results[size] = [torch.load(tmp_path / f"out{size}.{r}", weights_only=True) for r in range(size)]
    for i, (dtype, _) in enumerate(itertools.product(DTYPES, LAYERS)):
        limit = {"rtol": 0.0, "atol": 1e-12 if dtype is torch.float64 else 1e-6}
        one = results[1][0][i]
        for size in (2, 4):
            spread = [r[i] for r in results[size]]
            for key in ("out", "x"):
                torch.testing.assert_close(torch.cat([s[key] for s in spread]), one[key], **limit)
            for s in spread:
                torch.testing.assert_close(s["loss"], one["loss"], **limit)
                for name, grad in one["grads"].items():
                    # a gradient is a sum over tokens: its size is the scale of its rounding
                    scale = 1.0 if dtype is torch.float64 else max(1.0, float(grad.abs().max()))
                    torch.testing.assert_close(s["grads"][name] / scale, grad / scale, **limit)


WORKER = """
import sys, torch
from fairseq_lasformer.plugin import register
from fairseq_lasformer.plugin.patches import compat
register()
compat.errors_in_one_line()
from fairseq_lasformer.nn.moe.gating import NoisyTopKGate
init = NoisyTopKGate.__init__
def uneven(self, dim, n, *args):
    init(self, dim, n, *args)
    torch.nn.init.normal_(self.gate, generator=torch.Generator().manual_seed(3))
NoisyTopKGate.__init__ = uneven
# noise is each worker's own: without it, any number of workers must agree
NoisyTopKGate.sample_noise = lambda self, n, device, generator: torch.zeros(n, self.n_experts, device=device)
from fairseq_cli.train import cli_main
cli_main()
"""


def train_on(size: int, data: Path, save: Path, *options: object, fail: bool = False) -> list:
    """Run fairseq-train on ``size`` gloo workers, with 8 examples per update whatever their number."""
    script = save.parent / "worker.py"
    script.write_text(WORKER)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    sizes = [
        f"--{p}-{k}"
        for p in ("encoder", "decoder")
        for k in ("embed-dim=32", "ffn-embed-dim=32", "layers=2", "attention-heads=2")
    ]
    command = [
        *("python", script, data, "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu"),
        *("--arch", "lasformer_moe", *sizes, "--moe-experts", 4, "--select-share", 2, "--select-dim", 8),
        *("--moe-importance-weight", 0.1, "--moe-load-weight", 0.1, "--share-all-embeddings"),
        *("--criterion", "label_smoothed_cross_entropy_with_selection", "--dropout", 0),
        *("--save-dir", save, "--no-epoch-checkpoints", "--disable-validation", "--seed", 1, "--curriculum", 99),
        *("--train-subset", "test", "--batch-size", 8 // size, "--clip-norm", 0.5, "--log-format", "json"),
        *("--log-interval", 1, "--expert-parallel", *options),
    ]
    if size > 1:
        command += ["--distributed-world-size", size, "--distributed-backend", "gloo", "--distributed-no-spawn"]
        command += ["--distributed-init-method", f"tcp://127.0.0.1:{port}"]
        command += [] if "--ddp-backend" in options else ["--ddp-backend", "legacy_ddp"]
        with ThreadPoolExecutor(size) as pool:
            done = list(pool.map(lambda r: run(*command, "--distributed-rank", r, check=False), range(size)))
    else:
        done = [run(*command, check=False)]
    for d in done:
        assert fail or d.returncode == 0, d.stderr[-3000:]
    return done


def state(folder: Path) -> dict:
    return loading.load(folder / "checkpoint_last.pt")


@pytest.mark.command
def test_three_updates_through_fairseqs_trainer_are_those_of_one_worker(prepared, tmp_path):
    """Clipped by the norm of all gradients, experts included; the second update leaves the last worker without data."""
    sgd = ["--optimizer", "sgd", "--lr", 0.5]
    states = {}
    for size in (1, 2, 4):
        done = train_on(size, prepared, tmp_path / str(size), "--max-update", 3, *sgd)
        states[size] = state(tmp_path / str(size))
        lines = [line for line in (done[0].stdout + done[0].stderr).splitlines() if '"gnorm"' in line]
        assert len(lines) >= 3 and '"moe_load_max_over_mean"' in lines[0] and '"moe_unused"' in lines[0]
        assert "encoder_1" not in lines[0]  # layers are for TensorBoard
    assert states[1]["optimizer_history"][-1]["num_updates"] >= 3
    for size in (2, 4):
        assert states[size]["model"].keys() == states[1]["model"].keys()
        for name, value in states[1]["model"].items():
            torch.testing.assert_close(states[size]["model"][name], value, rtol=0, atol=1e-6)


@pytest.mark.command
def test_a_checkpoint_of_two_workers_resumes_on_any_number_and_generates(prepared, tmp_path):
    adam = ["--optimizer", "expert_adam", "--lr", 0.01, "--checkpoint-activations"]
    train_on(2, prepared, tmp_path / "2", "--max-update", 2, *adam)
    first = state(tmp_path / "2")
    assert first["model"]["encoder.layers.1.moe.experts.w1"].shape == (4, 32, 32)
    moments = [s for s in first["last_optimizer_state"]["state"].values() if "row" in s]
    assert len(moments) == 4 and all(s["row"].shape == (4, 32) for s in moments)
    resumed = {}
    for size in (1, 2, 4):
        folder = tmp_path / f"resumed{size}"
        folder.mkdir()
        (folder / "checkpoint_last.pt").write_bytes((tmp_path / "2" / "checkpoint_last.pt").read_bytes())
        train_on(size, prepared, folder, "--max-update", 3, *adam)
        resumed[size] = state(folder)
        assert resumed[size]["optimizer_history"][-1]["num_updates"] == 3
    for size in (2, 4):
        for name, value in resumed[1]["model"].items():
            if name.endswith("k_proj.bias"):
                continue  # its gradient is 0, and Adam makes steps of that gradient's rounding
            # likewise of other tiny gradients: nearly all must agree
            close = (resumed[size]["model"][name].double() - value.double()).abs() <= 1e-5
            assert close.double().mean() > 0.995, name
    out = tmp_path / "out"
    checkpoint = tmp_path / "resumed4" / "checkpoint_last.pt"
    run("lasformer", "generate", prepared, checkpoint, out, "--shards", 1, "--", "--cpu", "--beam", 2)
    assert len(read_hypotheses(out, allow_empty=True)) == 9


@pytest.mark.parametrize(
    ("size", "options", "message"),
    [
        (2, ["--ddp-backend", "pytorch_ddp"], "use --ddp-backend legacy_ddp"),
        (2, ["--moe-experts", 5], "5 experts (--moe-experts) do not divide among 2 workers"),
        (2, ["--fp16"], "add --fp16-no-flatten-grads"),
        (2, ["--store-ema"], "not with --store-ema"),
        (1, ["--eval-bleu"], "leave out --eval-bleu"),
        (1, ["--moe-experts", 0], "the model has no experts"),
    ],
)
def test_settings_that_would_go_wrong_end_at_the_start_in_one_line(prepared, tmp_path, size, options, message):
    adam = ["--optimizer", "adam", "--lr", 0.01, "--max-update", 1]
    for done in train_on(size, prepared, tmp_path / "save", *adam, *options, fail=True):
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode == 1 and re.match(r"(\[rank\d\]: )?error: ", last) and message in last
    assert not list((tmp_path / "save").glob("*.pt"))


@pytest.mark.command
def test_the_expert_optimizer_needs_experts(prepared, tmp_path):
    program = Path(sys.executable).with_name("fairseq-train")
    arguments = [program, prepared, "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu"]
    arguments += ["--arch", "lasformer_tiny", "--optimizer", "expert_adam", "--lr", "0.1", "--max-tokens", "200"]
    arguments += ["--save-dir", tmp_path]
    done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and "expert_adam finds no experts" in done.stderr.strip().splitlines()[-1]
