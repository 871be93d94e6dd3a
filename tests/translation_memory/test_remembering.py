"""Translations with a memory: exact matches, terms, and the pairs that are like each sentence."""

from __future__ import annotations

import json

import pytest

from fairseq_lasformer.apps.memory.building import build
from fairseq_lasformer.apps.server.models import ServedModel
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.jobs.generate import generate
from fairseq_lasformer.jobs.shards import required_terms
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.glossary import Glossary
from fairseq_lasformer.translation_memory.remembering import Memory

TEXT = ["w1 w2", "w3 w4", "w5"]
PAIRS = [("w1 w2 w8", "W9 W9 W7"), ("w7 w9", "W1"), ("w6", "W6 W6")]


@pytest.fixture(scope="module")
def model(by_lines_folder):
    return LasformerModel.from_pretrained(by_lines_folder)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    build(tmp_path / "m.tm", [tmp_path / "pairs.tsv"], ("xx", "yy"))
    return tmp_path / "m.tm"


def memory(path):
    return Memory(path, ("xx", "yy"))


def lines_of(model, text, **options):
    (made,) = model.translate_documents(["\n".join(text)], beam=3, progress=False, lines=True, **options)
    return made


def test_matches_are_those_of_each_sentence(model, path):
    assert [[(m.source, m.target) for m in its] for its in memory(path).matches(["w1 w2", "w4"])] == [[PAIRS[0]], []]
    source = model.source(Request.of("\n".join(TEXT), memory=memory(path)), model.translator(3))
    assert [len(its) for its in source.matches] == [1, 0, 0]
    free = lines_of(model, TEXT)
    assert [line.score for line in lines_of(model, TEXT, memory=path)] == [line.score for line in free]  # none is exact


def test_exact_matches_stand_as_they_are(model, path, tmp_path):
    (tmp_path / "more.tsv").write_text("w3 w4\tW9 W8 W7\n")
    build(path, [tmp_path / "more.tsv"])
    assert lines_of(model, TEXT)[1].translation != "W9 W8 W7"
    assert lines_of(model, TEXT, memory=path)[1].translation == "W9 W8 W7"
    given = lines_of(model, TEXT, memory=path, given=[{2: "W1"}])
    assert given[1].translation == "W1"  # user input takes precedence
    assert memory(path).exact_lines({1: " w3  w4"}) == {1: "W9 W8 W7"}


