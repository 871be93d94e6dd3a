"""fairseq-train, fairseq-hydra-train, workers, resumption, generation: the commands users type."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, run

from fairseq_lasformer import checkpoints, generate
from fairseq_lasformer.cost import kappas
from fairseq_lasformer.dataset import SplitInfo
from fairseq_lasformer.documents import read_documents
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.hypotheses import read_hypotheses

SIZES = [
    f"--{p}-{k}"
    for p in ("encoder", "decoder")
    for k in ("embed-dim=32", "ffn-embed-dim=32", "layers=2", "attention-heads=2")
]
MODEL = ["--arch", "lasformer", *SIZES, "--select-share", "2", "--select-dim", "8", "--sparsity-step", "0.01"]


def train(
    data: Path, save: Path, *options: object, model=MODEL, check: bool = True, **env: str
) -> subprocess.CompletedProcess:
    criterion = ["--criterion", "label_smoothed_cross_entropy_with_selection"]
    return run(
        *("fairseq-train", data, "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu"),
        *("--save-dir", save, "--max-tokens", 200, "--optimizer", "adam", "--lr", 0.002, "--clip-norm", 1.0),
        *("--no-epoch-checkpoints", "--log-format", "json", "--log-interval", 1, "--seed", 1, "--share-all-embeddings"),
        *(criterion if "--criterion" not in options else []),
        *model,
        *options,
        check=check,
        **env,
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
real = g._shard
def once(lines, log, tick):
    if len(ran) == 1:
        os._exit(9)
    ran.append(log); return real(lines, log, tick)
g._shard = once
g.generate(*map(Path, sys.argv[1:4]), shards=3, options=["--cpu", "--beam", "3"])
"""
    assert run("python", "-c", code, prepared, checkpoint, tmp_path / "three", check=False).returncode == 9
    assert not (tmp_path / "three").exists() and [p.name for p in sorted(parts.iterdir())] == ["0", "0.err", "key"]
    whole = (parts / "0").read_text()
    resume = ["lasformer", "generate", prepared, checkpoint, tmp_path / "three", "--shards", 3, "--jobs", 2, *options]
    # what stands in the first shard's file is taken as it is, so the first shard was not done again
    mine = re.sub(r"^(H-\d+\t[^\t]*\t).*$", r"\1UNTOUCHED", whole, count=1, flags=re.M)
    assert mine != whole
    (parts / "0").write_text(mine)
    saved = {p.name: p.read_bytes() for p in parts.iterdir()}
    done = run(*resume)
    assert "9 documents" in done.stdout and not parts.exists()
    assert (tmp_path / "three").read_text().count("UNTOUCHED") == 1
    parts.mkdir()
    for name, content in (saved | {"0": whole.encode()}).items():
        (parts / name).write_bytes(content)
    run(*resume)
    assert (tmp_path / "three").read_bytes() == (tmp_path / "one").read_bytes()
    # other options: nothing of it may be taken up
    parts.mkdir()
    for name, content in saved.items():
        (parts / name).write_bytes(content)
    run(*resume, "--lenpen", 0.5)
    assert "UNTOUCHED" not in (tmp_path / "three").read_text()
    # more shards than batches
    one_batch = ["--max-tokens", 100000, *options[1:]]
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "many", "--shards", 5, "--jobs", 2, "--", *one_batch)
    assert len((tmp_path / "many").read_text().splitlines()) == 9


def test_a_shard_that_breaks_off_is_no_shard(tmp_path):
    """Even where the process that translated it ends with exit code 0."""
    say = [sys.executable, "-c", "print('H-0\\t-1\\ta')\nprint('end of shard 0')\nprint('H-1\\t-1\\tb')"]
    seen: list[int] = []
    with pytest.raises(InputError, match="fairseq-generate failed"):
        generate._run(say, [tmp_path / "0", tmp_path / "1"], dict(os.environ), lambda: seen.append(1))
    assert (tmp_path / "0").exists() and not (tmp_path / "1").exists() and len(seen) == 2


