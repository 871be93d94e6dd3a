"""lasformer distil: a student of a teacher's translations, line by line; resumption and refusals."""

from __future__ import annotations

import re

import pytest
from helpers import write_corpus

from fairseq_lasformer.base.resume import Ledger
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.text.documents import split_documents

STUDENT = """
source: xx
target: yy
train: [{train}]
test: {test}
out: {out}
prepare: {{limit: 60, workers: 1}}
training: {{arch: lasformer_tiny, max_update: 3, small_corpus: false, max_tokens: 200, update_freq: 1}}
translation: {{beam: 1, shards: 1}}
"""


def configuration(folder, **changes):
    text = folder / "raw"
    train = write_corpus(text, "train", 7, seed=3)
    test = write_corpus(text, "test", 2, seed=4)
    train.with_name("train.yy").unlink()  # not needed
    path = folder / "student.yaml"
    path.write_text(STUDENT.format(train=train, test=test, out=folder / "out"))
    return path, train


@pytest.mark.command
def test_a_student_learns_what_the_teacher_wrote(trained_folder, prepared, tmp_path, capfd):
    config, train = configuration(tmp_path)
    words = ["distil", str(trained_folder), str(prepared), str(config), "--beam", "1", "--word-level"]
    assert main(words) == 0
    told, error = capfd.readouterr()
    assert "d-BLEU" in told and "report.html" in told
    read = [split_documents((tmp_path / f"out/teacher/train0.{la}").read_text().split("\n")) for la in ("xx", "yy")]
    whole = [line for line in train.with_name("train.xx").read_text().split("\n") if line]
    made = [line for document in read[0] for line in document]
    assert [*map(len, read[0])] == [*map(len, read[1])]  # no line lost, none moved to another document
    left_out = [line for line in whole if line not in made]
    said = re.search(r"(\d+) lines that went wrong are left out", told)
    assert len(made) + len(left_out) == len(whole) and (int(said[1]) if said else 0) == len(left_out)
    info = SplitInfo.load(tmp_path / "out/data", "train")
    assert info is not None and info.sentences == len(made) > 0 and info.documents == len(read[0])
    old, new = (DataConfig.load(folder) for folder in (prepared, tmp_path / "out/data"))
    assert (old.separator, old.bpe) == (new.separator, new.bpe)
    for language in ("xx", "yy"):
        name = f"dict.{language}.txt"
        assert (tmp_path / "out/data" / name).read_bytes() == (prepared / name).read_bytes()
    command = Ledger(tmp_path / "out/model/progress.jsonl").values["train"][1]
    assert "--distil-from" in command
    made = (tmp_path / "out/teacher/train0.yy").stat().st_mtime_ns
    assert main(words) == 0
    assert "already done" in capfd.readouterr().err
    assert (tmp_path / "out/teacher/train0.yy").stat().st_mtime_ns == made


def test_what_cannot_be_is_refused_in_one_line(trained_folder, prepared, tmp_path, capfd):
    config, train = configuration(tmp_path)
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(config.read_text().replace("limit: 60", "limit: 60, bpe: sentencepiece"))
    call = ["distil", str(trained_folder), str(prepared)]
    for words, message in (
        ([*call, str(wrong)], "prepare.bpe: a student uses its teacher's subwords"),
        (["distil", str(tmp_path), str(prepared), str(config)], "contains none of"),
        ([*call, str(tmp_path / "no.yaml")], "no.yaml: no such file"),
    ):
        assert main(words) == 1
        assert message in capfd.readouterr().err.strip().splitlines()[-1]
    train.with_name("train.xx").unlink()
    assert main([*call, str(config)]) == 1
    assert "train.xx: cannot be read" in capfd.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "out/data").exists()
