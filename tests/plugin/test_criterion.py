"""The criterion by hand: Loss = L_nmt + alpha * Sum KL / queries, over micro-batches and workers as fairseq sums."""

from __future__ import annotations

import copy
import json
import math
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fairseq.logging import metrics
from helpers import ALPHA, LR, ROOT, SMOOTHING, batches, run, trainer_of

from fairseq_lasformer.analysis.runs import read_log
from fairseq_lasformer.ops import KAPPA_ONE, Supervision
from fairseq_lasformer.plugin.log_lines import BY_GROUP, joined, selection_sums


def by_hand(model: Any, sample: dict[str, Any], alpha: float) -> dict[str, Any]:
    """Compute the loss and its parts, without the criterion."""
    logits, extra = model(**sample["net_input"])
    target = sample["target"]
    log_probs = F.log_softmax(logits.float(), -1)
    real = target != 1
    nll = -log_probs.gather(2, target[..., None])[..., 0][real].sum()
    uniform = -log_probs.sum(-1)[real].sum()
    eps = SMOOTHING / (log_probs.size(-1) - 1)
    translation = (1 - SMOOTHING - eps) * nll + eps * uniform
    tokens = int(real.sum())
    kl = sum(given.kl / given.queries for given in extra["supervision"].values())
    assert len(extra["supervision"]) == 6 and float(kl) > 0
    right = int((logits.argmax(-1) == target)[real].sum())
    return {"loss": translation + alpha * tokens * kl, "nll": nll, "tokens": tokens, "right": right, "extra": extra}


@pytest.mark.parametrize("alpha", [ALPHA, 0.0])
def test_the_loss_is_the_translation_loss_plus_alpha_times_the_mean_kl_of_every_selector(prepared, alpha):
    trainer = trainer_of(prepared, "--report-accuracy", alpha=alpha)
    model = trainer.model.train()
    sample = batches(trainer.task)[0]
    loss, sample_size, log = trainer.criterion(model, sample)
    expected = by_hand(model, sample, alpha)
    assert sample_size == expected["tokens"] == sample["ntokens"]
    torch.testing.assert_close(loss, expected["loss"])
    torch.testing.assert_close(log["loss"], expected["loss"].detach())
    torch.testing.assert_close(log["nll_loss"], expected["nll"].detach())
    assert (int(log["n_correct"]), int(log["total"])) == (expected["right"], expected["tokens"])
    got = torch.autograd.grad(loss, model.parameters(), allow_unused=True)
    want = torch.autograd.grad(expected["loss"], model.parameters(), allow_unused=True)
    for name, g, w in zip(dict(model.named_parameters()), got, want):
        torch.testing.assert_close(g, w, msg=name)


def test_selectors_that_nothing_teaches_get_gradients_of_0(prepared):
    """DistributedDataParallel fails if a parameter gets none."""
    trainer = trainer_of(prepared, "--select-gradient", "none", alpha=0.0)
    model = trainer.model.train()
    sample = batches(trainer.task)[0]
    loss, _, _ = trainer.criterion(model, sample)
    torch.testing.assert_close(loss, by_hand(model, sample, 0.0)["loss"], rtol=0, atol=0)
    loss.backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    selectors = [p for _, selector in model.selectors() for p in selector.parameters()]
    assert selectors and all(p.grad.count_nonzero() == 0 for p in selectors)


def test_per_sentence_averaging_weighs_the_kl_by_sentences(prepared):
    trainer = trainer_of(prepared, "--sentence-avg")
    sample = batches(trainer.task)[0]
    loss, sample_size, _ = trainer.criterion(trainer.model.train(), sample)
    expected = by_hand(trainer.model, sample, 0.0)
    kl = sum(given.kl / given.queries for given in expected["extra"]["supervision"].values())
    assert sample_size == sample["target"].size(0)
    torch.testing.assert_close(loss, expected["loss"] + ALPHA * sample_size * kl)