def interactive(prepared, checkpoint, lines: list[str], *options: object, check: bool = True) -> list[str] | str:
    """What fairseq-interactive prints for lines of standard input: the translations, in order."""
    command = [
        Path(sys.executable).with_name("fairseq-interactive"),
        prepared,
        "--user-dir",
        ROOT / "fairseq_lasformer",
    ]
    command += ["--task", "document_translation", "--cpu", "--path", checkpoint, "--beam", 2, *options]
    text = "".join(line + "\n" for line in lines)
    done = subprocess.run(list(map(str, command)), input=text, capture_output=True, text=True, cwd=ROOT)
    if not check:
        return done.stderr
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(re.findall(r"^D-(\d+)\t[^\t]*\t?(.*)$", done.stdout, re.M))
    return [found[str(i)] for i in range(len(lines))]


def test_interactive_translates_documents_as_generate_does(trained, prepared, tmp_path):
    checkpoint = trained[0] / "checkpoint_last.pt"
    run("lasformer", "generate", prepared, checkpoint, tmp_path / "out", "--shards", 1, "--", "--cpu", "--beam", 2)
    info = SplitInfo.load(prepared, "test")
    raw = read_documents(prepared.parent / "raw" / "test.xx")
    whole = [i for i in range(len(raw)) if sum(d == i for d, _, _ in info.examples) == 1]
    expected = [(tmp_path / "out").read_text().split("\n")[i] for i in whole]
    lines = ["\t".join(raw[i]) for i in whole]
    # a blank line between two documents has a blank translation, not an invented one
    seen = interactive(prepared, checkpoint, [lines[0], "", *lines[1:]])
    assert seen == [expected[0], "", *expected[1:]]
    # the separator between two sentences does as well as a tab
    assert interactive(prepared, checkpoint, [" <sep> ".join(raw[whole[0]])]) == expected[:1]
    told = interactive(prepared, checkpoint, ["w1"], "--bpe", "subword_nmt", check=False)
    assert (
        told.strip().splitlines()[-1].startswith("error: --bpe subword_nmt: the data has a tokeniser and subwords of")
    )


REAL = ROOT.parent / "shared" / "data" / "en-de"


@pytest.mark.skipif(not REAL.exists(), reason="the real test sets are not at ../shared/data/en-de")
def test_fairseqs_tools_see_the_tokens_of_the_training_data(tmp_path):
    """Token for token on two real test sets, where fairseq's own Moses form is wrong in every second line."""
    from test_prepare import read_split

    from fairseq_lasformer.prepare import Plan, prepare
    from fairseq_lasformer.task import DocumentTranslationTask
    from fairseq_lasformer.task_config import DocumentTranslationConfig

    tests = ("news16.test", "ted17.test")
    sets = tuple(str(REAL / name) for name in tests)
    for separator in ("", "<sep>"):
        out = tmp_path / f"data{separator}"
        train_set, cache = (str(REAL / "gnomeadmin"),), tmp_path / "text"
        prepare(Plan("en", "de", train_set, (), sets, out, size=500, limit=20000, separator=separator, text=cache))
        cfg = DocumentTranslationConfig(data=str(out), source_lang="en", target_lang="de")
        task = DocumentTranslationTask.setup_task(cfg)
        codec, bpe = task.build_tokenizer(None), task.build_bpe(None)
        assert bpe is None
        for split, name in zip(("test", "test1"), tests):
            documents = read_documents(REAL / f"{name}.en")
            binarised = read_split(out, split, "en", "en-de")
            assert len(binarised) == len(documents)
            lines = ["\t".join(document) for document in documents]
            tokens, _ = task.get_interactive_tokens_and_lengths(lines, codec.encode)
            assert [task.src_dict.string(t) for t in tokens] == binarised


def test_documents_are_not_cut_at_fairseqs_200_tokens(trained, prepared):
    """Where no length is asked for, what a document needs is allowed; what is asked for counts."""
    from fairseq_lasformer.model import LasformerModel

    model = LasformerModel.from_pretrained(trained[0])
    for asked, expected in (({}, (1.5, 50)), ({"max_len_b": 30}, (0, 30)), ({"max_len_a": 2.0}, (2.0, 200))):
        args = SimpleNamespace(**{"beam": 1, "max_len_a": 0, "max_len_b": 200, **asked})
        generator = model.task.build_generator(model.models, args)
        assert (generator.max_len_a, generator.max_len_b) == expected
    with pytest.raises(InputError, match="--print-alignment: this model returns no attention weights"):
        model.task.build_generator(model.models, SimpleNamespace(print_alignment="hard"))
    with pytest.raises(InputError, match="--lenpen nan"):
        model.task.build_generator(model.models, SimpleNamespace(lenpen=float("nan")))


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


