"""Sentences and documents in one preparation, and files that are a single document."""

from __future__ import annotations

from helpers import read_split, write_corpus

from fairseq_lasformer.cli.main import main
from fairseq_lasformer.data.prepare import UNDIVIDED

LANGUAGES = ["-s", "xx", "-t", "yy", "--tokenizer", "none", "--size", "50", "--workers", "1"]


def _sentences(folder, n):
    """Write n unrelated sentences per language, without a blank line."""
    for language in ("xx", "yy"):
        (folder / f"single.{language}").write_text("".join(f"{language} w{i % 7} z{i % 5}\n" for i in range(n)))
    return str(folder / "single")


def test_lines_of_train_sentences_are_documents_of_their_own(tmp_path, capfd):
    documents, single = str(write_corpus(tmp_path, "raw", 5)), _sentences(tmp_path, UNDIVIDED)
    both = ["--train", documents, "--train-sentences", single]
    assert main(["prepare", str(tmp_path / "both"), *LANGUAGES, *both]) == 0
    told = capfd.readouterr().out
    assert main(["prepare", str(tmp_path / "alone"), *LANGUAGES, "--train", documents]) == 0
    alone = capfd.readouterr().out
    n, m = (int(text.split("train: ")[1].split(" document")[0]) for text in (told, alone))
    assert n == m + UNDIVIDED and "blank line" not in told + alone
    examples = read_split(tmp_path / "both", "train", "xx")
    mine = [line for line in examples if "xx" in line.replace("@@ ", "")]
    assert len(mine) == UNDIVIDED and not any("<sep>" in line for line in mine)
    assert any("<sep>" in line for line in examples)  # documents have chunks of several sentences


def test_a_file_without_a_blank_line_is_reported(tmp_path, capfd):
    single = _sentences(tmp_path, UNDIVIDED)
    assert main(["prepare", str(tmp_path / "data"), *LANGUAGES, "--train", single]) == 0
    told = capfd.readouterr().out
    assert f"{single}.xx has no blank line, so it is one document" in told and "train: 1 document, " in told
    assert main(["prepare", str(tmp_path / "data"), *LANGUAGES, "--train", single]) == 0
    assert capfd.readouterr().out == told  # a repetition says the same
    few = _sentences(tmp_path, UNDIVIDED - 1)
    assert main(["prepare", str(tmp_path / "few"), *LANGUAGES, "--train", few]) == 0
    assert "blank line" not in capfd.readouterr().out


def test_sentences_alone(tmp_path, capfd):
    words = ["--train-sentences", _sentences(tmp_path, 30)]
    assert main(["prepare", str(tmp_path / "data"), *LANGUAGES, *words]) == 0
    assert "train: 30 documents, 30 sentences, 30 examples" in capfd.readouterr().out
