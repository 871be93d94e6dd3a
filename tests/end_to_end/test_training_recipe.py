"""lasformer train, scripts/train.sh and lasformer run."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import yaml
from helpers import ROOT, SIZES, run
from tqdm import tqdm

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.experiments.run_config import RunConfig
from fairseq_lasformer.experiments.settings import SMALL, TrainOptions
from fairseq_lasformer.experiments.train import chosen_options
from fairseq_lasformer.experiments.training import _Reader, estimate
from fairseq_lasformer.plugin.patches import timed_checkpoints

TINY = [*SIZES, "--select-dim", 8]


@pytest.mark.command
def test_training_shows_its_first_updates_and_saves_them(prepared, tmp_path):
    settings = {"MAX_TOKENS": "200", "UPDATE_FREQ": "1", "MAX_UPDATE": "9", "SAVE_EVERY": "3", "LOG_EVERY": "2"}
    done = run("scripts/train.sh", prepared, tmp_path, *TINY, **settings)
    assert (tmp_path / "train.log").read_text().count("| train_inner | ") == 4
    assert "9 updates, nll" in done.stdout and "best validation: nll" in done.stdout
    assert f"next: lasformer translate {tmp_path} FILE" in done.stdout and "9/9" in done.stderr
    assert [p.name for p in sorted(tmp_path.glob("checkpoint_*"))] == [
        "checkpoint_1_9.pt",
        "checkpoint_best.pt",
        "checkpoint_last.pt",
    ]
    before = (tmp_path / "checkpoint_last.pt").stat().st_mtime_ns
    again = run("scripts/train.sh", prepared, tmp_path, *TINY, **settings)
    assert "train: already done" in again.stderr and again.stdout == done.stdout
    more = run("scripts/train.sh", prepared, tmp_path, *TINY, **settings | {"MAX_UPDATE": "11"})
    assert "11 updates, nll" in more.stdout and (tmp_path / "checkpoint_last.pt").stat().st_mtime_ns > before


@pytest.mark.command
def test_a_training_that_no_longer_improves_ends(prepared, tmp_path):
    command = ["lasformer", "train", prepared, tmp_path, "--max-update", 200, "--save-every", 2, "--patience", 2]
    done = run(*command, "--max-tokens", 200, "--update-freq", 1, "--lr", 1e-9, "--", *TINY)
    assert 4 <= load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] < 60
    assert "best validation" in done.stdout
    assert "already done" in run(*command, "--max-tokens", 200, "--update-freq", 1, "--lr", 1e-9, "--", *TINY).stderr


@pytest.mark.command
def test_a_killed_training_loses_minutes(prepared, tmp_path):
    """By the clock, not by the number of updates."""
    command = [Path(sys.executable).with_name("lasformer"), "train", prepared, tmp_path, "--max-update", "100000"]
    command += [
        "--save-every",
        "1000000",
        "--save-minutes",
        "0.02",
        "--max-tokens",
        "200",
        "--update-freq",
        "1",
        "--",
        *TINY,
    ]
    process = subprocess.Popen(
        [str(c) for c in command], env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE
    )
    end = time.monotonic() + 100
    while time.monotonic() < end and not (tmp_path / "checkpoint_last.pt").exists():
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    saved = load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    resumed = [*command[: command.index("100000")], str(saved + 3), *command[command.index("100000") + 1 :]]
    run("lasformer", *resumed[1:])
    assert f"Loaded checkpoint {tmp_path}/checkpoint_last.pt (epoch" in (tmp_path / "train.log").read_text()


def test_saves_that_are_due_do_not_validate():
    now, seen = [0.0], []

    def original(cfg, trainer, task, epoch_itr):
        seen.append((cfg.checkpoint.save_interval_updates, cfg.dataset.disable_validation))

    class Given:
        save_interval_minutes, data_parallel_world_size = 1.0, 1

    Given.cfg = Given
    from omegaconf import OmegaConf

    cfg = OmegaConf.create({"checkpoint": {"save_interval_updates": 100}, "dataset": {"disable_validation": False}})
    step = partial(timed_checkpoints.Saving(lambda: now[0]), original)
    for seconds in (0, 59, 61, 62, 122):
        now[0] = seconds
        step(cfg, Given, Given, None)
    assert seen == [(100, False), (100, False), (1, True), (100, False), (1, True)]
    Given.data_parallel_world_size = 2  # their clocks differ
    now[0] = 1000
    step(cfg, Given, Given, None)
    assert seen[-1] == (100, False)


@pytest.mark.command
def test_half_precision_without_a_gpu_is_one_line(prepared, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = run("scripts/train.sh", prepared, tmp_path, *TINY, "--fp16", MAX_TOKENS="200", check=False)
    last = (done.stdout + done.stderr).strip().splitlines()[-1]
    assert done.returncode != 0 and "there is no GPU here" in last and "--cpu" in last
    with pytest.raises(InputError, match="--precision fp16: there is no GPU here"):
        TrainOptions(precision="fp16").command(prepared, tmp_path)


def test_the_command_fits_data_and_architecture(prepared):
    words = TrainOptions(arch="transformer", patience=0, options=("--lr", "1")).command(prepared, Path("out"))
    assert words[words.index("--criterion") + 1] == "label_smoothed_cross_entropy" and "--patience" not in words
    assert words[-2:] == ["--lr", "1"] and words[words.index("--max-tokens") + 1] == "4096"
    with pytest.raises(InputError, match="expected one of auto"):
        TrainOptions(precision="int8").command(prepared, Path("out"))


@pytest.fixture
def raw(prepared):
    return prepared.parent / "raw"


def configuration(path, raw, **more):
    given = {
        "source": "xx",
        "target": "yy",
        "train": [str(raw / "train")],
        "valid": str(raw / "valid"),
        "test": str(raw / "test"),
        "out": str(path.parent / "out"),
        "prepare": {"tokenizer": "none", "size": 200, "limit": 25},
        "training": {"max_update": 4, "max_tokens": 200, "update_freq": 1, "save_every": 2, "log_every": 1},
        "fairseq": [str(word) for word in TINY],
        "translation": {"beam": 1, "shards": 1},
    }
    path.write_text(yaml.safe_dump(given | more))
    return path


@pytest.mark.command
def test_a_configuration_runs_from_raw_documents_to_the_report(raw, tmp_path):
    config = configuration(tmp_path / "run.yaml", raw)
    done = run("lasformer", "run", config)
    out = tmp_path / "out"
    for made in ("data/settings.json", "model/checkpoint_best.pt", "model/scores.json", "report.html"):
        assert (out / made).exists(), made
    assert "d-BLEU" in done.stdout and f"next: lasformer translate {out / 'model'} FILE" in done.stdout
    source = (raw / "test.xx").read_text(encoding="utf-8")
    assert (out / "translation").read_text(encoding="utf-8").count("\n") == source.count("\n")
    again = run("lasformer", "run", config)
    assert "train out: already done" in again.stderr and "translate out: already done" in again.stderr
    assert again.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    configuration(config, raw, prepare={"tokenizer": "none", "size": 190, "limit": 25})
    refused = run("lasformer", "run", config, check=False)
    assert refused.returncode == 1 and refused.stderr.strip().splitlines()[-1] == (
        f"error: {out / 'data'}: {out / 'model'} was trained on it, and it was prepared from other inputs or with "
        "other options (size was 200, is 190); choose another folder (out), or remove both"
    )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    run(
        "lasformer",
        "prepare",
        out / "data",
        "-s",
        "xx",
        "-t",
        "yy",
        "--train",
        raw / "valid",
        "--size",
        200,
        "--overwrite",
    )
    refused = run("lasformer", "train", out / "data", out / "model", check=False)
    assert refused.returncode == 1 and f"{out / 'model'}: was trained on other data than" in refused.stderr


@pytest.mark.command
def test_systems_start_from_a_common_trunk(raw, tmp_path):
    special = {"ema_decay": 0.5, "optimizer": "muon", "subword_sampling": 0.3}
    systems = {
        "trunk": {"prepare": {"limit": 15}, "training": {"arch": "lasformer_dense"} | special},
        "threes": {"start": "trunk", "prepare": {"max_lines": 3}, "training": {"arch": "lasformer_dense"}},
        "selecting": {"start": "trunk", "training": {"max_update": 2, "ema_decay": 0.5}},
    }
    prepare = {"tokenizer": "none", "bpe": "sentencepiece", "size": 80, "joined_dictionary": False, "limit": 60}
    config = configuration(tmp_path / "run.yaml", raw, systems=systems, prepare=prepare)
    done = run("lasformer", "run", config, "--only", "selecting")
    out = tmp_path / "out"
    assert not (out / "threes").exists() and (out / "data-limit-15/settings.json").exists()
    started = f"loading pretrained model from {out / 'trunk/model/averaged.pt'}"
    assert started in (out / "selecting/model/train.log").read_text()
    assert started not in (out / "trunk/model/train.log").read_text()
    trunk, tuned = (load(out / name / "model/averaged.pt")["model"] for name in ("trunk", "selecting"))
    name = "encoder.layers.0.fc1.weight"
    assert 0 < (tuned[name] - trunk[name]).abs().max() < 0.1  # only a few updates apart
    assert any("selector" in name for name in tuned) and not any("selector" in name for name in trunk)
    lines = (raw / "test.xx").read_text(encoding="utf-8").count("\n")
    assert (out / "selecting/translation").read_text(encoding="utf-8").count("\n") == lines
    assert "trunk" in done.stdout and f"next: lasformer translate {out / 'selecting/model'} FILE" in done.stdout
    run("lasformer", "run", config, "--only", "threes")
    info = json.loads((out / "data-max_lines-3/documents.test.json").read_text())
    assert max(n for _, _, n in info["examples"]) == 3
    refused = run("lasformer", "run", config, "--only", "nothing", check=False)
    assert refused.stderr.strip().splitlines()[-1] == (
        "error: --only nothing: the systems are selecting, threes, trunk"
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"trian": 1}, "trian: unknown; is train meant?"),
        ({"training": {"archh": "x"}}, "training.archh: unknown; is arch meant?"),
        ({"out": None}, "out is missing"),
        ({"prepare": [1]}, "prepare: expected names and values"),
        ({"fairseq": "--lr 1"}, "fairseq: expected a list of words"),
        ({"train": {"a": 1}}, "train: expected a prefix"),
        ({"test": ["a", "b"]}, "test: expected a single prefix"),
        ({"systems": ["a"]}, "systems: expected names, each with the options that differ"),
        ({"systems": {"a": {"stert": "b"}}}, "systems.a.stert: unknown; is start meant?"),
        ({"systems": {"a": {"start": "b"}}}, "systems.a: start: there is no system b"),
        ({"systems": {"a": {"start": "b"}, "b": {"start": "a"}}}, "systems.a: start: it would start from itself"),
        ({"systems": {"a": {"prepare": {"size": 9}}}}, "systems.a.prepare.size: unknown"),
        ({"systems": {"data": {}}}, "systems.data: not a name for a folder"),
        ({"systems": {"../a": {}}}, "systems.../a: not a name for a folder"),
        ({"gpu": ["a"]}, "gpu: expected names and values that differ on a GPU"),
        ({"gpu": {"out": "x"}}, "gpu.out: unknown"),
        ({"gpu": {"systems": {"b": {}}}, "systems": {"a": {}}}, "gpu.systems.b: unknown; known: a"),
        ({"gpu": {"training": {"archh": "x"}}}, "training.archh: unknown; is arch meant?"),
    ],
)
def test_mistakes_in_a_configuration_are_named(change, message, raw, tmp_path, capsys):
    config = configuration(tmp_path / "run.yaml", raw, **change)
    assert main(["run", str(config)]) == 1
    assert message in capsys.readouterr().err


def test_a_configuration_is_data(tmp_path):
    (tmp_path / "a.yaml").write_text("source: !!python/object/apply:os.system [true]\n")
    with pytest.raises(InputError, match="not YAML"):
        RunConfig.read(tmp_path / "a.yaml")
    with pytest.raises(InputError, match="no such file"):
        RunConfig.read(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_text("just text")
    with pytest.raises(InputError, match="expected names and values; see examples/own_data.yaml"):
        RunConfig.read(tmp_path / "b.yaml")


def test_the_example_is_complete():
    whole = RunConfig.read(ROOT / "examples/own_data.yaml")
    assert whole.train == ("raw/train",) and whole.training == {} and whole.prepare["limit"] == 1024


def test_values_of_a_gpu_are_those_of_the_run_if_there_is_one(raw, tmp_path, monkeypatch):
    values = {"training": {"max_update": 5, "lr": 0.1}, "fairseq": ["--clip-norm=1"], "systems": {"a": {}, "b": {}}}
    special = {
        "training": {"max_update": 50},
        "fairseq": ["--clip-norm=2"],
        "systems": {"b": {"fairseq": ["--seed=2"]}},
    }
    config = configuration(tmp_path / "run.yaml", raw, **values, gpu=special)
    plain = RunConfig.read(configuration(tmp_path / "plain.yaml", raw, **values))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert RunConfig.read(config) == plain
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    run = RunConfig.read(config)
    assert run.training == {"max_update": 50, "lr": 0.1} and run.fairseq == ("--clip-norm=1", "--clip-norm=2")
    assert [system.fairseq for system in run.systems] == [(), ("--seed=2",)]
    tvsub = RunConfig.read(ROOT / "examples/tvsub.yaml")
    assert tvsub.training["max_tokens"] == 32768 and tvsub.training["optimizer"] == "muon"


def test_what_a_training_will_take_is_said_before_it_is_spent():
    said = estimate(76_907_008, 13.0, 8, 100_000)
    assert said.startswith(
        "76.9 million parameters; the first batch took 13.0 s: 100,000 updates of 8 would take 120 days"
    )
    assert "lasformer_tiny" in said and "--small-corpus" in said
    assert estimate(750_000, 0.2, 1, 1650) == (
        "0.8 million parameters; the first batch took 0.2 s: 1,650 updates of 1 would take 6 minutes at most"
    )


def test_the_example_lets_the_size_of_the_corpus_decide(prepared, tmp_path):
    options, told = RunConfig.read(ROOT / "examples/own_data.yaml").options(prepared, tmp_path)
    assert options.arch == SMALL["arch"] and options.max_update == SMALL["max_update"] and told


def test_small_corpora_get_defaults_of_their_own(prepared, tmp_path):
    given = {"arch": "lasformer", "max_update": 100_000}  # the other values belong to a different model
    options, told = chosen_options(prepared, tmp_path, given, None)
    assert options == TrainOptions(**given) and told == "small corpus, but --arch lasformer: the base model's defaults"
    assert not [*tmp_path.iterdir()]
    options, told = chosen_options(prepared, tmp_path, {"lr": 0.1, "options": ()}, None)
    assert options.arch == "lasformer_tiny" and options.lr == 0.1 and options.update_freq == 1
    assert told.startswith("small corpus (") and "--arch lasformer_tiny" in told and "--lr" not in told
    assert chosen_options(prepared, tmp_path, {}, False) == (TrainOptions(), "")
    (tmp_path / "checkpoint_last.pt").touch()  # a started training keeps its defaults
    assert chosen_options(prepared, tmp_path, {}, None)[0].arch == "lasformer_tiny"
    other = tmp_path / "other"
    other.mkdir()
    (other / "checkpoint_last.pt").touch()
    assert chosen_options(prepared, other, {}, None) == (TrainOptions(), "")


@pytest.mark.command
def test_ctrl_c_saves_and_ends_in_one_line(prepared, tmp_path):
    words = ["train", prepared, tmp_path, "--max-update", "100000", "--save-every", "1000000", "--max-tokens", "200"]
    command = [Path(sys.executable).with_name("lasformer"), *words, "--log-every", "1", "--", *TINY]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [str(c) for c in command],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell's & ignores it
    )
    log, end = tmp_path / "train.log", time.monotonic() + 100
    while time.monotonic() < end and not (log.exists() and log.read_text().count('"num_updates"') > 3):
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said
    assert "small corpus (" in said and "million parameters; the first batch took" in said
    updates = load(tmp_path / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]
    assert said.strip().splitlines()[-1] == (
        f"training {tmp_path.name} was interrupted: saved after {updates} updates; the same command resumes it"
    )
    words[words.index("100000")] = str(updates + 2)
    assert f"{updates + 2} updates, nll" in run("lasformer", *words, "--", *TINY).stdout


def test_a_resumed_training_says_so_and_times_its_own_updates(capsys):
    bar = tqdm(total=1000, disable=False, file=io.StringIO())
    bar.start_t -= 500  # starting, loading and compiling
    reader = _Reader(bar, 1000)
    reader.read("2026 | INFO | fairseq.trainer | Loaded checkpoint x/checkpoint_last.pt (epoch 3 @ 900 updates)\n")
    reader.read('2026 | INFO | train_inner | {"update": 1.0, "num_updates": "910", "nll_loss": "2.5"}\n')
    assert "resumed at update 900" in capsys.readouterr().err
    assert (bar.n, bar.initial) == (910, 910) and bar.format_dict["elapsed"] < 100
    other = _Reader(tqdm(total=9, file=io.StringIO()), 9)
    other.read("Loaded checkpoint trunk.pt (epoch 1 @ 0 updates)\n")  # weights to start from
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("typed", "meant"), [("lasfomer", "lasformer"), ("lasformer-tiny", "lasformer_tiny")])
def test_a_mistyped_architecture_is_answered_with_the_one_that_was_meant(typed, meant, prepared, tmp_path):
    with pytest.raises(InputError, match=f"--arch {typed}: unknown; did you mean {meant}"):
        TrainOptions(arch=typed).command(prepared, tmp_path)
    for arch in ("transformer_wmt_en_de", "transformer_iwslt_de_en", "lightconv", meant):
        TrainOptions(arch=arch).command(prepared, tmp_path)


@pytest.mark.command
def test_a_training_that_diverges_says_what_to_do(prepared, tmp_path):
    command = ["lasformer", "train", prepared, tmp_path / "m", "--max-tokens", 200, "--update-freq", 1]
    done = run(*command, "--save-every", 1, "--max-update", 30, "--lr", 1e25, "--", *TINY, check=False)
    assert done.returncode == 1 and re.search(
        r"failed; see .*train.log: the training diverged at update \d+ \(.+\): choose a lower --lr than 1e\+25, "
        r"or more --warmup-updates, and resume with .*checkpoint_last.pt\n$",
        done.stderr,
    )
    log = (tmp_path / "m/train.log").read_text()
    assert "detected in output of" in log and "TypeError" not in log and "StopIteration" not in log
