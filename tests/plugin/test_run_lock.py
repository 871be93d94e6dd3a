"""A training survives every kill, and is never trained too long."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ROOT, train

from fairseq_lasformer.base import files
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints import loading
from fairseq_lasformer.plugin.patches import compat, run_lock


def n_updates(path: Path) -> int:
    return loading.updates(loading.load(path))


@pytest.mark.command
def test_a_finished_training_called_again_is_left_as_it_is(prepared, tmp_path):
    train(prepared, tmp_path, "--max-update", 4, "--disable-validation")
    before = (tmp_path / "checkpoint_last.pt").read_bytes()
    for _ in range(2):
        done = train(prepared, tmp_path, "--max-update", 4, "--disable-validation")
        assert "training has finished: 4 of 4 updates are done" in done.stderr + done.stdout
    assert (tmp_path / "checkpoint_last.pt").read_bytes() == before
    train(prepared, tmp_path, "--max-update", 5, "--disable-validation")
    assert n_updates(tmp_path / "checkpoint_last.pt") == 5


@pytest.mark.command
@pytest.mark.parametrize("left", ["half", "nothing", "older"])
def test_a_copy_of_a_checkpoint_that_was_broken_off_is_mended(prepared, tmp_path, left):
    saving = ["--save-interval-updates", 2, "--disable-validation"]
    train(prepared, tmp_path, "--max-update", 4, *saving)
    last, whole = tmp_path / "checkpoint_last.pt", (tmp_path / "checkpoint_last.pt").read_bytes()
    assert (tmp_path / "checkpoint_1_4.pt").exists()
    if left == "half":  # as left by fairseq's copying in place
        last.write_bytes(whole[: len(whole) // 2])
    else:  # as ours does: the old one, if any, is whole, and half of the new one is next to it
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
        monkeypatch.setattr(run_lock, "PATIENCE", 0.3)
        with pytest.raises(InputError, match=f"a training is already running here .process {os.getpid()}"):
            run_lock.claim(tmp_path)
    run_lock.claim(tmp_path)
    run_lock.claim(tmp_path)  # its own


def test_a_trainer_does_not_outlive_the_command_that_started_it(tmp_path):
    script = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from fairseq_lasformer.base.machine import start
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
