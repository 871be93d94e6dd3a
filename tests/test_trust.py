"""What no checkpoint, kill, full disk or hostile file may do."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run, write_corpus
from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from hypothesis import given, settings
from hypothesis import strategies as st
from test_training import SIZES, train

from fairseq_lasformer import checkpoints, compat, files, hub, runs
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.prepare import Plan, prepare
from fairseq_lasformer.text import Codec, check_separator, learn_subwords


@pytest.fixture(scope="module")
def checkpoint(prepared, tmp_path_factory) -> Path:
    """A checkpoint of fairseq's own transformer, whose settings fairseq evaluates in part."""
    folder = tmp_path_factory.mktemp("stock")
    train(prepared, folder, "--max-update", 2, "--disable-validation", model=["--arch", "transformer", *SIZES])
    return folder / "checkpoint_last.pt"


# --- S1: a checkpoint is data


def armed(checkpoint: Path, folder: Path, where: str) -> tuple[Path, Path]:
    """The checkpoint with a setting that creates a file when fairseq evaluates it, and that file."""
    ran = folder / "payload_ran"
    payload = f"[__import__('pathlib').Path({str(ran)!r}).touch(),None][1]"
    state = torch.load(checkpoint, weights_only=True)
    model = state["cfg"]["model"]
    if where == "a namespace's":
        state["args"], state["cfg"] = argparse.Namespace(**vars(model), encoder_xformers_att_config=payload), None
    elif where == "a list's":
        model.adaptive_softmax_cutoff = [payload]
    elif where == "a key":
        state["cfg"]["task"] = {payload: 1}
    elif where == "the environment":
        state["cfg"]["common"]["tensorboard_logdir"] = "${oc.env:HOME}"
    elif where == "endless work":
        model.encoder_xformers_att_config = "9**9**9**9"
    else:
        setattr(model, where, payload)
    path = folder / "checkpoint_best.pt"
    torch.save(state, path)
    return path, ran


@pytest.mark.parametrize(
    "where",
    [
        "encoder_xformers_att_config",
        "decoder_xformers_att_config",
        "adaptive_softmax_cutoff",
        "a namespace's",
        "a list's",
        "a key",
        "the environment",
        "endless work",
    ],
)
def test_a_checkpoint_with_code_in_its_settings_is_refused_by_every_loader(checkpoint, prepared, tmp_path, where):
    path, ran = armed(checkpoint, tmp_path, where)
    for load in (
        lambda: checkpoints.load(path),
        lambda: checkpoint_utils.load_checkpoint_to_cpu(str(path)),
        lambda: checkpoint_utils.load_model_ensemble_and_task([str(path)], {"data": str(prepared)}),
        lambda: hub.from_pretrained(tmp_path, path.name, prepared),
        lambda: TransformerModel.from_pretrained(str(tmp_path), path.name, str(prepared)),
        lambda: checkpoints.average([path, path], tmp_path / "mean.pt"),
    ):
        with pytest.raises(InputError, match="refused, its setting .* holds code"):
            load()
    assert not ran.exists() and not (tmp_path / "mean.pt").exists()


ENTRIES = ["fairseq-generate", "fairseq-interactive", "fairseq-validate", "lasformer generate", "resume", "finetune"]


