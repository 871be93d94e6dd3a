"""fairseq-train, fairseq-hydra-train, workers, resumption, generation: the commands users type."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run

from fairseq_lasformer import checkpoints
from fairseq_lasformer.cost import kappas
from fairseq_lasformer.evaluation.hypotheses import read_hypotheses

SIZES = [
    f"--{p}-{k}"
    for p in ("encoder", "decoder")
    for k in ("embed-dim=32", "ffn-embed-dim=32", "layers=2", "attention-heads=2")
]
MODEL = ["--arch", "lasformer", *SIZES, "--select-share", "2", "--select-dim", "8", "--sparsity-step", "0.01"]


def train(data: Path, save: Path, *options: object, model=MODEL, check: bool = True) -> subprocess.CompletedProcess:
    criterion = ["--criterion", "label_smoothed_cross_entropy_with_selection"]
    return run(
        *("fairseq-train", data, "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu"),
        *("--save-dir", save, "--max-tokens", 200, "--optimizer", "adam", "--lr", 0.002, "--clip-norm", 1.0),
        *("--no-epoch-checkpoints", "--log-format", "json", "--log-interval", 1, "--seed", 1, "--share-all-embeddings"),
        *(criterion if "--criterion" not in options else []),
        *model,
        *options,
        check=check,
    )


def log_lines(done: subprocess.CompletedProcess, kind: str = "train_inner") -> list[dict]:
    lines = (done.stdout + done.stderr).splitlines()
    # "| train_inner | {…}" from fairseq-train, "[train_inner][INFO] - {…}" from fairseq-hydra-train
    found = [re.search(rf"[|\[] ?{kind}(?: \||\]\[INFO\] -) (\{{.*\}})", line) for line in lines]
    return [json.loads(match[1]) for match in found if match]


def state(folder: Path) -> dict:
    return checkpoints.load(folder / "checkpoint_last.pt")


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, train(prepared, folder, "--max-update", 8, "--word-dropout", 0.1)


def test_every_log_line_tells_loss_kl_and_each_modules_kappa_mass_and_recall(trained):
    lines = log_lines(trained[1])
    assert len(lines) == 8
    for line in lines:
        assert {"nll_loss", "loss", "selection_kl", "kappa", "mass", "recall"} <= line.keys()
        for module in ("encoder", "decoder", "cross"):
            assert {f"kappa_{module}_0", f"mass_{module}_0", f"recall_{module}_0"} <= line.keys()
    assert [float(line["kappa"]) for line in lines][:3] == [1.0, 0.99, 0.98]
    valid = log_lines(trained[1], "valid")
    assert valid and "valid_kappa" in valid[0] and "valid_mass" not in valid[0]


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


def test_update_freq_counts_all_micro_batches_and_checkpointing_changes_nothing(prepared, tmp_path):
    options = ["--max-update", 3, "--update-freq", 2, "--disable-validation"]
    plain = log_lines(train(prepared, tmp_path / "a", *options))
    saved = log_lines(train(prepared, tmp_path / "b", *options, "--checkpoint-activations"))
    assert [line["loss"] for line in plain] == [line["loss"] for line in saved]
    assert [line["gnorm"] for line in plain] == [line["gnorm"] for line in saved]
    assert kappas(state(tmp_path / "a")["model"]) == kappas(state(tmp_path / "b")["model"])


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
    """Each worker sees other data; both must step by the mean over both."""
    script = tmp_path / "worker.py"
    script.write_text(
        """
import sys, torch, fairseq_lasformer
from types import SimpleNamespace as N
from fairseq.distributed import utils as du
from fairseq_lasformer.selection import Selector, SparsityRule
from fairseq_lasformer.task import DocumentTranslationTask
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
task = DocumentTranslationTask.__new__(DocumentTranslationTask)
selectors = {n: Selector(4, 4, 2, SparsityRule(step=0.1)) for n in ("encoder.0", "cross.0")}
for s in selectors.values(): s.kappa.fill_(400000)
model = N(selectors=lambda: selectors.items())
optimizer = N(step=lambda: None)
# mean mass over all queries: encoder (9 + 99) / 110 > 0.95; cross (9.9 + 80) / 110 < 0.95, unlike worker 0's own
mine = [((9.0, 10.0), (9.9, 10.0)), ((99.0, 100.0), (80.0, 100.0))][rank]
task.masses = {n: torch.tensor(m, dtype=torch.float64) for n, m in zip(selectors, mine)}
task.optimizer_step(optimizer, model, 1)
print("KAPPA", [int(s.kappa) for s in selectors.values()])
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
    )
    with ThreadPoolExecutor(2) as pool:
        outs = list(pool.map(lambda r: run("python", script, r, tmp_path / "store").stdout, range(2)))
    assert [re.search(r"KAPPA.*", o)[0] for o in outs] == ["KAPPA [300000, 500000]"] * 2


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


