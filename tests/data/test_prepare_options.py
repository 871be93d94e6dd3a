"""Options of the preparation: reused folders, sets without references, cleaning, the summary."""

from __future__ import annotations

import re

import pytest
from helpers import run, train, write_corpus

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.prepare import prepare, summary
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.text.documents import read_corpus
from fairseq_lasformer.text.hypotheses import read_hypotheses


def test_a_reused_folder_decides_how_text_is_encoded(tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    options = {"tokenizer": "none", "bpe": "sentencepiece", "limit": 77, "separator": "<sep>"}
    prepare(PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "first", size=80, workers=1, **options))
    second = PrepareConfig("yy", "xx", (), (), (prefix,), tmp_path / "second", reuse=tmp_path / "first", workers=1)
    prepare(second)
    settings = DataConfig.load(tmp_path / "second")
    assert {name: getattr(settings, name) for name in options} == options
    for name, value in (("tokenizer", "moses"), ("bpe", "subword-nmt"), ("separator", "<s2>"), ("size", 9)):
        config = PrepareConfig(
            "xx", "yy", (), (), (prefix,), tmp_path / name, reuse=tmp_path / "first", **{name: value}
        )
        with pytest.raises(InputError, match=f"--{name} {value}: "):
            prepare(config)
        assert not (tmp_path / name).exists()
    with pytest.raises(InputError, match="was prepared for xx-yy, not for xx-zz"):
        prepare(PrepareConfig("xx", "zz", (), (), (prefix,), tmp_path / "other", reuse=tmp_path / "first"))


@pytest.mark.command
def test_a_test_set_needs_no_reference(prepared, tmp_path):
    write_corpus(tmp_path, "letter", 3, seed=5)
    (tmp_path / "letter.yy").unlink()
    config = PrepareConfig(
        "xx", "yy", (), (), (str(tmp_path / "letter"),), tmp_path / "data", reuse=prepared, workers=1
    )
    done = prepare(config)
    assert not done.splits[0].reference and "; no reference" in summary(config, done)
    train(prepared, tmp_path, "--max-update", 1, "--disable-validation")
    run(
        "lasformer",
        "generate",
        config.out,
        tmp_path / "checkpoint_last.pt",
        tmp_path / "out",
        "--shards",
        1,
        "--",
        "--cpu",
    )
    assert len(read_hypotheses(tmp_path / "out", allow_empty=True)) == 3
    with pytest.raises(InputError, match="train.yy: cannot be read"):
        write_corpus(tmp_path, "train", 3)
        (tmp_path / "train.yy").unlink()
        prepare(PrepareConfig("xx", "yy", (str(tmp_path / "train"),), (), (), tmp_path / "no", workers=1))


def test_text_of_windows_and_control_characters_can_be_cleaned(tmp_path):
    (tmp_path / "raw.xx").write_bytes(b"\xef\xbb\xbfa\tb\r\nc\r\n\r\nd\x07ef\r\n" * 3)
    (tmp_path / "raw.yy").write_bytes(b"A B\nC\n\nD E\n" * 3)
    with pytest.raises(InputError, match=r"raw.xx:1: control character TAB.*, and in \d+ more lines; .*--clean"):
        read_corpus(tmp_path / "raw.xx", tmp_path / "raw.yy")
    found = read_corpus(tmp_path / "raw.xx", tmp_path / "raw.yy", clean=True)
    assert found.documents[0].source == ["a b", "c"] and found.documents[1].source[0] == "d ef"
    # Windows' byte order mark is also before every file that was joined
    assert found.cleaned == 6
    config = PrepareConfig(
        "xx", "yy", (str(tmp_path / "raw"),), (), (), tmp_path / "out", "none", size=9, clean=True, workers=1
    )
    assert "control characters replaced with spaces in 6 lines" in summary(config, prepare(config))


def test_the_summary_tells_what_to_mind_and_what_comes_next(tmp_path):
    train_set, dev = (str(write_corpus(tmp_path, n, 9, seed=s)) for s, n in enumerate(("train", "dev")))
    with open(tmp_path / "dev.xx", "a") as x, open(tmp_path / "dev.yy", "a") as y:
        for file in (x, y):
            file.write("\nöä üß\n" * 20)
    config = PrepareConfig("xx", "yy", (train_set,), (dev,), (), tmp_path / "out", "none", workers=1)
    text = summary(config, prepare(config))
    assert re.search(r"valid: 29 documents.*<unk>: \d+\.\d% of xx, \d+\.\d% of yy", text)
    assert "note: 32,000 merges were requested" in text and "try --size 500" in text
    assert "note: more than 1% of the tokens are unknown" in text
    assert text.splitlines()[-1] == f"next: lasformer train {tmp_path / 'out'} CHECKPOINTS"
    assert re.search(r"dictionary: \d+ subwords, \d+ merges learned", text)
