"""Training steps in CUDA graphs: shapes and refusals. Their values: on_fake_gpu.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from helpers import train

from fairseq_lasformer.cannot import CANNOT
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.plugin.criterion import LabelSmoothedCrossEntropyWithSelection
from fairseq_lasformer.plugin.training import graphed as graphed_training
from fairseq_lasformer.plugin.training.graphed import Batch, Shape, check, rounded


def test_there_are_four_sizes_per_power_of_two_and_little_padding():
    assert sorted({rounded(n) for n in range(1, 129)}) == [
        *(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
    ]
    assert all(n <= rounded(n) <= 1.25 * n for n in range(1, 5000))


@pytest.mark.parametrize("left", [True, False])
def test_a_batch_is_padded_to_its_shape_and_what_was_there_before_is_gone(left):
    def sample(n, source, target):
        inputs = {"src_tokens": torch.full((n, source), 5), "src_lengths": torch.full((n,), source)}
        inputs["prev_output_tokens"] = torch.full((n, target), 6)
        return {"net_input": inputs, "target": torch.full((n, target), 7), "ntokens": n * target}

    large, small = sample(10, 20, 24), sample(9, 17, 21)
    shape = Shape.of(small)
    assert shape == Shape.of(large) == (10, 20, 24)
    batch = Batch(shape, (1, 3), left, torch.device("cpu"))
    for given in (large, small):
        batch.fill(given)
    inputs, n_tokens = batch.sample["net_input"], batch.sample["ntokens"]
    row = [1] * 3 + [5] * 17 if left else [5] * 17 + [1] * 3
    assert inputs["src_tokens"].tolist() == [row] * 9 + [[1] * 20]
    assert inputs["prev_output_tokens"].tolist() == [[6] * 21 + [3] * 3] * 9 + [[3] * 24]
    assert batch.sample["target"].tolist() == [[7] * 21 + [3] * 3] * 9 + [[3] * 24]
    assert inputs["src_lengths"].tolist() == [17] * 9 + [0] and inputs["padded"] and int(n_tokens) == 189


@pytest.mark.command
def test_without_a_gpu_it_is_refused(prepared, tmp_path):
    done = train(prepared, tmp_path, "--cuda-graph-tokens", 64, check=False)
    assert done.returncode != 0
    assert (
        "error: --cuda-graph-tokens: requires a GPU with Triton, and --attention-backend auto or triton" in done.stderr
    )


@pytest.mark.parametrize(
    "name, options, amp",
    [
        ("mixtures of experts", {"moe_experts": 4}, False),
        ("--group-drop", {"group_drop": 0.1}, False),
        ("--checkpoint-activations", {"checkpoint_activations": True}, False),
        ("--quantization-aware", {}, False),
        ("--report-accuracy", {}, False),
        ("--sentence-avg", {}, False),
        ("--amp", {}, True),
        ("this --select-pattern", {"select_pattern": "etc:window=4"}, False),
        ("this --select-pattern", {"select_pattern": "rfa:features=8"}, False),
        ("several GPUs", {}, False),
        ("", {}, False),
    ],
)
def test_what_the_host_decides_in_every_step_is_refused(build, small_task, monkeypatch, name, options, amp):
    monkeypatch.setattr(graphed_training, "backend_for", lambda device, backend: "triton")
    averaged, counted = name == "--sentence-avg", name == "--report-accuracy"
    criterion = LabelSmoothedCrossEntropyWithSelection(small_task, averaged, 0.1, report_accuracy=counted)
    task = SimpleNamespace(attention_backend="auto", quantization_aware=name == "--quantization-aware")
    model = build(**options)
    if name.startswith("several"):
        model.module = torch.nn.Identity()
    if not name:
        check(model, criterion, task, torch.device("cuda"), amp)
        return
    with pytest.raises(InputError) as refused:
        check(model, criterion, task, torch.device("cuda"), amp)
    assert str(refused.value) == f"--cuda-graph-tokens: not with {name} ({CANNOT['--cuda-graph-tokens'][name]})"


def test_another_criterion_is_refused(build, monkeypatch):
    monkeypatch.setattr(graphed_training, "backend_for", lambda device, backend: "triton")
    with pytest.raises(InputError, match="requires --arch lasformer"):
        check(build(), object(), SimpleNamespace(attention_backend="auto"), torch.device("cuda"), False)
