"""fairseq's own tools on prepared data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fairseq.dataclass.configs import DistributedTrainingConfig
from fairseq.distributed import utils as distributed_utils
from helpers import ROOT, SIZES, read_split, run
from omegaconf import OmegaConf

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.text.documents import read_documents


def interactive(prepared, checkpoint, lines: list[str], *options: object, check: bool = True) -> list[str] | str:
    """Return what fairseq-interactive prints for lines of standard input: the translations, in order."""
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


@pytest.mark.command
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
    assert told.strip().splitlines()[-1].startswith("error: --bpe subword_nmt: the prepared data has its own tokeniser")


REAL = ROOT.parent / "shared" / "data" / "en-de"


@pytest.mark.command
@pytest.mark.skipif(not REAL.exists(), reason="the real test sets are not at ../shared/data/en-de")
def test_fairseqs_tools_see_the_tokens_of_the_training_data(tmp_path):
    """Token for token on two real test sets, where fairseq's own Moses form is wrong in every second line."""

    from fairseq_lasformer.data.prepare import PrepareConfig, prepare
    from fairseq_lasformer.plugin.task import DocumentTranslationTask
    from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

    tests = ("news16.test", "ted17.test")
    sets = tuple(str(REAL / name) for name in tests)
    for separator in ("", "<sep>"):
        out = tmp_path / f"data{separator}"
        train_set, cache = (str(REAL / "gnomeadmin"),), tmp_path / "text"
        prepare(
            PrepareConfig("en", "de", train_set, (), sets, out, size=500, limit=20000, separator=separator, text=cache)
        )
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


@pytest.mark.command
@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        ("fairseq-train", ["--bf16"], "--bf16: needs a GPU; on a CPU, --linear-dtype auto"),
        ("fairseq-train", ["--best-checkpoint-metric", "bleu"], "--best-checkpoint-metric bleu: needs --eval-bleu"),
        ("fairseq-train", ["--best-checkpoint-metric", "beauty"], "beauty: validation has no such figure"),
        ("fairseq-eval-lm", [], "fairseq-eval-lm is for language models; fairseq-validate measures"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_line(tool, options, message, prepared, trained, tmp_path):
    command = [tool, prepared, "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu"]
    if tool == "fairseq-train":
        command += ["--arch", "lasformer_tiny", "--optimizer", "adam", "--lr", 0.001, "--max-tokens", 200]
        command += ["--criterion", "label_smoothed_cross_entropy_with_selection", "--save-dir", tmp_path]
        command += ["--max-update", 1, *SIZES]
    else:
        command += ["--path", trained[0] / "checkpoint_last.pt"]
    done = run(*command, *options, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("error: ") and message in last


TRAINING = [
    *("--task", "document_translation", "--arch", "lasformer_tiny", "--optimizer", "adam", "--lr", 0.001, "--cpu"),
    *("--criterion", "label_smoothed_cross_entropy_with_selection", "--max-tokens", 200, "--max-update", 1),
    *("--no-save", "--disable-validation", *SIZES),
]


def elsewhere(folder, program, *args):
    """Run a command in another working directory, as a user of fairseq would."""
    command = [Path(sys.executable).with_name(program), *args]
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.command
@pytest.mark.parametrize("how", ["relative", "with a slash", "a link", "through a link"])
def test_the_plugin_is_found_by_any_path(how, prepared, tmp_path):
    (tmp_path / "link").symlink_to(ROOT / "fairseq_lasformer")
    (tmp_path / "clone").symlink_to(ROOT)
    place = {
        "relative": os.path.relpath(ROOT / "fairseq_lasformer", tmp_path),
        "with a slash": f"{ROOT / 'fairseq_lasformer'}/",
        "a link": "link",
        "through a link": "clone/fairseq_lasformer/",
    }[how]
    done = elsewhere(tmp_path, "fairseq-train", prepared, "--user-dir", place, *TRAINING)
    assert done.returncode == 0 and "done training" in done.stdout + done.stderr, done.stderr[-1000:]


@pytest.mark.command
def test_workers_that_fairseq_cannot_start_are_refused(prepared):
    command = ["fairseq-train", prepared, "--user-dir", ROOT / "fairseq_lasformer", *TRAINING]
    done = run(*command, "--distributed-world-size", 2, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("error: --distributed-world-size 2: ") and "torchrun" in last


@pytest.mark.command
@pytest.mark.parametrize("how", ["a file", "options"])
def test_hydra_composes_a_training(how, prepared, tmp_path):
    given = {
        "task": {"_name": "document_translation", "data": str(prepared)},
        "model": {"_name": "lasformer", "encoder_layers": 1, "decoder_layers": 1, "encoder_embed_dim": 16},
        "criterion": {"_name": "label_smoothed_cross_entropy_with_selection"},
        "optimizer": {"_name": "adam"},
        "lr_scheduler": {"_name": "fixed"},
    }
    given["model"] |= {"decoder_embed_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    words = [f"common.user_dir={ROOT / 'fairseq_lasformer'}", "dataset.max_tokens=200", "optimization.lr=[0.001]"]
    words += [
        "dataset.disable_validation=true",
        "optimization.max_update=1",
        "common.cpu=true",
        "checkpoint.no_save=true",
    ]
    if how == "a file":
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(given))
        words = ["--config-dir", tmp_path, "--config-name", "mine", *words]
    else:
        words += [f"++{group}.{name}={value}" for group, its in given.items() for name, value in its.items()]
    done = elsewhere(tmp_path, "fairseq-hydra-train", *words, f"hydra.run.dir={tmp_path}")
    assert done.returncode == 0 and "done training" in done.stdout + done.stderr, done.stderr[-1000:]


@pytest.mark.command
def test_no_example_is_left_out_for_the_size_of_batches(prepared, trained):
    command = ["fairseq-generate", prepared, "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation"]
    command += ["--path", trained[0] / "checkpoint_last.pt", "--cpu", "--beam", 1, "--required-batch-size-multiple", 8]
    done = run(*command, "--skip-invalid-size-inputs-valid-test")
    assert done.stdout.count("\nH-") == SplitInfo.load(prepared, "test").n_examples


def test_workers_of_a_cluster_are_left_to_it(monkeypatch):
    """Only workers that fairseq itself would start need a GPU each; Slurm's, and those behind an address, do not."""
    monkeypatch.setattr(distributed_utils, "_infer_slurm_init", lambda cfg, n: True)
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)

    def settings(**more):
        chosen = {"tpu": False, "distributed_world_size": 1000, "distributed_port": 29500, "distributed_no_spawn": True}
        return OmegaConf.merge(OmegaConf.structured(DistributedTrainingConfig), chosen | more)

    distributed_utils.infer_init_method(settings())
    distributed_utils.infer_init_method(settings(distributed_init_method="tcp://host:1", distributed_port=-1))
    with pytest.raises(InputError, match="--distributed-world-size 1000: .*torchrun"):
        distributed_utils.infer_init_method(settings(distributed_port=-1))
