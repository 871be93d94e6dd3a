"""The unit of systemd and the image: what they run works, and with few rights."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from helpers import ROOT

from fairseq_lasformer.cli.main import main

DOCKERFILE = (ROOT / "Dockerfile").read_text()


def commands() -> dict[str, list[str]]:
    """Return the words of the image's command and of its check of health."""
    found = {
        "check" if before else "run": words
        for before, words in re.findall(r"^(HEALTH.*)?CMD (\[.*\])$", DOCKERFILE, re.M)
    }
    return {name: json.loads(words) for name, words in found.items()}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
def test_the_unit_has_few_rights():
    unit = str(ROOT / "deploy/lasformer.service")
    done = subprocess.run(["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True)
    exposure = re.search(r"Overall exposure level .*: ([\d.]+)", done.stdout)
    if exposure is None:
        pytest.skip("this systemd-analyze cannot rate a file")
    assert float(exposure[1]) <= 4.0


def test_the_units_command_is_one_of_ours(tmp_path, capsys):
    words = re.search(r"^ExecStart=(.*)$", (ROOT / "deploy/lasformer.service").read_text(), re.M)[1].split()
    assert words[:2] == ["/opt/lasformer/bin/lasformer", "serve"]
    (tmp_path / "keys").write_text("secret\n")
    words = [word.replace("%d", str(tmp_path)).replace("/var/cache", str(tmp_path)) for word in words]
    assert main([*words[1:2], "/nowhere", *words[3:]]) == 1
    assert "/nowhere: no such" in capsys.readouterr().err  # the options are accepted


def test_the_image_runs_as_nobody_special():
    lines = DOCKERFILE.splitlines()
    assert [line for line in lines if line.startswith("USER ")] == ["USER lasformer"]
    assert lines.index("USER lasformer") > max(i for i, line in enumerate(lines) if line.startswith("RUN "))
    assert set(commands()) == {"run", "check"}


@pytest.mark.command
def test_the_images_command_serves_and_its_check_tells(trained_folder, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"/model": str(trained_folder), "5000": port, "lasformer": str(Path(sys.executable).with_name("lasformer"))}
    run, check = commands()["run"], commands()["check"]
    run = [place["lasformer"], *(word if word == "lasformer" else place.get(word, word) for word in run[1:])]
    check = [sys.executable, *(word.replace(":5000", f":{port}") for word in check[1:])]
    assert subprocess.run(check, capture_output=True).returncode != 0
    with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as server:
        try:
            end = time.monotonic() + 100
            while subprocess.run(check, capture_output=True).returncode and time.monotonic() < end:
                time.sleep(0.5)
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/translate",
                json.dumps({"q": "w1 w2"}).encode(),
                {"content-type": "application/json", "host": f"lasformer:{port}"},  # as from another container
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert "translatedText" in json.load(answer)
        finally:
            server.terminate()
            assert server.wait(20) is not None
