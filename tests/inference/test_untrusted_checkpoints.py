"""What no checkpoint, kill, full disk or hostile file may do."""

from __future__ import annotations

import argparse
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.models.transformer import TransformerModel
from helpers import ROOT, SIZES, run, train

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.inference import checkpoints
from fairseq_lasformer.plugin import hub


def armed(checkpoint: Path, folder: Path, where: str) -> tuple[Path, Path]:
    """The checkpoint with a setting that creates a file when fairseq evaluates it, and that file."""
    ran = folder / "payload_ran"
    payload = f"[__import__('pathlib').Path({str(ran)!r}).touch(),None][1]"
    state = checkpoints.load(checkpoint)
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


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["fairseq-generate", "lasformer generate", "resume"])
def test_the_environment_cannot_switch_the_restriction_off(checkpoint, prepared, tmp_path, entry):
    state = checkpoints.load(checkpoint) | {"more": Payload(tmp_path / "payload_ran")}
    torch.save(state, tmp_path / "checkpoint_best.pt")
    switch = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    done = enter(entry, tmp_path / "checkpoint_best.pt", prepared, tmp_path, **switch)
    assert not (tmp_path / "payload_ran").exists() and done.returncode != 0
    assert "refused, it holds code, not only weights" in done.stderr and "weights_only" not in done.stderr


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "empty"),
        (b"just a text file, no checkpoint\n", "not a torch checkpoint"),
        (b"\x1f\x8b\x08 a gzip file", "not a torch checkpoint"),
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
    state = checkpoints.load(checkpoint)
    state["model"]["encoder.layers.0.fc1.weight"][0, 0] = float("nan")
    torch.save(state, tmp_path / "c.pt")
    with pytest.raises(InputError, match="encoder.layers.0.fc1.weight is not finite"):
        checkpoints.load(tmp_path / "c.pt")


def test_settings_that_only_look_odd_are_taken(checkpoint, tmp_path):
    state = checkpoints.load(checkpoint)
    model = state["cfg"]["model"]
    model.data, model.save_dir, model.adam_betas = "models (1)/data", "f(x)", "(0.9, 0.98)"
    model.encoder_layers_to_keep = "data-bin/mine, a.b-c"
    torch.save(state, tmp_path / "c.pt")
    assert checkpoints.load(tmp_path / "c.pt")["cfg"]["model"].save_dir == "f(x)"
