"""Tables of ablations, trainings from a configuration, TensorBoard."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
from helpers import ROOT, run, train
from omegaconf import OmegaConf

from fairseq_lasformer.analysis import cost
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.experiments import ablation, training
from fairseq_lasformer.experiments.ablation import competitors
from fairseq_lasformer.plugin.config import LasformerConfig, module_config
from fairseq_lasformer.text.documents import read_documents

CONFIG = """
common: {{user_dir: {root}/fairseq_lasformer, cpu: true, log_format: json, log_interval: 1, seed: 1}}
task: {{_name: document_translation, data: {data}}}
model: {{_name: lasformer, share_all_embeddings: true, select_dim: 8, sparsity_step: 0.01,
  encoder_embed_dim: 32, encoder_ffn_embed_dim: 32, encoder_layers: 2, encoder_attention_heads: 2,
  decoder_embed_dim: 32, decoder_ffn_embed_dim: 32, decoder_layers: 2, decoder_attention_heads: 2}}
criterion: {{_name: label_smoothed_cross_entropy_with_selection}}
dataset: {{max_tokens: 200, disable_validation: true}}
optimization: {{max_update: {updates}, lr: [0.002], clip_norm: 1.0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
checkpoint: {{save_dir: {save}, no_epoch_checkpoints: true}}
hydra: {{run: {{dir: {save}/hydra}}}}
"""


@pytest.fixture
def config(prepared, tmp_path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(CONFIG.format(root=ROOT, data=prepared, updates=3, save=tmp_path / "save"))
    return path


def test_the_papers_tables_are_the_runs_they_name():
    cfg = OmegaConf.create({"model": {"encoder_layers": 4, "decoder_layers": 4}})
    assert [r.label for r in ablation.rows(3, cfg)][0] == "Transformer" and len(ablation.rows(3, cfg)) == 5
    four = {r.label: r.overrides for r in ablation.rows(4, cfg)}
    assert four["Lasformer"] == () and "++model.select_pattern=window:20" in four["window of 20"] and len(four) == 7
    assert four["literal gradient"] == ("++model.select_gradient=straight-through",)
    one = {r.label: " ".join(r.overrides) for r in ablation.rows(1, cfg)}
    assert len(one) == 14 and one["Lasformer"] == "" and "'window:80'" in one["window"]
    assert "'window:40'" in {r.label: " ".join(r.overrides) for r in ablation.rows(1, cfg, ["40"])}["window"]
    for values in (["0"], ["x"], ["20", "40"]):
        with pytest.raises(InputError, match="in table 1, expected the number of keys per query"):
            ablation.rows(1, cfg, values)
    assert [r.label for r in ablation.rows(5, cfg, ["0.7", "0.9"])] == ["t 0.7", "t 0.9"]
    assert [r.overrides for r in ablation.rows(6, cfg)][0] == ("++model.select_dim=16",)
    assert [r.label for r in ablation.rows(7, cfg)] == ["r 1", "r 2", "r 3"]  # four layers have no group of six
    with pytest.raises(InputError, match="the tables are 1, 3"):
        ablation.rows(8, cfg)
    with pytest.raises(InputError, match="--modules encoder: only in table 1"):
        ablation.rows(3, cfg, modules=("encoder",))
    with pytest.raises(InputError, match="--modules: no module source; expected encoder, decoder, cross"):
        ablation.rows(1, cfg, modules=("encoder", "source"))
    folders = [r.folder for t in (1, 3, 4, 5, 6, 7) for r in ablation.rows(t, cfg)]
    assert all("/" not in f and " " not in f for f in folders)


@pytest.mark.command
def test_a_table_runs_resumes_and_prints(config, prepared, tmp_path):
    reference = prepared.parent / "raw" / "test.yy"
    command = ["lasformer", "ablate", config, "--table", 7, "--reference", reference, "--out", tmp_path / "out"]
    probe = {"document": 0, "sentence": 0, "word": 0, "phenomenon": "tense", "right": "a", "wrong": [], "distance": 5}
    (tmp_path / "probe.jsonl").write_text(json.dumps(probe | {"first": True}) + "\n")
    command += ["--probe", tmp_path / "probe.jsonl"]
    generation = ["--", "--cpu", "--beam", 2, "--max-len-a", 0, "--max-len-b", 9]
    one = run(*command, "--only", "r 2", *generation)
    assert "r 1" in one.stdout and "not finished" in one.stdout
    folder = tmp_path / "out" / "small" / "table7"
    result = json.loads((folder / "r_2" / "result.json").read_text())
    assert result["accuracy"]["all"] in (0, 1) and result["seconds"] > 0
    assert result["updates"] == 3 and 0.9 < result["kappa"]["cross"] < 1
    stamp = (folder / "r_2" / "checkpoint_last.pt").stat().st_mtime_ns
    both = run(*command, *generation)
    assert (
        "not finished" not in both.stdout
        and "κ encoder" in both.stdout
        and "context" in both.stdout
        and "at 1,024 tokens" in both.stdout
    )
    assert (folder / "r_2" / "checkpoint_last.pt").stat().st_mtime_ns == stamp  # not done again
    assert run(*command, "--show", *generation).stdout == both.stdout
    other = run(*command, "--set", "common.seed=3", *generation, check=False)  # not the results of other settings
    assert other.returncode == 1 and "contains a run with a different configuration" in other.stderr
    shown = run(*command, "--set", "common.seed=3", "--show", *generation).stdout.splitlines()[1:3]
    assert [line.split()[:5] for line in shown] == [["r", n, "of", "a", "different"] for n in "12"]
    shutil.rmtree(folder / "r_1")
    (tmp_path / "launch.py").write_text("import sys; open(sys.argv[1], 'a').write(sys.argv[2] + '\\n')")
    launcher = f"python3 {tmp_path / 'launch.py'} {tmp_path / 'jobs'}"
    run(*command, "--submit", launcher, *generation)
    jobs = (tmp_path / "jobs").read_text().splitlines()
    assert (
        len(jobs) == 1
        and "--only 'r 1'" in jobs[0]
        and jobs[0].endswith(f"--probe {tmp_path / 'probe.jsonl'} -- --cpu --beam 2 --max-len-a 0 --max-len-b 9")
    )
    assert Path(jobs[0].split()[0]).is_file()
    (tmp_path / "text").write_text("w1 w2\n")
    report = run("lasformer", "report", folder / "r_2", "--document", tmp_path / "text", "-o", tmp_path / "r.html")
    assert "r_2" in report.stdout


@pytest.mark.command
def test_a_window_of_keys_trains_and_translates(config, prepared, tmp_path):
    row = next(r for r in ablation.rows(4, training.read_config(config)) if r.label.startswith("window"))
    reference = read_documents(prepared.parent / "raw" / "test.yy")
    plan = ablation.Ablation(
        config,
        reference,
        ("--cpu", "--beam", "2", "--max-len-a", "0", "--max-len-b", "9"),
        (f"++task.data={prepared}",),
    )
    assert plan.data == prepared
    result = ablation.run(plan, row, tmp_path / row.folder)
    assert result["kappa"] == {"encoder": None, "decoder": None, "cross": None}
    line = ablation.text(plan, 4, [row], tmp_path).splitlines()[1]
    assert 0 < float(line.split()[-3].rstrip("%")) < 10


@pytest.mark.command
def test_a_training_that_fails_says_so_in_one_line(config, tmp_path):
    with pytest.raises(InputError, match="training x failed; see .*x.log: .*max_tokenss"):
        training.train(config, ["dataset.max_tokenss=3"], tmp_path / "x.log", "x")
    with pytest.raises(InputError, match="no.yaml: no such configuration"):
        training.read_config(tmp_path / "no.yaml")
    (tmp_path / "bad.yaml").write_text("common: {seed: 1}\n")
    with pytest.raises(InputError, match="bad.yaml: not a training configuration"):
        training.read_config(tmp_path / "bad.yaml")
    done = run(
        *("lasformer", "ablate", config, "--table", 7, "--reference", tmp_path / "none", "--only", "r 9"), check=False
    )
    assert done.returncode == 1 and done.stderr.strip().splitlines()[-1].startswith(
        "error: --only r 9: table 7 has r 1"
    )


@pytest.mark.command
def test_tensorboard_shows_kappa_and_mass(prepared, tmp_path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    train(prepared, tmp_path / "save", "--max-update", 3, "--tensorboard-logdir", tmp_path / "tb")
    tags = set()
    for file in (tmp_path / "tb").rglob("events*"):
        data = file.read_bytes()
        while data:  # records: length, its checksum, an event, its checksum
            (n,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + n])
            tags |= {value.tag for value in event.summary.value}
            data = data[16 + n :]
    assert {"kappa", "mass", "kappa_encoder_0", "mass_cross_0", "selection_kl"} <= tags


def test_every_way_to_attend_builds_with_its_share_of_the_keys(build):
    """In a text of four times as many tokens, as its docstring says: 0.5 to 1.5 times the keys."""
    for keys in (20, 80):
        for way in competitors(keys)[1:]:
            cfg = module_config(LasformerConfig(select_pattern=way.pattern, select_modules=way.modules))
            own = cost.module_cost("encoder", cfg, cost.module_patterns("encoder", cfg, []), 4 * keys)
            assert 0.5 < own.kappa * 4 < 1.6, (way, own.kappa)


def test_ways_to_attend_stand_where_they_are_wanted():
    modules = {c.label: c.modules for c in competitors(modules=("encoder", "decoder"))}
    assert modules.pop("linformer") == "encoder" and set(modules.values()) == {"encoder,decoder"}
    assert competitors(modules=("decoder",))[-1].modules == "none"
    assert {c.modules for c in competitors()} == {"encoder,decoder,cross", "encoder,cross"}


def test_a_run_is_the_same_wherever_it_was_begun(config, prepared, tmp_path, monkeypatch):
    def key(*overrides):
        plan = ablation.Ablation(config, [], (), (f"++task.data={prepared}", *overrides))
        return plan.progress(ablation.Row("a"), tmp_path).key

    here = key()
    monkeypatch.chdir(tmp_path)
    assert key() == here != key("common.seed=3")