def enter(entry: str, path: Path, data: Path, folder: Path, **env: str) -> subprocess.CompletedProcess:
    """One of the commands that take a checkpoint, on this one."""
    if entry in ("resume", "finetune"):
        save = folder / "save"
        save.mkdir()
        if entry == "resume":
            shutil.copy(path, save / "checkpoint_last.pt")
        more = ["--finetune-from-model", path] if entry == "finetune" else []
        return train(data, save, "--max-update", 3, *more, model=["--arch", "transformer", *SIZES], check=False, **env)
    if entry == "lasformer generate":
        return run("lasformer", "generate", data, path, folder / "out", "--", "--cpu", check=False, **env)
    plugin = ["--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu", "--path", path]
    if entry == "fairseq-validate":
        plugin += ["--valid-subset", "valid", "--max-tokens", 500]
    return run(entry, data, *plugin, check=False, **env)


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_command_runs_what_a_checkpoint_holds(checkpoint, prepared, tmp_path, entry):
    path, ran = armed(checkpoint, tmp_path, "encoder_xformers_att_config")
    done = enter(entry, path, prepared, tmp_path)
    assert not ran.exists() and done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("error: "), done.stderr[-2000:]
    assert "holds code" in done.stderr and "Traceback" not in done.stderr


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("entry", ["fairseq-generate", "lasformer generate", "resume"])
def test_the_environment_cannot_switch_the_restriction_off(checkpoint, prepared, tmp_path, entry):
    state = torch.load(checkpoint, weights_only=True) | {"more": Payload(tmp_path / "payload_ran")}
    torch.save(state, tmp_path / "checkpoint_best.pt")
    switch = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    done = enter(entry, tmp_path / "checkpoint_best.pt", prepared, tmp_path, **switch)
    assert not (tmp_path / "payload_ran").exists() and done.returncode != 0
    assert "refused, it holds code, not only weights" in done.stderr and "weights_only" not in done.stderr


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "empty"),
        (b"just a text file, no checkpoint\n", "not a checkpoint of torch"),
        (b"\x1f\x8b\x08 a gzip file", "not a checkpoint of torch"),
        (pickle.dumps({"model": 1}), "checkpoint"),
    ],
)
def test_other_files_are_called_what_they_are(tmp_path, content, reason):
    (tmp_path / "c.pt").write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        checkpoints.load(tmp_path / "c.pt")
    assert "\n" not in str(caught.value) and "holds code" not in str(caught.value)
    with pytest.raises(InputError, match="is a folder; it holds no checkpoint"):
        checkpoints.load(tmp_path)
    (tmp_path / "checkpoint_last.pt").touch()
    with pytest.raises(InputError, match="is a folder; name the checkpoint in it: .*checkpoint_last.pt"):
        checkpoints.load(tmp_path)


