"""Data and checkpoint belong together; damage in either is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers import SIZES, run, train

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints import loading
from fairseq_lasformer.documents import hub


@pytest.mark.command
def test_a_checkpoint_and_other_words_of_the_same_number_are_refused(checkpoint, broken, tmp_path):
    for language in ("xx", "yy"):
        path = broken / f"dict.{language}.txt"
        lines = path.read_text().splitlines()
        path.write_text("".join(line + "\n" for line in reversed(lines)))
    done = run("lasformer", "generate", broken, checkpoint, tmp_path / "out", "--", "--cpu", check=False)
    assert done.returncode == 1 and "its dictionaries differ from those of the checkpoint's training" in done.stderr
    save = tmp_path / "save"
    save.mkdir()
    shutil.copy(checkpoint, save / "checkpoint_last.pt")
    done = train(broken, save, "--max-update", 3, model=["--arch", "transformer", *SIZES], check=False)
    assert done.returncode == 1 and "its dictionaries differ" in done.stderr
    for language in ("xx", "yy"):
        with open(broken / f"dict.{language}.txt", "a") as f:
            f.write("more 1\n")
    state = loading.load(checkpoint)
    torch.save({k: v for k, v in state.items() if k != "task_state"}, tmp_path / "old.pt")
    done = run("lasformer", "generate", broken, tmp_path / "old.pt", tmp_path / "out", "--", "--cpu", check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "does not match the given data" in last and "Traceback" not in done.stderr


@pytest.mark.command
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
        ("settings.json", {"separator": [5]}),
        ("settings.json", {"source_tag": 5}),
        ("documents.test.json", b"[]"),
        ("documents.test.json", b'{"documents": 1, "examples": []}'),
        ("test.xx-yy.xx.bin", 10),
        ("test.xx-yy.xx.bin", None),
        ("test.xx-yy.yy.idx", 30),
        ("test.xx-yy.yy.idx", b""),
    ],
)
def test_a_damaged_prepared_folder_is_refused_in_one_line(trained_small, broken, tmp_path, capsys, name, damage):
    from fairseq_lasformer.cli.main import main

    path = broken / name
    if damage is None:
        path.unlink()
    elif isinstance(damage, dict):
        path.write_text(json.dumps(json.loads(path.read_text()) | damage))
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
    state = loading.load(trained_small)
    name = next(n for n in state["model"] if n.endswith("selector.kappa"))
    state["model"][name] = torch.tensor(kappa)
    torch.save(state, tmp_path / "c.pt")
    with pytest.raises(InputError, match=r"kappa is .*expected a share in \(0, 1\]|kappa is not finite"):
        hub.from_pretrained(tmp_path, "c.pt", prepared)


def test_a_manifest_that_lists_too_few_examples_is_refused(broken):
    from fairseq_lasformer.data.manifest import SplitInfo

    path = broken / "documents.test.json"
    fields = json.loads(path.read_text())
    fields["examples"].pop()
    path.write_text(json.dumps(fields))
    with pytest.raises(InputError, match="it lists .* of .* examples"):
        SplitInfo.load(broken, "test")
