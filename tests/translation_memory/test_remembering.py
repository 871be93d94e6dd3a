"""Translations with a memory: its pairs are read before a text, exactly as if they were part of it, and removed."""

from __future__ import annotations

import json

import pytest
import torch

from fairseq_lasformer.cli.main import main
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.documents.updating import Former, Updater, kept_lines
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.jobs.generate import generate
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.server.models import ServedModel
from fairseq_lasformer.translation_memory.building import build
from fairseq_lasformer.translation_memory.matching import Match
from fairseq_lasformer.translation_memory.remembering import Memory, Remembered

TEXT = ["w1 w2", "w3 w4", "w5"]
PAIRS = [("w1 w2 w8", "W9 W9 W7"), ("w7 w9", "W1"), ("w6", "W6 W6")]


@pytest.fixture(scope="module")
def model(trained_folder):
    return LasformerModel.from_pretrained(trained_folder)


@pytest.fixture
def path(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    build(tmp_path / "m.tm", [tmp_path / "pairs.tsv"], ("xx", "yy"))
    return tmp_path / "m.tm"


def memory(path, **options):
    return Memory(path, ("xx", "yy"), **options)


def lines_of(model, text, **options):
    (made,) = model.translate_documents(["\n".join(text)], beam=3, progress=False, lines=True, **options)
    return made


def test_matches_are_read_before_a_text_and_removed(model, path):
    with_memory = lines_of(model, TEXT, memory=path)
    as_context = lines_of(model, [PAIRS[0][0], *TEXT], given=[{1: PAIRS[0][1]}])[1:]
    assert [(line.number, line.source) for line in with_memory] == list(enumerate(TEXT, 1))
    assert [line.translation for line in with_memory] == [line.translation for line in as_context]
    assert [line.score for line in with_memory] == pytest.approx([line.score for line in as_context], abs=1e-4)
    free = lines_of(model, TEXT)
    assert [line.score for line in with_memory] != pytest.approx([line.score for line in free], abs=1e-4)
    nothing = lines_of(model, TEXT, memory=memory(path, tokens=0))
    assert [line.translation for line in nothing] == [line.translation for line in free]
    streamed = [line.translation for line in model.translate_lines("\n".join(TEXT), beam=3, memory=path)]
    assert streamed == [line.translation for line in with_memory]


def test_a_memorys_lines_are_removed_everywhere(model, path):
    translator = model.translator(3)
    source = model.source(Request.of("\n".join(TEXT), memory=memory(path)), translator)
    (part,) = source.parts
    assert translator.lines_before(source, part) == 1
    (lines,) = translator.translate([source], "cpu")
    others = translator.alternatives(source, lines, 2, "cpu")
    assert len(lines) == len(others) == len(TEXT)
    target = translator.target(source, part, lines)
    assert target.tolist()[:3] == translator.remembered(source, part)[0][1].tolist()
    assert len(translator.target(source, part, lines, 1)) < len(target)
    new = [*TEXT[:2], "w2 w2", TEXT[2]]
    kept = kept_lines(TEXT, new)
    given = {i: model.line(i, "", line).translation for i, line in enumerate(lines, 1)}
    known = {i + 1: given[j + 1] for i, j in enumerate(kept) if j is not None}
    former = model.source(Request.of("\n".join(TEXT), given=given, memory=memory(path)), translator)
    document = model.source(Request.of("\n".join(new), given=known, memory=memory(path)), translator)
    updater = Updater(translator, torch.device("cpu"))
    updated = updater.update(Former(former), document, kept)
    assert len(updated.lines) == 4 and updated.states[2] == "new"
    explicit = model.source(Request.of("\n".join([PAIRS[0][0], *TEXT]), given={1: PAIRS[0][1]}), translator)
    first = lines[0]._replace(tokens=explicit.given[0])
    of_memory, of_lines = (updater._scores(d, its) for d, its in ((source, lines), (explicit, [first, *lines])))
    assert sorted(of_memory) == [0, 1, 2]
    for i in range(3):
        assert torch.allclose(of_memory[i][0], of_lines[i + 1][0], atol=1e-4)


def test_parts_of_long_documents_leave_room(model, path):
    text = [f"w{i % 9} w2 w3" for i in range(30)]
    translator = model.translator(2)
    free, full = (
        model.source(Request.of("\n".join(text), memory=m), translator) for m in (None, memory(path, tokens=8))
    )
    assert len(full.parts) > len(free.parts)
    limit = model.codec.limit
    for part in full.parts:
        assert len(translator.example(full, part)) <= limit
    assert any(translator.remembered(full, part) for part in full.parts)
    assert len(lines_of(model, text, memory=memory(path, tokens=8))) == len(text)


def test_what_is_remembered_leaves_room_for_the_text():
    found = Match(0, "a", "b", 0.9, 0, {"a": 1.0})
    held = Remembered([[found], []], {0: (torch.arange(3), torch.arange(4))}, 9, 20)
    assert held.reserve == held.size(found) == 5 and len(held.before(0, 1, 15)) == 1
    assert held.before(0, 1, 16) == [] and held.before(1, 2, 0) == []
    assert held._replace(budget=4).before(0, 1, 0) == []


def test_terms_are_required_of_the_text_alone(model, path, tmp_path):
    (tmp_path / "terms.tsv").write_text("w1\tW14\nw5\tW6 W6\n")
    glossary = tmp_path / "terms.tsv"
    made = lines_of(model, TEXT, memory=path, glossary=glossary)
    explicit = lines_of(model, [PAIRS[0][0], *TEXT], given=[{1: PAIRS[0][1]}], glossary=glossary)[1:]
    assert [line.translation for line in made] == [line.translation for line in explicit]
    assert "W14" in made[0].translation and "W6 W6" in made[2].translation


def test_exact_matches_stand_as_they_are(model, path, tmp_path):
    (tmp_path / "more.tsv").write_text("w3 w4\tW9 W8 W7\n")
    build(path, [tmp_path / "more.tsv"])
    made = lines_of(model, TEXT, memory=memory(path, exact=True))
    assert made[1].translation == "W9 W8 W7"
    assert lines_of(model, TEXT, memory=memory(path))[1].translation != "W9 W8 W7"
    given = lines_of(model, TEXT, memory=memory(path, exact=True), given=[{2: "W1"}])
    assert given[1].translation == "W1"  # user input takes precedence
    assert memory(path, exact=True).exact_lines({1: " w3  w4"}) == {1: "W9 W8 W7"}


def translated(path, trained_folder, tmp_path, capsys, *words):
    (tmp_path / "in.txt").write_text("\n".join(TEXT) + "\n")
    words = ["translate", trained_folder, tmp_path / "in.txt", "--memory", path, "--beam", 3, "--lines", *words]
    code = main(list(map(str, words)))
    return code, capsys.readouterr()


def test_files_are_translated_with_a_memory(model, path, trained_folder, tmp_path, capsys):
    expected = [line.translation for line in lines_of(model, TEXT, memory=path)]
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
    code, shown = translated(path, trained_folder, tmp_path, capsys, "-o", out, "--exact", "--overwrite")
    assert code == 0 and "1 from the memory" in shown.err and out.read_text().splitlines()[2] == "W9"


def test_what_is_given_comes_before_exact_matches(path, trained_folder, tmp_path, capsys):
    (tmp_path / "more.tsv").write_text("w5\tW9\nw3 w4\tW8\n")
    build(path, [tmp_path / "more.tsv"])
    (tmp_path / "given.tsv").write_text("3\tW1\n")
    words = ["--exact", "--given", tmp_path / "given.tsv", "-o", tmp_path / "out.txt"]
    code, shown = translated(path, trained_folder, tmp_path, capsys, *words)
    assert code == 0 and "1 from the memory" in shown.err
    assert (tmp_path / "out.txt").read_text().splitlines()[1:] == ["W8", "W1"]


@pytest.mark.command
def test_a_split_is_translated_with_a_memory(path, prepared, trained_folder, model, tmp_path):
    checkpoint = trained_folder / "checkpoint_last.pt"
    options = ["--cpu", "--beam", "3", "--memory", str(path), "--memory-tokens", "8"]
    done = generate(prepared, checkpoint, tmp_path / "out", "test", 2, options)
    raw = (prepared.parent / "raw/test.xx").read_text().strip("\n").split("\n\n")
    made = model.translate_documents(raw, beam=3, progress=False, memory=memory(path, tokens=8))
    assert done.documents == [text.split("\n") for text in made]


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
        (["--memory", path, "--memory-tokens", -1], "--memory-tokens -1: expected at least 0"),
        (["--exact"], "--exact: needs --memory"),
    ):
        assert main(list(map(str, ["translate", trained_folder, tmp_path / "in.txt", *words]))) == 1
        assert message in (error := capsys.readouterr().err) and error.count("\n") == 1
    assert main(list(map(str, ["serve", trained_folder, "--memory", tmp_path / "other.tm", "--port", 0]))) == 1
    assert "no served model translates between its languages" in capsys.readouterr().err
