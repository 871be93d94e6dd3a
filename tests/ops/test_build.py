"""The kernels' build: killed, foreign, of another processor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import ROOT


@pytest.mark.slow
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
