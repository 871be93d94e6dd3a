"""Binarised data against that of fairseq-preprocess, byte for byte."""

from __future__ import annotations

import random

import pytest
from fairseq_cli import preprocess
from tiers import thinned

from fairseq_lasformer.data.binarise import binarise


def write_text(folder, words, n_lines):
    draw = random.Random(3)
    folder.mkdir()
    for name in ("train", "valid", "test", "test1"):
        for language in ("xx", "yy"):
            lines = [" ".join(draw.choices(words, k=draw.randrange(9))) for _ in range(n_lines)]
            (folder / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def preprocessed(text, out, *options):
    arguments = ["-s", "xx", "-t", "yy", "--destdir", str(out), "--joined-dictionary", *options]
    arguments += ["--validpref", str(text / "valid"), "--testpref", f"{text / 'test'},{text / 'test1'}"]
    preprocess.main(preprocess.options.get_preprocessing_parser().parse_args(arguments))
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name != "preprocess.log"}


# words that a careless reader would cut, join or take for symbols; 70,000 of them need wider numbers
ODD = ["ä", "a@@", "\u2581x", "\u2028", "&lt;s&gt;", "z\u00a0z", "<sep>", "\U0001f600", "1", "A", "a"]


@pytest.mark.parametrize("words", thinned([ODD, [*ODD, *map(str, range(70_000))]]), ids=["few", "many"])
def test_the_files_are_those_of_fairseq_preprocess(tmp_path, words):
    text, out = tmp_path / "text", tmp_path / "out"
    write_text(text, words, 60 if len(words) < 100 else 9_000)
    expected = preprocessed(text, tmp_path / "expected", "--trainpref", str(text / "train"))
    out.mkdir()
    names = ("train", "valid", "test", "test1")
    binarise(text, names, ("xx", "yy"), out, [[]])
    assert {path.name: path.read_bytes() for path in out.iterdir()} == expected
    assert len(expected) == 2 * (1 + 2 * len(names))
    assert len(words) < 100 or sum(map(len, expected.values())) > 4 * 9_000


def test_a_known_dictionary_stays_as_it_is(tmp_path):
    text, out = tmp_path / "text", tmp_path / "out"
    write_text(text, ODD, 40)
    known = tmp_path / "dict.txt"
    known.write_text("a@@ 7\nA 3\nmadeupword0000 0\n", encoding="utf-8")
    expected = preprocessed(text, tmp_path / "expected", "--srcdict", str(known))
    out.mkdir()
    binarise(text, ("valid", "test", "test1"), ("xx", "yy"), out, [known, known])
    assert {path.name: path.read_bytes() for path in out.iterdir()} == expected
    assert (out / "dict.yy.txt").read_bytes() == known.read_bytes()
