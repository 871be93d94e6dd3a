"""Preparations that were killed or refused, and folders that contain other files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import write_corpus

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.resume import Progress
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig, fingerprint


def test_half_a_copy_of_reused_subwords_is_not_taken_for_whole(prepared, tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 4, seed=9))
    config = PrepareConfig("xx", "yy", (), (), (prefix,), tmp_path / "out", reuse=prepared, workers=1)
    codes = (prepared / "bpe.codes").read_bytes()
    config.out.mkdir()
    Progress(config.out, fingerprint(config.inputs(config.settings()))).begin()
    (config.out / "bpe.codes").write_bytes(codes[: len(codes) // 2].rpartition(b"\n")[0] + b"\n")
    prepare(config)
    assert (config.out / "bpe.codes").read_bytes() == codes


def test_a_folder_whose_removal_was_killed_is_accepted_again(tmp_path, monkeypatch):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    prepare(PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, workers=1))
    again = PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=60, workers=1)

    def killed(path, *_, **__):
        (Path(path) / "progress.jsonl").unlink(missing_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(again, overwrite=True)
    monkeypatch.undo()
    assert prepare(again).splits[0].documents == 5


def test_foreign_files_in_a_prepared_folder_are_never_removed(tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    prepare(PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, workers=1))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="notes.txt.*choose another folder"):
        prepare(
            PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=60, workers=1), overwrite=True
        )
    assert (tmp_path / "out" / "notes.txt").exists() and (tmp_path / "out" / "settings.json").exists()


def test_a_refused_preparation_can_be_repeated_with_other_options(tmp_path):
    prefix = str(write_corpus(tmp_path, "raw", 5))
    with pytest.raises(InputError, match="more than the limit"):
        prepare(PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, limit=3, workers=1))
    assert prepare(PrepareConfig("xx", "yy", (prefix,), (), (), tmp_path / "out", "none", size=50, workers=1)).splits
