"""Trainings by fairseq's own commands, on one worker and on two."""

from __future__ import annotations

import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from helpers import ROOT, SIZES, log_lines, run, state, train, write_corpus

from fairseq_lasformer.analysis.cost import kappas
from fairseq_lasformer.text.hypotheses import read_hypotheses


def test_every_log_line_tells_loss_kl_and_each_modules_kappa_and_mass(trained):
    lines = log_lines(trained[1])
    assert len(lines) == 8
    for line in lines:
        assert {"nll_loss", "loss", "selection_kl", "kappa", "mass", "recall"} <= line.keys()
        for module in ("encoder", "decoder", "cross"):
            assert f"{module}:" in line["kappa_by_group"] and f"{module}:" in line["mass_by_group"]
    assert [float(line["kappa"]) for line in lines][:3] == [1.0, 0.99, 0.98]
    valid = log_lines(trained[1], "valid")
    assert valid and "valid_kappa" in valid[0] and "valid_mass" not in valid[0]


@pytest.mark.command
def test_training_resumes_with_kappa_and_its_checkpoint_loads_restricted(trained, prepared, tmp_path):
    folder, _ = trained
    before = kappas(state(folder)["model"])
    assert all(0.9 <= k < 1.0 for ks in before.values() for k in ks)
    (tmp_path / "checkpoint_last.pt").write_bytes((folder / "checkpoint_last.pt").read_bytes())
    done = train(prepared, tmp_path, "--max-update", 9)
    assert [line["num_updates"] for line in log_lines(done)] == ["9"]
    assert float(log_lines(done)[0]["kappa"]) == pytest.approx(sum(sum(k) for k in before.values()) / 3, abs=1e-4)
    after = kappas(state(tmp_path)["model"])
    assert all(after[m][0] == pytest.approx(before[m][0] - 0.01) for m in before)


@pytest.mark.command
def test_a_resumed_training_on_long_documents_equals_an_uninterrupted_one_to_the_bit(tmp_path):
    """Kept keys are gathered, and selectors learn from samples, which are drawn by the update's number."""
    prefix = str(write_corpus(tmp_path / "raw", "train", 60, longest=90))
    settings = {"SRC": "xx", "TGT": "yy", "TOKENIZER": "none", "SIZE": "60", "LIMIT": "900"}
    data = tmp_path / "data"
    run("scripts/preprocess.sh", data, "--resolutions", "documents", TRAIN=prefix, VALID=prefix, **settings)

    def after(folder: str, updates: int) -> dict[str, torch.Tensor]:
        steps = ["--sparsity-threshold", 1e-6, "--sparsity-step", 0.85, "--sparsity-min", 0.15, "--supervise-rows", 64]
        options = ["--max-update", updates, "--max-tokens", 900, "--disable-validation", "--save-interval-updates", 4]
        train(data, tmp_path / folder, *options, *steps)
        return state(tmp_path / folder)["model"]

    whole = after("whole", 8)
    after("parts", 4)
    resumed = after("parts", 8)
    assert all(0.14 < k < 0.2 for ks in kappas(whole).values() for k in ks)
    assert resumed.keys() == whole.keys() and all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.command
def test_update_freq_counts_all_micro_batches_and_checkpointing_changes_nothing(prepared, tmp_path):
    options = ["--max-update", 3, "--update-freq", 2, "--disable-validation"]
    plain = log_lines(train(prepared, tmp_path / "a", *options))
    saved = log_lines(train(prepared, tmp_path / "b", *options, "--checkpoint-activations"))
    assert [line["loss"] for line in plain] == [line["loss"] for line in saved]
    assert [line["gnorm"] for line in plain] == [line["gnorm"] for line in saved]
    assert kappas(state(tmp_path / "a")["model"]) == kappas(state(tmp_path / "b")["model"])


@pytest.mark.command
def test_two_gloo_workers_keep_the_same_kappa_and_resume_together(prepared, tmp_path):
    def both(max_update: int) -> list[subprocess.CompletedProcess]:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        common = ["--distributed-world-size", 2, "--distributed-backend", "gloo", "--distributed-no-spawn"]
        common += ["--distributed-init-method", f"tcp://127.0.0.1:{port}", "--ddp-backend", "legacy_ddp"]
        common += ["--max-update", max_update, "--disable-validation", "--sparsity-threshold", 0.97]
        with ThreadPoolExecutor(2) as pool:
            return list(
                pool.map(lambda r: train(prepared, tmp_path, *common, "--distributed-rank", r, check=r == 0), range(2))
            )

    # fairseq itself compares the workers' gradients every update; a kappa that differed would change them
    done = both(6)
    assert all(d.returncode == 0 for d in done), done[1].stderr[-2000:]
    first = kappas(state(tmp_path)["model"])
    assert all(d.returncode == 0 for d in both(8))
    second = kappas(state(tmp_path)["model"])
    assert all(k[0] < 1.0 for k in first.values()) and all(second[m][0] <= first[m][0] for m in first)