def test_terms_of_a_memory_are_words_that_it_always_translates_alike(tmp_path, capsys):
    verbs = ("open", "close", "sell", "buy", "see", "lift")
    pairs = [(f"{verb} our valve", f"bitte unser Ventil {verb}") for verb in verbs]
    pairs += [(f"{verb} the bank", f"das {'Haus' if verb < 'm' else 'Ufer'} {verb}") for verb in verbs]
    pairs += [(f"{verb} our town", f"unseren alten Ort {verb}") for verb in verbs[:4]]  # too few
    (tmp_path / "p.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    build(tmp_path / "m.tm", [tmp_path / "p.tsv"], ("xx", "yy"))
    assert memory(tmp_path / "m.tm").terms == [("valve", "Ventil")]
    assert main(["memory", "terms", str(tmp_path / "m.tm")]) == 0 and capsys.readouterr().out == "valve\tVentil\n"
    assert main(["memory", "terms", str(tmp_path / "m.tm"), "--least", "4", "--quiet"]) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == ["town\tOrt", "valve\tVentil"]


def test_its_terms_are_required_unless_a_glossary_has_them(model, path):
    held = memory(path)
    vars(held)["terms"] = [("w6", "W20"), ("w8", "Ventil")]  # the model has no subwords for the second
    made = lines_of(model, ["w9 w6 w8", "w1"], memory=held)
    assert "W20" in made[0].translation.split() and "W20" not in lines_of(model, ["w9 w6 w8"])[0].translation
    other = lines_of(model, ["w9 W6 w8"], memory=held, glossary=Glossary([("W6", "W14")]))
    assert "W14" in other[0].translation.split() and "W20" not in other[0].translation.split()


def test_terms_of_large_memories_are_not_looked_for_each_time(path, monkeypatch, capsys):
    monkeypatch.setattr("fairseq_lasformer.translation_memory.remembering.MOST", 2)
    assert memory(path).terms == []
    assert "lasformer memory terms" in capsys.readouterr().err


def translated(path, by_lines_folder, tmp_path, capsys, *words):
    (tmp_path / "in.txt").write_text("\n".join(TEXT) + "\n")
    words = ["translate", by_lines_folder, tmp_path / "in.txt", "--memory", path, "--beam", 3, "--lines", *words]
    code = main(list(map(str, words)))
    return code, capsys.readouterr()


def test_files_are_translated_with_a_memory(model, path, by_lines_folder, tmp_path, capsys):
    expected = [line.translation for line in lines_of(model, TEXT)]
    code, shown = translated(path, by_lines_folder, tmp_path, capsys)
    assert code == 0 and shown.out.splitlines() == expected
    code, shown = translated(path, by_lines_folder, tmp_path, capsys, "--format", "jsonl")
    rows = list(map(json.loads, shown.out.splitlines()))
    assert rows[0]["matches"][0]["source"] == PAIRS[0][0] and rows[0]["matches"][0]["translation"] == PAIRS[0][1]
    assert "matches" not in rows[2]
    (tmp_path / "more.tsv").write_text("w5\tW9\n")
    out = tmp_path / "out.txt"
    assert translated(path, by_lines_folder, tmp_path, capsys, "-o", out)[0] == 0
    build(path, [tmp_path / "more.tsv"])
    assert translated(path, by_lines_folder, tmp_path, capsys, "-o", out)[0] == 1  # a different memory: not done yet
    code, shown = translated(path, by_lines_folder, tmp_path, capsys, "-o", out, "--overwrite")
    assert code == 0 and "1 from the memory" in shown.err and out.read_text().splitlines()[2] == "W9"


def test_what_is_given_comes_before_exact_matches(path, by_lines_folder, tmp_path, capsys):
    (tmp_path / "more.tsv").write_text("w5\tW9\nw3 w4\tW8\n")
    build(path, [tmp_path / "more.tsv"])
    (tmp_path / "given.tsv").write_text("3\tW1\n")
    words = ["--given", tmp_path / "given.tsv", "-o", tmp_path / "out.txt"]
    code, shown = translated(path, by_lines_folder, tmp_path, capsys, *words)
    assert code == 0 and "1 from the memory" in shown.err
    assert (tmp_path / "out.txt").read_text().splitlines()[1:] == ["W8", "W1"]


@pytest.mark.command
def test_a_split_is_translated_with_the_terms_of_a_memory(path, prepared, by_lines_folder, model, tmp_path):
    held = memory(path)
    vars(held)["terms"] = [("w3", "W14")]
    required = required_terms(model.task, model.translator(3), held)
    tokens = model.src_dict.encode_line(model.codec.encode_source("w3 w4"), add_if_not_exist=False, append_eos=False)
    assert [model.codec.decode_line(model.tgt_dict.string(term)) for term in required(tokens.long())] == ["W14"]
    checkpoint = by_lines_folder / "checkpoint_last.pt"
    done = generate(prepared, checkpoint, tmp_path / "out", "test", 2, ["--cpu", "--beam", "3", "--memory", str(path)])
    raw = (prepared.parent / "raw/test.xx").read_text().strip("\n").split("\n\n")
    made = model.translate_documents(raw, beam=3, progress=False, memory=memory(path))
    assert done.documents == [text.split("\n") for text in made]


def test_a_server_reads_a_memory_and_shows_matches(path, model):
    served = ServedModel("mine", model, beam=3, memory=memory(path))
    try:
        prepared = served.prepare("\n".join(TEXT).encode(), "text")
        assert prepared.matches[0][0]["source"] == PAIRS[0][0] and prepared.matches[2] == []
    finally:
        served.engine.close()


def test_what_cannot_be_used_is_refused(path, model, by_lines_folder, tmp_path, capsys):
    with pytest.raises(InputError, match="a memory: only where lines"):
        lines_of(model, TEXT, memory=path, align_sentences="no")
    (tmp_path / "in.txt").write_text("w1\n")
    (tmp_path / "p.tsv").write_text("a\tb\n")
    build(tmp_path / "other.tm", [tmp_path / "p.tsv"], ("en", "de"))
    for words, message in (
        (["--memory", tmp_path / "other.tm"], "is a memory for en-de, not xx-yy"),
        (["--memory", tmp_path / "none.tm"], "no such memory"),
    ):
        assert main(list(map(str, ["translate", by_lines_folder, tmp_path / "in.txt", *words]))) == 1
        assert message in (error := capsys.readouterr().err) and error.count("\n") == 1
    assert main(list(map(str, ["serve", by_lines_folder, "--memory", tmp_path / "other.tm", "--port", 0]))) == 1
    assert "no served model translates between its languages" in capsys.readouterr().err
