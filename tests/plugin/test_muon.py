"""Muon for matrices, Adam for the rest."""

from __future__ import annotations

import pytest
import torch
from fairseq.optim.adam import Adam
from helpers import ROOT, SIZES, log_lines, run, state, train

from fairseq_lasformer.plugin.optimizers import muon

OPTIONS = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.01}


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(2)
    matrix, vector, table, experts = (
        torch.nn.Parameter(torch.randn(shape)) for shape in ((6, 4), (5,), (7, 4), (2, 3, 4))
    )
    table.param_group = muon.EMBEDDING
    return [matrix, vector, table, experts]


def steps(optimizer, params, n: int, seed: int = 5) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()


def test_matrices_are_muons_and_everything_else_is_adams(monkeypatch):
    ours, theirs = parameters(), parameters()
    steps(muon.MuonWithAdam(ours, 0.95, 5, **OPTIONS), ours, 4)
    steps(Adam(theirs, **OPTIONS), theirs, 4)
    assert [torch.equal(a, b) for a, b in zip(ours, theirs)] == [False, True, True, True]
    alone = parameters()[:1]
    reference = torch.optim.Muon(alone, lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    generator = torch.Generator().manual_seed(5)
    for _ in range(4):
        grads = [torch.randn(p.shape, generator=generator) for p in theirs]
        alone[0].grad = grads[0]
        reference.step()
    torch.testing.assert_close(ours[0], alone[0], rtol=0.05, atol=0.05)  # torch's computes in bfloat16


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (6, 6)])
def test_an_update_is_nearly_orthogonal(shape):
    made = muon.orthogonal(torch.randn(shape, dtype=torch.double), (3.4445, -4.7750, 2.0315), 5)
    values = torch.linalg.svdvals(made)
    assert made.shape == shape and values.min() > 0.4 and values.max() < 1.3
    # the polynomial that has slope 1.5 at 0 and a fixed point at 1 converges
    matrix = torch.randn(shape, dtype=torch.double)
    exact = muon.orthogonal(matrix, (1.5, -0.5, 0.0), 60)
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    torch.testing.assert_close(exact, u @ v)


@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_saved_state_goes_on_as_it_would_have(bfloat16, monkeypatch):
    monkeypatch.setattr(muon.bfloat16, "available", lambda: bfloat16)
    whole, parts = parameters(), parameters()
    steps(optimizer := muon.MuonWithAdam(whole, 0.95, 5, **OPTIONS), whole, 2)
    steps(first := muon.MuonWithAdam(parts, 0.95, 5, **OPTIONS), parts, 2)
    second = muon.MuonWithAdam(parts, 0.95, 5, **OPTIONS)
    second.load_state_dict(first.state_dict())
    steps(optimizer, whole, 2, seed=6)
    steps(second, parts, 2, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts))


def test_both_ways_of_computing_agree(monkeypatch):
    results = []
    for bfloat16 in (False, True):
        monkeypatch.setattr(muon.bfloat16, "available", lambda b=bfloat16: b)
        params = [torch.nn.Parameter(torch.eye(16, 24))]
        steps(muon.Muon(params, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"), params, 5)
        results.append(params[0].detach())
    torch.testing.assert_close(*results, rtol=0, atol=0.01)
    assert (results[0] - torch.eye(16, 24)).norm() > 0.1


def test_embeddings_and_output_are_no_matrices(build):
    model = build()
    muon.mark_embeddings(model)
    kinds = {name: muon.is_matrix(p) for name, p in model.named_parameters()}
    assert not any(found for name, found in kinds.items() if "embed" in name or "output_projection" in name)
    assert any(found for name, found in kinds.items() if "fc1" in name)
    assert sum(kinds.values()) > 20


@pytest.mark.command
def test_a_training_resumes_to_the_bit(prepared, tmp_path):
    options = ["--optimizer", "muon", "--lr", 0.01]
    done = train(prepared, tmp_path / "whole", *options, "--max-update", 8)
    train(prepared, tmp_path / "parts", *options, "--max-update", 4)
    train(prepared, tmp_path / "parts", *options, "--max-update", 8)
    first, second = state(tmp_path / "whole")["model"], state(tmp_path / "parts")["model"]
    assert all(torch.equal(first[name], second[name]) for name in first)
    losses = [float(line["loss"]) for line in log_lines(done)]
    assert losses[-1] < losses[0] - 0.3


def test_without_our_task_it_is_refused(prepared, tmp_path):
    words = [
        prepared,
        "--user-dir",
        ROOT / "fairseq_lasformer",
        "--cpu",
        "--save-dir",
        tmp_path,
        "--arch",
        "transformer",
    ]
    done = run(
        "fairseq-train", *words, *SIZES, "--optimizer", "muon", "--lr", 0.1, "--max-tokens", 200, "--max-update", 1,
        "-s", "xx", "-t", "yy", check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "--optimizer muon cannot tell" in done.stderr.strip().splitlines()[-1]