def test_equal_kappa_on_two_workers_with_different_masses(tmp_path):
    """Each worker sees different data; both must step by the mean over both."""
    script = tmp_path / "worker.py"
    script.write_text(
        """
import sys, torch
from fairseq_lasformer.plugin import register
register()
from types import SimpleNamespace as N
from fairseq.distributed import utils as du
from fairseq_lasformer.nn.patterns.learned import Selector
from fairseq_lasformer.nn.sparsity import SparsityRule
from fairseq_lasformer.ops import Supervision
from fairseq_lasformer.plugin.log_lines import selection_sums
from fairseq_lasformer.plugin.task import DocumentTranslationTask
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
task = DocumentTranslationTask.__new__(DocumentTranslationTask)
selectors = {n: Selector(4, 4, 2, SparsityRule(step=0.1)) for n in ("encoder.0", "cross.0")}
for s in selectors.values(): s.kappa.fill_(400000)
model = N(selectors=lambda: selectors.items(), cfg=N(sparsity_mass="selection", sparsity_warmup=0))
optimizer = N(step=lambda: None)
# mean mass over all queries: encoder (9 + 99) / 110 > 0.95; cross (9.9 + 80) / 110 < 0.95, unlike worker 0's own
mine = [((9.0, 10.0), (9.9, 10.0)), ((99.0, 100.0), (80.0, 100.0))][rank]
zero = torch.zeros(())
queries = [torch.tensor(q) for _, q in mine]
sums = {n: Supervision(zero, torch.tensor(m), zero, q, q) for n, (m, _), q in zip(selectors, mine, queries)}
task.sums = selection_sums(sums, {n: s.kappa for n, s in selectors.items()}, 1)
task.optimizer_step(optimizer, model, 1)
print("KAPPA", [int(s.kappa) for s in selectors.values()])
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    )
    with ThreadPoolExecutor(2) as pool:
        outs = list(pool.map(lambda r: run("python", script, r, tmp_path / "store").stdout, range(2)))
    assert [re.search(r"KAPPA.*", o)[0] for o in outs] == ["KAPPA [300000, 500000]"] * 2


@pytest.mark.command
def test_hydra_runs_the_same_model_from_yaml(prepared, tmp_path):
    (tmp_path / "run.yaml").write_text(
        f"""
common: {{user_dir: {ROOT / "fairseq_lasformer"}, cpu: true, log_format: json, log_interval: 1, seed: 1}}
task: {{_name: document_translation, data: {prepared}}}
model: {{_name: lasformer, share_all_embeddings: true, select_share: 2, select_dim: 8, sparsity_step: 0.01,
  encoder_embed_dim: 32, encoder_ffn_embed_dim: 32, encoder_layers: 2, encoder_attention_heads: 2,
  decoder_embed_dim: 32, decoder_ffn_embed_dim: 32, decoder_layers: 2, decoder_attention_heads: 2}}
criterion: {{_name: label_smoothed_cross_entropy_with_selection}}
dataset: {{max_tokens: 200, disable_validation: true}}
optimization: {{max_update: 3, lr: [0.002], clip_norm: 1.0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
checkpoint: {{save_dir: {tmp_path / "save"}, no_epoch_checkpoints: true}}
hydra: {{run: {{dir: {tmp_path / "hydra"}}}}}
"""
    )
    done = run("fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "run")
    cli = train(prepared, tmp_path / "cli", "--max-update", 3, "--disable-validation", "--lr-scheduler", "fixed")
    assert [line["loss"] for line in log_lines(done)] == [line["loss"] for line in log_lines(cli)]
    typo = run(
        "fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "run", "+model.select_dimm=3", check=False
    )
    assert typo.returncode != 0 and "select_dimm" in typo.stdout + typo.stderr


@pytest.mark.command
@pytest.mark.parametrize("arch", ["lasformer_tiny", "lasformer_dense_tiny", "transformer_moe", "transformer"])
def test_named_architectures_and_fairseqs_own_train_and_generate(prepared, tmp_path, arch):
    sizes = [] if "tiny" in arch else SIZES
    train(prepared, tmp_path, "--max-update", 2, "--disable-validation", model=["--arch", arch, *sizes])
    run(
        "lasformer",
        "generate",
        prepared,
        tmp_path / "checkpoint_last.pt",
        tmp_path / "out",
        "--shards",
        1,
        "--",
        "--cpu",
        "--beam",
        2,
    )
    assert len(read_hypotheses(tmp_path / "out", allow_empty=True)) == 9
    cfg = state(tmp_path)["cfg"]["model"]
    if "tiny" in arch:
        assert cfg["encoder_embed_dim"] == 128 and cfg["select_modules"] == (
            "none" if "dense" in arch else "encoder,decoder,cross"
        )