@pytest.mark.parametrize("times", [1, 3])
def test_the_first_of_several_training_splits_counts_as_often_as_asked(prepared, tmp_path, times):
    from fairseq_lasformer.task import DocumentTranslationTask
    from fairseq_lasformer.task_config import DocumentTranslationConfig

    data = shutil.copytree(prepared, tmp_path / "data")
    for path in list(data.glob("test.xx-yy.*")):
        shutil.copy(path, path.with_name(path.name.replace("test.", "train1.")))
    (data / "documents.train.json").unlink()  # it counts the first split alone
    cfg = DocumentTranslationConfig(data=str(data), train_subset="train", dataset_impl=None, upsample_primary=times)
    task = DocumentTranslationTask.setup_task(cfg)
    task.load_dataset("train", combine=True)
    first, second = (SplitInfo.load(prepared, split).n_examples for split in ("train", "test"))
    assert len(task.datasets["train"]) == times * first + second


def test_a_criterion_without_supervision_is_refused_for_a_selecting_model(prepared, tmp_path):
    plain = ["--criterion", "label_smoothed_cross_entropy", "--disable-validation", "--max-update", 1]
    done = train(prepared, tmp_path, *plain, check=False)
    assert done.returncode == 1
    assert (
        done.stderr.strip().splitlines()[-1].startswith("error: criterion LabelSmoothedCrossEntropyCriterion: the sel")
    )
    train(prepared, tmp_path, *plain, model=["--arch", "lasformer", *SIZES, "--select-modules", "none"])


def test_a_moving_average_of_the_weights_takes_kappa_as_it_is(prepared, tmp_path):
    """--store-ema"""
    options = ["--store-ema", "--ema-decay", 0.5, "--ema-fp32", "--disable-validation"]
    train(prepared, tmp_path, "--max-update", 3, *options)
    saved = state(tmp_path)
    average, weights = saved["extra_state"]["ema"], saved["model"]
    for name, value in weights.items():
        if name.endswith("kappa"):
            assert int(average[name]) == int(value) == 970_000
    name = "encoder.layers.0.fc1.weight"
    assert not torch.equal(average[name], weights[name])
    train(prepared, tmp_path, "--max-update", 4, *options)
    assert int(state(tmp_path)["extra_state"]["ema"]["encoder.layers.0.self_attn.selector.kappa"]) == 960_000


def test_an_update_that_mixed_precision_skips_does_not_move_kappa(prepared):
    from test_criterion import batches, trainer_of

    trainer = trainer_of(prepared)
    scale = [8.0]
    step = trainer.optimizer.step

    def skip(*_):
        scale[0] /= 2

    sample = batches(trainer.task)[0]
    before = {n: int(s.kappa) for n, s in trainer.model.selectors()}
    trainer.optimizer.scaler = SimpleNamespace(get_scale=lambda: scale[0])
    trainer.optimizer.step = skip
    trainer.train_step([sample])
    assert {n: int(s.kappa) for n, s in trainer.model.selectors()} == before and trainer.task.masses
    trainer.optimizer.step = step
    trainer.train_step([sample])
    assert all(abs(int(s.kappa) - before[n]) == 1000 for n, s in trainer.model.selectors()) and not trainer.task.masses


@pytest.mark.parametrize("option", ["--max-source-positions", "--max-tokens"])
def test_limits_are_told_as_plain_numbers(prepared, tmp_path, option):
    done = train(prepared, tmp_path, "--max-update", 1, option, 12, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("error: ") and "np." not in last
    if option == "--max-tokens":
        assert re.match(r"error: --max-tokens 12: the longest example has \d+ tokens", last)


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