def test_damage_within_a_checkpoint_is_found(checkpoint, tmp_path):
    content = bytearray(checkpoint.read_bytes())
    for place in (len(content) // 3, len(content) // 2):
        broken = bytearray(content)
        broken[place] ^= 1
        (tmp_path / "c.pt").write_bytes(broken)
        with pytest.raises(InputError, match="damaged"):
            checkpoints.load(tmp_path / "c.pt")
    state = torch.load(checkpoint, weights_only=True)
    state["model"]["encoder.layers.0.fc1.weight"][0, 0] = float("nan")
    torch.save(state, tmp_path / "c.pt")
    with pytest.raises(InputError, match="encoder.layers.0.fc1.weight is not finite"):
        checkpoints.load(tmp_path / "c.pt")


def test_settings_that_only_look_odd_are_taken(checkpoint, tmp_path):
    state = torch.load(checkpoint, weights_only=True)
    model = state["cfg"]["model"]
    model.data, model.save_dir, model.adam_betas = "models (1)/data", "f(x)", "(0.9, 0.98)"
    model.encoder_layers_to_keep = "data-bin/mine, a.b-c"
    torch.save(state, tmp_path / "c.pt")
    assert checkpoints.load(tmp_path / "c.pt")["cfg"]["model"].save_dir == "f(x)"


# --- S2 and S4: a training survives every kill, and is never trained too long


def n_updates(path: Path) -> int:
    return checkpoints.updates(checkpoints.load(path))


def test_a_finished_training_called_again_is_left_as_it_is(prepared, tmp_path):
    train(prepared, tmp_path, "--max-update", 4, "--disable-validation")
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    for _ in range(2):
        done = train(prepared, tmp_path, "--max-update", 4, "--disable-validation")
        assert "training has finished: 4 of 4 updates are done" in done.stderr + done.stdout
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    train(prepared, tmp_path, "--max-update", 5, "--disable-validation")
    assert n_updates(tmp_path / "checkpoint_last.pt") == 5


@pytest.mark.parametrize("left", ["half", "nothing", "older"])
def test_a_copy_of_a_checkpoint_that_was_broken_off_is_mended(prepared, tmp_path, left):
    saving = ["--save-interval-updates", 2, "--disable-validation"]
    train(prepared, tmp_path, "--max-update", 4, *saving)
    last, whole = tmp_path / "checkpoint_last.pt", (tmp_path / "checkpoint_last.pt").read_bytes()
    assert (tmp_path / "checkpoint_1_4.pt").exists()
    if left == "half":  # as fairseq's copying in place leaves it
        last.write_bytes(whole[: len(whole) // 2])
    else:  # as ours does: the old one, if any, is whole, and half of the new one lies beside it
        last.unlink()
        if left == "older":
            shutil.copy(tmp_path / "checkpoint_1_2.pt", last)
            os.utime(last, (1, 1))
        (tmp_path / f".{last.name}.123.tmp").write_bytes(whole[:1000])
    done = train(prepared, tmp_path, "--max-update", 5, *saving)
    assert "resuming from checkpoint_1_4.pt" in done.stderr + done.stdout
    assert n_updates(last) == 5 and not list(tmp_path.glob(".*.tmp"))


def test_a_copy_takes_its_targets_place_only_when_it_is_whole(tmp_path, monkeypatch):
    (tmp_path / "new").write_bytes(b"new" * 1000)
    (tmp_path / "last").write_bytes(b"old")

    def fill_disk(source, target, *_):
        target.write(source.read(100))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fill_disk)
    with pytest.raises(InputError, match="No space left on device"):
        compat._copy(str(tmp_path / "new"), str(tmp_path / "last"), overwrite=True)
    assert (tmp_path / "last").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 2
    monkeypatch.undo()
    assert compat._copy(str(tmp_path / "new"), str(tmp_path / "last"), overwrite=True)
    assert (tmp_path / "last").read_bytes() == b"new" * 1000


def test_one_trainer_at_a_time_in_a_folder(prepared, tmp_path, monkeypatch):
    with files.locked(tmp_path / ".lock", "a training"):
        monkeypatch.setattr(runs, "PATIENCE", 0.3)
        with pytest.raises(InputError, match=f"a training is running here already .process {os.getpid()}"):
            runs.claim(tmp_path)
    runs.claim(tmp_path)
    runs.claim(tmp_path)  # its own


def test_a_trainer_does_not_outlive_the_command_that_started_it(tmp_path):
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from fairseq_lasformer.processes import start
child = start([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
child.wait()
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    for _ in range(50):
        if not Path(f"/proc/{child}").exists() or "State:\tZ" in Path(f"/proc/{child}/status").read_text():
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child went on")


# --- S3: the kernels' build


def test_a_killed_build_hinders_nobody_and_foreign_libraries_are_not_loaded(tmp_path):
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(tmp_path / "cache")}
    ask = [sys.executable, "-c", "from fairseq_lasformer.ops import cpu; print(cpu.kernels() is not None)"]
    killed = subprocess.Popen(ask, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(600):
        if list(tmp_path.glob("cache/*/build.*/build.ninja")):
            break
        time.sleep(0.1)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not list(tmp_path.glob("cache/*/kernels.*.so"))

    def load() -> tuple[bool, bool]:
        done = subprocess.run(ask, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
        return "True" in done.stdout, "building the CPU kernels" in done.stderr

    assert load() == (True, True)
    assert load() == (True, False)
    (library,) = tmp_path.glob("cache/*/kernels.*.so")
    whole = library.read_bytes()
    library.write_bytes(whole[: len(whole) // 2])  # loading it would be the end of the process
    assert load() == (True, True)
    assert library.read_bytes()[:1000] == whole[:1000] or len(list(library.parent.glob("kernels.*.so"))) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_library_that_others_can_write_is_not_loaded(tmp_path):
    from fairseq_lasformer.ops import cpu

    path = tmp_path / "kernels.x.so"
    path.write_bytes(b"x")
    assert cpu._private(path)
    path.chmod(0o666)
    assert not cpu._private(path)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    assert not cpu._private(path)
    (tmp_path / "link").symlink_to(path)
    assert not cpu._private(tmp_path / "link")


def test_processors_do_not_share_machine_code(monkeypatch):
    from fairseq_lasformer.ops import cpu

    mine = cpu._folder()
    monkeypatch.setattr(cpu, "_processor", lambda: "another one")
    assert cpu._folder() != mine and cpu._folder().parent == mine.parent


# --- S5, S9, S11, S12: preparation


def test_half_a_copy_of_reused_subwords_is_not_taken_for_whole(prepared, tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 4, seed=9))
    plan = Plan("xx", "yy", (), (), (prefix,), tmp_path / "out", reuse=prepared, workers=1)
    codes = (prepared / "bpe.codes").read_bytes()
    plan.out.mkdir()
    (plan.out / "fingerprint").write_text(plan.fingerprint(plan.settings()) + "\n")
    (plan.out / "bpe.codes").write_bytes(codes[: len(codes) // 2].rpartition(b"\n")[0] + b"\n")
    prepare(plan)
    assert (plan.out / "bpe.codes").read_bytes() == codes


def test_a_folder_whose_removal_was_killed_is_accepted_again(tmp_path, monkeypatch):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    prepare(Plan("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, workers=1))
    again = Plan("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=60, workers=1)

    def killed(path, *_, **__):
        (Path(path) / "fingerprint").unlink(missing_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(again, overwrite=True)
    monkeypatch.undo()
    assert prepare(again).splits[0].documents == 5


def test_foreign_files_in_a_prepared_folder_are_never_removed(tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    prepare(Plan("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, workers=1))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="notes.txt.*choose another folder"):
        prepare(Plan("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=60, workers=1), overwrite=True)
    assert (tmp_path / "out" / "notes.txt").exists() and (tmp_path / "out" / "settings.json").exists()


def test_a_refused_preparation_can_be_repeated_with_other_options(tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    with pytest.raises(InputError, match="more than the limit"):
        prepare(Plan("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, limit=3, workers=1))
    assert prepare(Plan("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, workers=1)).splits


@pytest.mark.parametrize("bpe", ["subword-nmt", "sentencepiece"])
def test_words_that_are_symbols_survive_as_text(tmp_path, bpe):
    text = ["a <pad> b </s> <sep> c <unk> <s>", "and <pad> </s> again <sep>", "no symbols p a d s e p u n k / < >"] * 9
    learn_subwords(tmp_path, text, bpe, 60)
    codec = Codec(tmp_path, "none", bpe, "<sep>")
    for sentence in text[:3]:
        tokens = codec.encode(sentence, "en").split()
        assert not set(tokens) & {"<s>", "<pad>", "</s>", "<unk>", "<sep>"}
        assert codec.decode(" ".join(tokens), "en") == sentence


SYMBOLS = st.sampled_from(["<s>", "<pad>", "</s>", "<unk>", "<sep>"])


@settings(deadline=None, max_examples=60)
@given(st.lists(SYMBOLS | st.text("ab<>/sepadunk@▁ ", min_size=1, max_size=6), min_size=1, max_size=8))
def test_no_text_turns_into_a_symbol(tmp_path_factory, parts):
    folder = tmp_path_factory.getbasetemp() / "symbols"
    for bpe in ("subword-nmt", "sentencepiece"):
        if not (folder / bpe).exists():
            (folder / bpe).mkdir(parents=True)
            learn_subwords(folder / bpe, ["<pad> </s> <sep> ab a b / < > @ s e p d u n k " * 3] * 9, bpe, 40)
        tokens = Codec(folder / bpe, "none", bpe, "<sep>").encode(" ".join(parts), "en").split()
        assert not set(tokens) & {"<s>", "<pad>", "</s>", "<unk>", "<sep>"}


def test_a_corpus_full_of_symbols_is_prepared_whole(tmp_path):
    (tmp_path / "raw.xx").write_text("a <pad> b\n</s>\n\n<s> c <sep>\n" * 5)
    (tmp_path / "raw.yy").write_text("A <pad> B\n</s>\n\n<s> C <sep>\n" * 5)
    raw = str(tmp_path / "raw")
    plan = Plan("xx", "yy", (raw,), (), (raw,), tmp_path / "out", "none", size=20, separator="<sep>", workers=1)
    prepare(plan)
    from test_prepare import read_split

    codec = Codec.of(plan.out, plan.settings())
    for line in read_split(plan.out, "test", "xx"):
        assert "<pad>" not in line.split() and "</s>" not in line.split()
        assert all(codec.decode(s, "xx") in ("a <pad> b", "</s>", "<s> c <sep>") for s in line.split("<sep>"))


@pytest.mark.parametrize(
    "separator", ["</s>", "<unk>", "<pad>", "a b", " ", "\t", "\u3000", "\n", ".", ";", "x@@", "▁x", "\x07\x07"]
)
def test_separators_that_would_break_something_are_refused(separator):
    with pytest.raises(InputError, match="--separator"):
        check_separator(separator)


# --- S6 and S15: what is written


def test_a_device_is_written_to_and_a_link_is_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    files.atomic_write(tmp_path / "pipe", "text")
    assert reader.communicate()[0] == b"text" and (tmp_path / "pipe").is_fifo()
    (tmp_path / "target").write_text("old")
    (tmp_path / "target").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    files.atomic_write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o640
    (tmp_path / ".target.1.tmp").symlink_to(tmp_path / "elsewhere")
    files.atomic_write(tmp_path / "target", "newer")
    assert not (tmp_path / "elsewhere").exists()


def test_standard_output_can_be_named_as_a_file(tmp_path):
    (tmp_path / "ref").write_text("a b c d\n")
    done = run("lasformer", "score", tmp_path / "ref", tmp_path / "ref", "--json", "/dev/stdout")
    assert json.loads(done.stdout[done.stdout.index("{") :])["systems"]["ref"]["d_bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "ref", "ref", "--json", "OUT"],
        ["cost", "none.pt", "--json", "OUT"],
        ["report", "run", "-o", "OUT"],
        ["average", "OUT", "none.pt"],
        ["contrast", "none.pt", "set", "--json", "OUT"],
        ["prepare", "OUT", "-s", "xx", "-t", "yy", "--train", "raw"],
    ],
)
@pytest.mark.parametrize("out", ["folder", "file/below"])
def test_outputs_that_cannot_be_written_are_refused_before_the_work(tmp_path, monkeypatch, capsys, arguments, out):
    from fairseq_lasformer.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref").write_text("a b\n")
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    write_corpus(tmp_path, "raw", 3)
    if arguments[0] == "prepare" and out == "folder":
        (tmp_path / "folder" / "mine").touch()
    assert main([out if a == "OUT" else a for a in arguments]) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and out in error and "\n" not in error
    assert not list(tmp_path.rglob("*.tmp"))


# --- S7: names of folders, Hydra's errors


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_every_path_passes_through_hydras_grammar(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from fairseq_lasformer.training import override

    parsed = OverridesParser.create().parse_override(override("task.data", value)).value()
    assert OmegaConf.create({"x": str(parsed)}).x == value


def hydra_config(folder: Path, data: Path, save: Path) -> Path:
    (folder / "run.yaml").write_text(
        f"""
common: {{user_dir: {ROOT / "fairseq_lasformer"}, cpu: true, log_format: json, log_interval: 1, seed: 1}}
task: {{_name: document_translation, data: {json.dumps(str(data))}}}
model: {{_name: lasformer, share_all_embeddings: true, select_share: 2, select_dim: 8,
  encoder_embed_dim: 32, encoder_ffn_embed_dim: 32, encoder_layers: 2, encoder_attention_heads: 2,
  decoder_embed_dim: 32, decoder_ffn_embed_dim: 32, decoder_layers: 2, decoder_attention_heads: 2}}
criterion: {{_name: label_smoothed_cross_entropy_with_selection}}
dataset: {{max_tokens: 200, disable_validation: true}}
optimization: {{max_update: 2, lr: [0.002], clip_norm: 1.0}}
optimizer: {{_name: adam}}
lr_scheduler: {{_name: fixed}}
checkpoint: {{save_dir: {json.dumps(str(save))}, no_epoch_checkpoints: true}}
hydra: {{run: {{dir: {json.dumps(str(folder / "hydra"))}}}}}
"""
    )
    return folder / "run.yaml"


def test_training_works_in_a_folder_of_any_name(prepared, tmp_path):
    from fairseq_lasformer.training import override, train

    odd = tmp_path / "ü , = ' ( { # $x"
    config = hydra_config(tmp_path, tmp_path / "nowhere", tmp_path / "nowhere")
    data = shutil.copytree(prepared, odd / "data")
    places = [override("task.data", data), override("checkpoint.save_dir", odd), override("hydra.run.dir", odd / "h")]
    train(config, places, odd / "log", "odd")
    assert (odd / "checkpoint_last.pt").exists()


@pytest.mark.parametrize(
    "setting, reason",
    [
        ("+model.select_dimm=3", "select_dimm"),
        ("model.select_share=0", "--select-dim and --select-share must be at least 1"),
        ("+model.select_window=abc", "abc"),
        ("dataset.max_tokens=5", "--max-tokens 5: the longest example has"),
        ("task.data=nowhere", "nowhere: no such folder; prepare the data first"),
        ("optimisation.max_update=3", "optimisation"),
    ],
)
def test_what_hydra_is_told_wrongly_ends_in_one_line(prepared, tmp_path, setting, reason):
    from fairseq_lasformer.training import train

    config = hydra_config(tmp_path, prepared, tmp_path / "save")
    with pytest.raises(InputError, match="training it failed; see .*log: .*") as caught:
        train(config, [setting], tmp_path / "log", "it")
    assert reason in str(caught.value) and "HYDRA_FULL_ERROR" not in str(caught.value)
    assert "\n" not in str(caught.value)


# --- S8: the demo's folder


def demo(*arguments: object, check: bool = True) -> subprocess.CompletedProcess:
    tiny = ["--documents", 30, "optimization.max_update=2", "lr_scheduler.total_num_update=2"]
    return run("python", ROOT / "scripts/demo.py", *arguments, *tiny, "lr_scheduler.warmup_updates=1", check=check)


@pytest.mark.slow
def test_the_demo_replaces_nothing_unasked_and_nothing_of_others(tmp_path):
    out = tmp_path / "demo"
    (out / "hydra").mkdir(parents=True)  # as fairseq-hydra-train leaves it
    (out / "notes.txt").write_text("mine")
    demo("--out", out, "--systems", "sentence")
    other = ["--out", out, "--systems", "sentence", "optimization.clip_norm=2.0"]
    done = demo(*other, check=False)
    assert done.returncode == 1 and "--overwrite" in done.stderr and (out / "report.json").exists()
    demo(*other, "--overwrite")
    assert (out / "notes.txt").read_text() == "mine" and (out / "report.json").exists()


# --- S10: data and checkpoint belong together


@pytest.fixture
def broken(prepared, tmp_path) -> Path:
    return shutil.copytree(prepared, tmp_path / "data")


def test_a_checkpoint_and_other_words_of_the_same_number_are_refused(checkpoint, broken, tmp_path):
    for language in ("xx", "yy"):
        path = broken / f"dict.{language}.txt"
        lines = path.read_text().splitlines()
        path.write_text("".join(line + "\n" for line in reversed(lines)))
    done = run("lasformer", "generate", broken, checkpoint, tmp_path / "out", "--", "--cpu", check=False)
    assert done.returncode == 1 and "its dictionaries are not those the checkpoint was trained with" in done.stderr
    save = tmp_path / "save"
    save.mkdir()
    shutil.copy(checkpoint, save / "checkpoint_last.pt")
    done = train(broken, save, "--max-update", 3, model=["--arch", "transformer", *SIZES], check=False)
    assert done.returncode == 1 and "its dictionaries are not those" in done.stderr
    for language in ("xx", "yy"):
        with open(broken / f"dict.{language}.txt", "a") as f:
            f.write("more 1\n")
    state = torch.load(checkpoint, weights_only=True)
    torch.save({k: v for k, v in state.items() if k != "task_state"}, tmp_path / "old.pt")
    done = run("lasformer", "generate", broken, tmp_path / "old.pt", tmp_path / "out", "--", "--cpu", check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "does not fit the data" in last and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "name, damage",
    [
        ("dict.xx.txt", None),
        ("dict.yy.txt", b"word without a number\n"),
        ("dict.yy.txt", b"\xff\xfe 1\n"),
        ("bpe.codes", None),
        ("bpe.codes", b"#version: 0.2\none\n"),
        ("settings.json", b"{"),
        ("settings.json", b'{"source_lang": "xx"}'),
        ("documents.test.json", b"[]"),
        ("documents.test.json", b'{"documents": 1, "examples": []}'),
        ("test.xx-yy.xx.bin", 10),
        ("test.xx-yy.xx.bin", None),
        ("test.xx-yy.yy.idx", 30),
        ("test.xx-yy.yy.idx", b""),
    ],
)
def test_a_damaged_prepared_folder_is_refused_in_one_line(trained_small, broken, tmp_path, capsys, name, damage):
    from fairseq_lasformer.cli import main

    path = broken / name
    if damage is None:
        path.unlink()
    elif isinstance(damage, int):
        path.write_bytes(path.read_bytes()[:damage])
    else:
        path.write_bytes(damage)
    assert main(["generate", str(broken), str(trained_small), str(tmp_path / "out"), "--", "--cpu"]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert name in errors[0] or str(broken) in errors[0]
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def trained_small(prepared, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    train(prepared, folder, "--max-update", 1, "--disable-validation")
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize("kappa", [0, -5, 4_600_000_000_000, float("nan")])
def test_an_impossible_kappa_is_refused(trained_small, prepared, tmp_path, kappa):
    state = torch.load(trained_small, weights_only=True)
    name = next(n for n in state["model"] if n.endswith("selector.kappa"))
    state["model"][name] = torch.tensor(kappa)
    torch.save(state, tmp_path / "c.pt")
    with pytest.raises(InputError, match=r"kappa is .*expected a share in \(0, 1\]|kappa is not finite"):
        hub.from_pretrained(tmp_path, "c.pt", prepared)


def test_a_manifest_that_lists_too_few_examples_is_refused(broken):
    from fairseq_lasformer.dataset import SplitInfo

    path = broken / "documents.test.json"
    fields = json.loads(path.read_text())
    fields["examples"].pop()
    path.write_text(json.dumps(fields))
    with pytest.raises(InputError, match="it lists .* of .* examples"):
        SplitInfo.load(broken, "test")
