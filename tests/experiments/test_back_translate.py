"""lasformer back-translate: pairs whose source was written by a model of the other direction."""

from __future__ import annotations

import pytest
from helpers import train, write_corpus

from fairseq_lasformer.cli.main import main
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig

CONFIG = """
source: xx
target: yy
train: [{folder}/train]
{mono}
out: {folder}/out
prepare: {{limit: 60, workers: 1, tokenizer: none, size: 60}}
training: {{arch: lasformer_tiny, max_update: 3, small_corpus: false, max_tokens: 200, update_freq: 1}}
"""


@pytest.fixture(scope="module")
def other_direction(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reverse")
    prefix = str(write_corpus(folder, "train", 12, seed=1))
    prepare(PrepareConfig("yy", "xx", (prefix,), (), (), folder / "data", "none", size=60, workers=1))
    lines = "--own-lines", "--source-context-only"  # whose lines are repaired
    train(folder / "data", folder / "model", "--max-update", 6, "--disable-validation", *lines)
    return folder


def configuration(folder, mono="mono: {folder}/more"):
    write_corpus(folder, "train", 4, seed=2)
    write_corpus(folder, "more", 5, seed=3).with_name("more.xx").unlink()
    path = folder / "run.yaml"
    path.write_text(CONFIG.format(folder=folder, mono=mono.format(folder=folder)))
    return path


@pytest.mark.command
def test_documents_become_pairs_and_train_a_model(other_direction, tmp_path, capfd):
    words = ["back-translate", str(other_direction / "model"), str(other_direction / "data")]
    words += [str(configuration(tmp_path)), "--beam", "1", "--jobs", "2"]
    assert main(words) == 0
    told, _ = capfd.readouterr()
    assert "next: lasformer translate" in told
    source, target = ((tmp_path / f"out/back/mono0.{la}").read_text().split("\n") for la in ("xx", "yy"))
    assert [not line for line in source] == [not line for line in target]
    original = (tmp_path / "more.yy").read_text().split("\n")
    assert set(target) <= set(original)  # people's lines, some of them left out
    kept, info = sum(map(bool, target)), SplitInfo.load(tmp_path / "out/data", "train")
    own = sum(map(bool, (tmp_path / "train.yy").read_text().split("\n")))
    assert info is not None and info.sentences == own + kept
    stamp = (tmp_path / "out/back/mono0.xx").stat().st_mtime_ns
    assert main(words) == 0
    assert "already done" in capfd.readouterr().err
    assert (tmp_path / "out/back/mono0.xx").stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    "mono, turned, message", [("", False, "mono is missing"), (None, True, "expected one from yy")]
)
def test_what_cannot_be_is_refused(other_direction, prepared, tmp_path, capfd, mono, turned, message):
    config = configuration(tmp_path) if mono is None else configuration(tmp_path, mono)
    data = prepared if turned else other_direction / "data"
    assert main(["back-translate", str(other_direction / "model"), str(data), str(config)]) == 1
    error = capfd.readouterr().err.strip().splitlines()
    assert message in error[-1] and not (tmp_path / "out").exists()
