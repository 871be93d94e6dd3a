"""lasformer upcycle: a dense model becomes one that selects; resumption and summary."""

from __future__ import annotations

import pytest
import torch
from helpers import train

from fairseq_lasformer.checkpoints.loading import load, updates
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.ops import KAPPA_ONE

pytestmark = pytest.mark.command
OPTIONS = "--updates 5 --budget 0.05 --select-dim 8 --share-loss 1 --max-tokens 300".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def dense(prepared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    train(prepared, folder, "--select-modules", "none", "--max-update", 5)
    return folder / "checkpoint_last.pt"


def kappas(state):
    return [int(value) / KAPPA_ONE for name, value in state["model"].items() if name.endswith("kappa")]


def test_selectors_alone(dense, prepared, tmp_path, capfd):
    words = ["upcycle", str(dense), str(prepared), str(tmp_path / "out"), *OPTIONS]
    assert main(words) == 0
    told = capfd.readouterr().out
    assert "bits per token before" in told and "next: lasformer translate" in told
    made, before = load(tmp_path / "out/checkpoint_last.pt"), load(dense)["model"]
    assert all(torch.equal(made["model"][name], value) for name, value in before.items())
    assert min(kappas(made)) < 1 and set(kappas(load(tmp_path / "out/selectors/checkpoint_last.pt"))) == {1.0}
    assert made["cfg"]["model"]["select_dim"] == 8
    assert not (tmp_path / "out/checkpoint_best.pt").exists()
    first = (tmp_path / "out/checkpoint_last.pt").stat().st_mtime_ns
    assert main(words) == 0
    told, error = capfd.readouterr()
    stages = "start", "selectors", "kappa"
    assert all(f"{stage}: already done" in error for stage in stages) and "bits per token before" in told
    assert (tmp_path / "out/checkpoint_last.pt").stat().st_mtime_ns == first
    assert (
        main(["translate", str(tmp_path / "out"), "--beam", "1", "-o", str(tmp_path / "t.txt"), str(source(tmp_path))])
        == 0
    )
    assert (tmp_path / "t.txt").read_text().count("\n") == 2


def source(folder):
    (folder / "in.txt").write_text("w1 w2\nw3\n")
    return folder / "in.txt"


def test_documents_first(dense, prepared, tmp_path, capfd):
    words = ["upcycle", str(dense), str(prepared), str(tmp_path / "out"), *OPTIONS, "--documents", "6"]
    assert main(words) == 0
    longer, made = (load(tmp_path / name / "checkpoint_last.pt") for name in ("out/documents", "out"))
    assert not kappas(longer) and min(kappas(made)) < 1
    name = "encoder.layers.0.fc1.weight"
    assert not torch.equal(longer["model"][name], load(dense)["model"][name])
    assert torch.equal(longer["model"][name], made["model"][name])
    assert main(words) == 0
    assert "documents: already done" in capfd.readouterr().err
    words[-1] = "8"  # everything that depends on it is made again
    assert main(words) == 0
    again, then = (load(tmp_path / name / "checkpoint_last.pt") for name in ("out/documents", "out"))
    assert updates(again) == 8 and not torch.equal(again["model"][name], longer["model"][name])
    assert torch.equal(again["model"][name], then["model"][name])


@pytest.mark.parametrize(
    "options, message",
    [
        (["--updates", "0"], "--updates 0"),
        (["--budget", "0"], "--budget 0"),
        (["--calibration", "0"], "--calibration 0"),
        (["--documents", "-1"], "--documents -1"),
        (["--select-modules", "none"], "nothing would select"),
        (["--select-modules", "mouth"], "--select-modules mouth"),
    ],
)
def test_bad_options_are_refused_in_one_line(dense, prepared, tmp_path, capfd, options, message):
    assert main(["upcycle", str(dense), str(prepared), str(tmp_path / "out"), *options]) == 1
    error = capfd.readouterr().err.strip().splitlines()
    assert message in error[-1] and error[-1].startswith("error: ")
    assert not (tmp_path / "out/start.pt").exists()