def test_generation_is_whole_resumable_and_in_order(trained, prepared, tmp_path):
    checkpoint = trained[0] / "checkpoint_last.pt"
    options = ["--", "--cpu", "--beam", "3"]
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "one", "--shards", 1, *options)
    # a run that was killed after its first shard: the rest is done, the first is not done again
    parts = tmp_path / "three.parts"
    code = """
import os, sys, fairseq_lasformer.generate as g
from pathlib import Path
ran = []
real = g._run
def once(command, log, environment):
    if len(ran) == 1:
        os._exit(9)
    ran.append(log); real(command, log, environment)
g._run = once
g.generate(*map(Path, sys.argv[1:4]), shards=3, options=["--cpu", "--beam", "3"])
"""
    assert run("python", "-c", code, prepared, checkpoint, tmp_path / "three", check=False).returncode == 9
    assert not (tmp_path / "three").exists() and [p.name for p in sorted(parts.iterdir())] == ["0", "key"]
    stamp = (parts / "0").stat().st_mtime_ns
    done = run("lasformer", "generate", prepared, checkpoint, tmp_path / "three", "--shards", 3, "--jobs", 2, *options)
    assert stamp and "9 documents" in done.stdout and not parts.exists()
    assert (tmp_path / "three").read_bytes() == (tmp_path / "one").read_bytes()
    # more shards than batches
    one_batch = ["--max-tokens", 100000, *options[1:]]
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "many", "--shards", 5, "--jobs", 2, "--", *one_batch)
    assert len((tmp_path / "many").read_text().splitlines()) == 9


def test_interactive_translates_documents_from_standard_input(trained, prepared):
    lines = ["w1 w2 <sep> w3 w4", "w5 w6 w7"]
    program = Path(sys.executable).with_name("fairseq-interactive")
    done = subprocess.run(
        [
            program,
            prepared,
            "--user-dir",
            ROOT / "fairseq_lasformer",
            "--task",
            "document_translation",
            "--cpu",
            "--path",
            trained[0] / "checkpoint_last.pt",
            "-s",
            "xx",
            "-t",
            "yy",
            "--beam",
            "2",
            "--bpe",
            "subword_nmt",
            "--bpe-codes",
            prepared / "bpe.codes",
        ],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(re.findall(r"^D-\d+\t", done.stdout, re.M)) == 2


@pytest.mark.parametrize("damage", ["truncated", "foreign", "sizes"])
def test_bad_checkpoints_end_training_in_one_line(trained, prepared, tmp_path, damage):
    good = (trained[0] / "checkpoint_last.pt").read_bytes()
    (tmp_path / "checkpoint_last.pt").write_bytes(good[: len(good) // 2] if damage == "truncated" else good)
    if damage == "foreign":
        torch.save({"model": subprocess.Popen}, tmp_path / "checkpoint_last.pt")
    options = ["--encoder-ffn-embed-dim", 64] if damage == "sizes" else []
    done = train(prepared, tmp_path, "--max-update", 9, *options, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("error: ") and "checkpoint_last.pt" in last
    assert "Traceback" not in done.stderr


def test_an_example_beyond_the_limit_is_an_error_not_a_gap(prepared, tmp_path):
    done = train(prepared, tmp_path, "--max-update", 1, "--max-source-positions", 12, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and re.match(r"error: \d+ of \d+ examples are longer", last)


@pytest.mark.parametrize("max_tokens", [60, 100, 150])
def test_no_example_is_left_out_of_the_batches(prepared, max_tokens):
    from fairseq_lasformer.task import DocumentTranslationTask
    from fairseq_lasformer.task_config import DocumentTranslationConfig

    cfg = DocumentTranslationConfig(data=str(prepared), train_subset="train", dataset_impl=None)
    cfg.required_seq_len_multiple = 1
    task = DocumentTranslationTask.setup_task(cfg)
    for split in ("train", "test"):
        task.load_dataset(split)
        iterator = task.get_batch_iterator(
            task.datasets[split], max_tokens=max_tokens, max_positions=(500, 500), required_batch_size_multiple=8
        ).next_epoch_itr(shuffle=False)
        seen = [i for batch in iterator for i in batch["id"].tolist()]
        assert sorted(seen) == list(range(len(task.datasets[split])))


def test_words_are_dropped_anew_and_the_frame_stays():
    from fairseq_lasformer.dataset import DroppedSide, drop_words

    batch = {
        "net_input": {"src_tokens": torch.randint(4, 60, (4, 50)), "prev_output_tokens": torch.randint(4, 60, (4, 50))}
    }
    batch["net_input"]["src_tokens"][:, :3] = 1
    sides = [DroppedSide(k, 3, frozenset({0, 1, 2, 9})) for k in batch["net_input"]]
    torch.manual_seed(1)
    first, second = (drop_words(batch, 0.3, sides)["net_input"]["src_tokens"] for _ in range(2))
    torch.manual_seed(1)
    assert torch.equal(first, drop_words(batch, 0.3, sides)["net_input"]["src_tokens"])
    original = batch["net_input"]["src_tokens"]
    assert not torch.equal(first, second) and (original[:, :3] == 1).all() and (first[:, :3] == 1).all()
    assert 0.2 < float((first == 3).float().mean()) < 0.4 and torch.equal(first == 9, original == 9)
    assert torch.equal(first[first != 3], original[first != 3])
    assert drop_words({}, 0.3, sides) == {}


def test_the_separator_of_prepared_data_is_never_dropped(prepared):
    from fairseq_lasformer.task import DocumentTranslationTask
    from fairseq_lasformer.task_config import DocumentTranslationConfig

    task = DocumentTranslationTask.setup_task(DocumentTranslationConfig(data=str(prepared), train_subset="train"))
    for side, dictionary in zip(task.dropped_sides, (task.src_dict, task.tgt_dict)):
        spared = {dictionary.index("<sep>"), dictionary.eos(), dictionary.pad(), dictionary.bos()}
        assert side.spared == spared and dictionary.unk() not in spared
