"""Translations with a memory: exact matches and terms; pairs that a model trained for it reads before a text."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch

from fairseq_lasformer.apps.memory.building import build
from fairseq_lasformer.apps.server.models import ServedModel
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.jobs.generate import generate
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.glossary import Glossary
from fairseq_lasformer.translation_memory.matching import Match
from fairseq_lasformer.translation_memory.remembering import Memory, Remembered

TEXT = ["w1 w2", "w3 w4", "w5"]
PAIRS = [("w1 w2 w8", "W9 W9 W7"), ("w7 w9", "W1"), ("w6", "W6 W6")]


@pytest.fixture(scope="module")
def model(trained_folder):
    return LasformerModel.from_pretrained(trained_folder)


@pytest.fixture
def reading(model, monkeypatch):
    """The model as if it had been trained with memories of at most so many tokens."""

    def trained_with(tokens: int = 256):
        monkeypatch.setattr(model.task, "settings", replace(model.task.settings, memory_tokens=tokens))
        return model

    return trained_with


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


def test_matches_are_read_before_a_text_and_removed(reading, path):
    model = reading()
    with_memory = lines_of(model, TEXT, memory=path)
    as_context = lines_of(model, [PAIRS[0][0], *TEXT], given=[{1: PAIRS[0][1]}])[1:]
    assert [(line.number, line.source) for line in with_memory] == list(enumerate(TEXT, 1))
    assert [line.translation for line in with_memory] == [line.translation for line in as_context]
    assert [line.score for line in with_memory] == pytest.approx([line.score for line in as_context], abs=1e-4)
    free = lines_of(model, TEXT)
    assert [line.score for line in with_memory] != pytest.approx([line.score for line in free], abs=1e-4)
    streamed = [line.translation for line in model.translate_lines("\n".join(TEXT), beam=3, memory=path)]
    assert streamed == [line.translation for line in with_memory]
    nothing = lines_of(reading(0), TEXT, memory=path)
    assert [line.translation for line in nothing] == [line.translation for line in free]


def test_a_memorys_lines_are_removed_everywhere(reading, path):
    model = reading()
    translator = model.translator(3)
    source = model.source(Request.of("\n".join(TEXT), memory=memory(path)), translator)
    (part,) = source.parts
    assert translator.lines_before(source, part) == 1
    (lines,) = translator.translate([source], "cpu")
    others = translator.alternatives(source, lines, 2, "cpu")
    assert len(lines) == len(others) == len(TEXT)


def test_parts_of_long_documents_leave_room(reading, path):
    model = reading(8)
    text = [f"w{i % 9} w2 w3" for i in range(30)]
    translator = model.translator(2)
    free, full = (model.source(Request.of("\n".join(text), memory=m), translator) for m in (None, memory(path)))
    assert len(full.parts) > len(free.parts)
    limit = model.codec.limit
    for part in full.parts:
        assert len(translator.example(full, part)) <= limit
    assert any(translator.remembered(full, part) for part in full.parts)
    assert len(lines_of(model, text, memory=path)) == len(text)


def test_what_is_remembered_leaves_room_for_the_text():
    found = Match(0, "a", "b", 0.9, 0, {"a": 1.0})
    held = Remembered([[found], []], {0: (torch.arange(3), torch.arange(4))}, 9, 20)
    assert held.reserve == held.size(found) == 5 and len(held.before(0, 1, 15)) == 1
    assert held.before(0, 1, 16) == [] and held.before(1, 2, 0) == []
    assert held._replace(budget=4).before(0, 1, 0) == []


def test_terms_are_required_of_the_text_alone(reading, path, tmp_path):
    model = reading()
    (tmp_path / "terms.tsv").write_text("w1\tW14\nw5\tW6 W6\n")
    glossary = tmp_path / "terms.tsv"
    made = lines_of(model, TEXT, memory=path, glossary=glossary)
    explicit = lines_of(model, [PAIRS[0][0], *TEXT], given=[{1: PAIRS[0][1]}], glossary=glossary)[1:]
    assert [line.translation for line in made] == [line.translation for line in explicit]
    assert "W14" in made[0].translation and "W6 W6" in made[2].translation


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


def test_its_terms_are_required_unless_the_model_reads_them_itself(reading, path):
    held = memory(path)
    vars(held)["terms"] = [("w6", "W20"), ("w8", "Ventil")]  # the model has no subwords for the second
    made = lines_of(reading(0), ["w9 w6 w8", "w1"], memory=held)
    assert "W20" in made[0].translation.split() and "W20" not in lines_of(reading(0), ["w9 w6 w8"])[0].translation
    other = lines_of(reading(0), ["w9 W6 w8"], memory=held, glossary=Glossary([("W6", "W14")]))
    assert "W14" in other[0].translation.split() and "W20" not in other[0].translation.split()
    assert reading(99).translator(2).required_terms(None, held, reading(99).codec) is None


def test_terms_of_large_memories_are_not_looked_for_each_time(path, monkeypatch, capsys):
    monkeypatch.setattr("fairseq_lasformer.translation_memory.remembering.MOST", 2)
    assert memory(path).terms == []
    assert "lasformer memory terms" in capsys.readouterr().err


def translated(path, trained_folder, tmp_path, capsys, *words):
    (tmp_path / "in.txt").write_text("\n".join(TEXT) + "\n")
    words = ["translate", trained_folder, tmp_path / "in.txt", "--memory", path, "--beam", 3, "--lines", *words]
    code = main(list(map(str, words)))
    return code, capsys.readouterr()


def test_files_are_translated_with_a_memory(model, path, trained_folder, tmp_path, capsys):
    expected = [line.translation for line in lines_of(model, TEXT)]
    code, shown = translated(path, trained_folder, tmp_path, capsys)
    assert code == 0 and shown.out.splitlines() == expected
    code, shown = translated(path, trained_folder, tmp_path, capsys, "--format", "jsonl")
    rows = list(map(json.loads, shown.out.splitlines()))
    assert rows[0]["matches"][0]["source"] == PAIRS[0][0] and rows[0]["matches"][0]["translation"] == PAIRS[0][1]
    assert "matches" not in rows[2]
    (tmp_path / "more.tsv").write_text("w5\tW9\n")
    out = tmp_path / "out.txt"
    assert translated(path, trained_folder, tmp_path, capsys, "-o", out)[0] == 0
    build(path, [tmp_path / "more.tsv"])
    assert translated(path, trained_folder, tmp_path, capsys, "-o", out)[0] == 1  # a different memory: not done yet
    code, shown = translated(path, trained_folder, tmp_path, capsys, "-o", out, "--overwrite")
    assert code == 0 and "1 from the memory" in shown.err and out.read_text().splitlines()[2] == "W9"


def test_what_is_given_comes_before_exact_matches(path, trained_folder, tmp_path, capsys):
    (tmp_path / "more.tsv").write_text("w5\tW9\nw3 w4\tW8\n")
    build(path, [tmp_path / "more.tsv"])
    (tmp_path / "given.tsv").write_text("3\tW1\n")
    words = ["--given", tmp_path / "given.tsv", "-o", tmp_path / "out.txt"]
    code, shown = translated(path, trained_folder, tmp_path, capsys, *words)
    assert code == 0 and "1 from the memory" in shown.err
    assert (tmp_path / "out.txt").read_text().splitlines()[1:] == ["W8", "W1"]


@pytest.mark.command
@pytest.mark.parametrize("tokens", [0, 8])
def test_a_split_is_translated_with_a_memory(path, prepared, trained_folder, reading, tmp_path, tokens):
    data = shutil.copytree(prepared, tmp_path / "data")
    settings = json.loads((data / "settings.json").read_text()) | {"memory_tokens": tokens}
    (data / "settings.json").write_text(json.dumps(settings))
    checkpoint = trained_folder / "checkpoint_last.pt"
    done = generate(data, checkpoint, tmp_path / "out", "test", 2, ["--cpu", "--beam", "3", "--memory", str(path)])
    raw = (prepared.parent / "raw/test.xx").read_text().strip("\n").split("\n\n")
    made = reading(tokens).translate_documents(raw, beam=3, progress=False, memory=memory(path))
    assert done.documents == [text.split("\n") for text in made]
    plain = reading(0).translate_documents(raw, beam=3, progress=False)
    assert (made == plain) == (tokens == 0)  # nothing in this memory is a term, and no line is in it


def test_a_server_reads_a_memory_and_shows_matches(path, model):
    served = ServedModel("mine", model, beam=3, memory=memory(path))
    try:
        prepared = served.prepare("\n".join(TEXT).encode(), "text")
        assert prepared.matches[0][0]["source"] == PAIRS[0][0] and prepared.matches[2] == []
    finally:
        served.engine.close()


def test_what_cannot_be_used_is_refused(path, model, trained_folder, tmp_path, capsys):
    with pytest.raises(InputError, match="a memory needs a model of documents"):
        lines_of(model, TEXT, memory=path, align_sentences="no")
    (tmp_path / "in.txt").write_text("w1\n")
    (tmp_path / "p.tsv").write_text("a\tb\n")
    build(tmp_path / "other.tm", [tmp_path / "p.tsv"], ("en", "de"))
    for words, message in (
        (["--memory", tmp_path / "other.tm"], "is a memory for en-de, not xx-yy"),
        (["--memory", tmp_path / "none.tm"], "no such memory"),
    ):
        assert main(list(map(str, ["translate", trained_folder, tmp_path / "in.txt", *words]))) == 1
        assert message in (error := capsys.readouterr().err) and error.count("\n") == 1
    assert main(list(map(str, ["serve", trained_folder, "--memory", tmp_path / "other.tm", "--port", 0]))) == 1
    assert "no served model translates between its languages" in capsys.readouterr().err