def one_update(model: Any, samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Compute by hand the parameters after a step of gradient descent on the samples' losses over all tokens."""
    model = copy.deepcopy(model).train()
    parts = [by_hand(model, sample, ALPHA) for sample in samples]
    (sum(p["loss"] for p in parts) / sum(p["tokens"] for p in parts)).backward()
    return {n: (p - LR * p.grad).detach() if p.grad is not None else p.detach() for n, p in model.named_parameters()}


def test_micro_batches_of_one_update_count_by_their_tokens(prepared):
    trainer = trainer_of(prepared, "--update-freq", 2)
    samples = batches(trainer.task)
    expected = one_update(trainer.model, samples)
    trainer.train_step(samples)
    for name, p in trainer.model.named_parameters():
        torch.testing.assert_close(p.detach(), expected[name], msg=name)


@pytest.mark.command
def test_workers_of_one_update_count_by_their_tokens(prepared, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(
        f"""
import sys, torch
sys.path.insert(0, {str(ROOT / "tests")!r})
from fairseq.distributed import utils
from fairseq_lasformer.plugin import register
register()
from helpers import batches, trainer_of
torch.distributed.init_process_group("gloo", init_method=sys.argv[3], rank=int(sys.argv[1]), world_size=2)
trainer = trainer_of(sys.argv[2], "--distributed-world-size", 2, "--ddp-backend", "legacy_ddp",
    "--distributed-rank", sys.argv[1], "--distributed-init-method", sys.argv[3], "--distributed-no-spawn")
sample = batches(trainer.task)[int(sys.argv[1])]
trainer.train_step([sample])
if sys.argv[1] == "0":
    torch.save({{n: p.detach() for n, p in trainer.get_model().named_parameters()}}, sys.argv[4])
    torch.save({{n: int(s.kappa) for n, s in trainer.get_model().selectors()}}, sys.argv[4] + ".kappa")
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    )
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{s.getsockname()[1]}"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda r: run("python", script, r, prepared, address, tmp_path / "out"), range(2)))
    trainer = trainer_of(prepared)
    expected = one_update(trainer.model, batches(trainer.task))
    for name, p in torch.load(tmp_path / "out").items():
        torch.testing.assert_close(p, expected[name], msg=name)
    # kappa moves on both workers' masses, as it does on two micro-batches
    alone = trainer_of(prepared, "--update-freq", 2)
    alone.train_step(batches(alone.task))
    assert torch.load(f"{tmp_path / 'out'}.kappa") == {n: int(s.kappa) for n, s in alone.model.selectors()}


def test_log_lines_are_means_over_all_micro_batches_and_workers(prepared):
    criterion = type(trainer_of(prepared).criterion)
    logs = [
        {"loss": 30.0, "nll_loss": 20.0, "ntokens": 10, "nsentences": 1, "sample_size": 10},
        {"loss": 10.0, "nll_loss": 8.0, "ntokens": 30, "nsentences": 2, "sample_size": 30},
    ]
    statistics = {"encoder.0": ((2.0, 9.0, 8.0, 10.0, 10.0), (3.0, 27.0, 6.0, 30.0, 30.0))}
    statistics["cross.1"] = ((1.0, 2.5, 2.0, 10.0, 5.0),) * 2  # which reads half of what it reads in own lines
    kappas = {"encoder.0": torch.tensor(500_000), "cross.1": torch.tensor(100_000)}
    for name, workers in statistics.items():
        for log, values in zip(logs, workers):
            log.setdefault("supervision", {})[name] = Supervision(*map(torch.tensor, values))
    for log in logs:
        log["selection"] = selection_sums(log.pop("supervision"), kappas, log["sample_size"])
    with metrics.aggregate(new_root=True) as found:
        criterion.reduce_metrics(logs)
    values = found.get_smoothed_values()
    assert values["loss"] == pytest.approx(1.0 / math.log(2), abs=1e-3)
    assert values["nll_loss"] == pytest.approx(0.7 / math.log(2), abs=1e-3)
    assert values["mass_encoder_0"] == pytest.approx(36 / 40) and values["recall_encoder_0"] == pytest.approx(14 / 40)
    assert values["mass_cross_1"] == pytest.approx(0.5) and values["mass"] == pytest.approx((0.9 + 0.5) / 2)
    assert values["kappa_encoder_0"] == pytest.approx(0.5) and values["kappa"] == pytest.approx(0.3)
    assert values["selection_kl"] == pytest.approx((5 / 40 + 2 / 20) / math.log(2), abs=1e-4)


@pytest.mark.parametrize("mass", ["selection", "attention"])
def test_kappa_follows_the_mass_that_is_asked_for(prepared, mass):
    """With a threshold between the selector's mass and the attention's own, the two move kappa apart."""
    trainer = trainer_of(prepared, "--sparsity-mass", mass)
    model, sample = trainer.model.train(), batches(trainer.task)[0]
    model(**sample["net_input"])
    given = dict(by_hand(model, sample, 0.0)["extra"]["supervision"])
    for name, selector in model.selectors():
        own, attention = (float(getattr(given[name], s) / given[name].queries) for s in ("mass", "recall"))
        assert own != attention
        selector.rule = selector.rule._replace(threshold=(own + attention) / 2)
    trainer.train_step([sample])
    for name, selector in model.selectors():
        followed = getattr(given[name], "mass" if mass == "selection" else "recall") / given[name].queries
        step = -1 if float(followed) > selector.rule.threshold else 1
        assert int(selector.kappa) == KAPPA_ONE // 2 + step * 1000, name


def test_statistics_in_one_word_are_read_again(tmp_path):
    groups = {"kappa_encoder_1": 0.64, "kappa_encoder_0": 0.601, "kappa_cross_0": 0.05, "mass_cross_0": 1.0}
    stats = {"kappa": 0.3, "recall_cross_0": 1.0, **groups}
    words = {f"{name}_by_group": joined(stats, name) for name in BY_GROUP}
    assert words == {"kappa_by_group": "encoder:0.601,0.64;cross:0.05", "mass_by_group": "cross:1"}
    assert joined({"loss": 1.0}, "kappa") == ""
    line = json.dumps({"num_updates": "7", "loss": "1", **words})
    (tmp_path / "log").write_text(f"| train_inner | {line}\n")
    assert read_log(tmp_path / "log")["train_inner"] == [{"num_updates": 7, "loss": 1, **groups}]
