"""Documents whose lines are searched side by side: what is asked of them, as of other documents."""

from __future__ import annotations

import threading

import pytest
import torch

from fairseq_lasformer.documents import streaming
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.documents.part_search import PartSearch
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.documents.side_by_side import SideBySide
from fairseq_lasformer.documents.streaming import Stopped

TEXT = "w1 w2 w3\n\nw4\nw5 w6 w7 w8\nw2 w9\n" + "\n".join(f"w{i} w{i + 1} w3" for i in range(1, 12))


@pytest.fixture(scope="module")
def model(by_lines_folder):
    return load_model(by_lines_folder, device="cpu")


def lines(model, text=TEXT, **options):
    (found,) = model.translate_documents([text], options.pop("beam", 3), progress=False, lines=True, **options)
    return found


def test_a_search_of_whole_documents_finds_the_same(model, monkeypatch):
    monkeypatch.setattr(PartSearch, "overlap", lambda self, wanted: 0)  # the same parts
    ours = lines(model)
    assert model.translator(3).by_lines
    monkeypatch.setattr(PartSearch, "by_lines", False)
    theirs = lines(model, beam=12)  # shared by all lines
    assert [line.number for line in ours] == [line.number for line in theirs]
    assert sum(a.translation == b.translation for a, b in zip(ours, theirs)) > 0.8 * len(ours)
    same = [(a.score, b.score) for a, b in zip(ours, theirs) if a.translation == b.translation]
    for a, b in same:
        assert a == pytest.approx(b, abs=1e-4)


def test_together_alone_and_one_after_another(model):
    texts = [TEXT, "w5", "w1 w2\nw3 w4 w5 w6\nw7"]
    together = model.translate_documents(texts, 3, progress=False)
    assert together == [model.translate_documents([text], 3, progress=False)[0] for text in texts]
    streamed = list(model.translate_lines(TEXT, 3))
    assert [(line.number, line.translation) for line in streamed] == [
        (line.number, line.translation) for line in lines(model)
    ]
    free = model.translate_documents([TEXT], 3, progress=False, align_sentences="no")[0]
    assert free  # as one sequence of any number of lines


def test_a_search_that_nobody_waits_for_ends_before_its_next_step(model, monkeypatch):
    translator, asked = model.translator(3), []
    source = model.source(Request.of(TEXT), translator)

    def check():
        asked.append(None)
        if len(asked) == 2:
            raise Stopped

    with pytest.raises(Stopped):
        translator.translate_parts([(source, source.parts[0], [])], "cpu", check)
    assert len(asked) == 2
    monkeypatch.setattr(streaming, "TOGETHER", 2)
    before, stream = threading.active_count(), model.translate_lines(TEXT, 3)
    next(stream)
    stream.close()
    assert threading.active_count() == before


def test_parts_of_a_long_document_read_the_lines_around_them(model):
    text = [line for line in TEXT.split("\n") if line]
    parts = model.source(Request.of("\n".join(text), overlap=2), model.translator(3)).parts
    assert len(parts) > 3 and all(0 < part.after <= 2 for part in parts[:-1]) and parts[-1].after == 0
    before, last = lines(model, "\n".join(text), overlap=2), parts[0].size + parts[0].after - 1
    for place, read in (last, True), (last + 1, False):
        changed = [*text]
        changed[place] = text[place].replace(" w3", " w4")
        assert changed != text
        after = lines(model, "\n".join(changed), overlap=2)
        assert len(after) == len(text)
        assert [a.score == b.score for a, b in zip(before, after)][: parts[0].size] == [not read] * parts[0].size


def test_given_lines_stay_and_are_scored(model):
    plain, given = lines(model), lines(model, given=[{3: "w1 w1 w1"}])
    assert given[1].translation == "w1 w1 w1" and given[1].score < plain[1].score and not given[1].flawed
    for a, b in zip(plain, given):
        assert a.number == 3 or a.translation == b.translation


def test_terms_are_in_their_lines(model, tmp_path):
    (tmp_path / "glossary.tsv").write_text("w7\tw1 w1 w2\n")
    plain, found = lines(model), lines(model, glossary=tmp_path / "glossary.tsv")
    for a, b in zip(plain, found):
        if "w7" in b.source.split():
            assert "w1 w1 w2" in b.translation or b.flawed
        else:
            assert a.translation == b.translation
    assert any("w1 w1 w2" in line.translation for line in found)
    assert not any("w1 w1 w2" in line.translation for line in plain)


def test_a_line_that_goes_wrong_is_searched_again(model, monkeypatch):
    translator, device = model.translator(3), torch.device("cpu")
    source = model.source(Request.of("w1 w2 w3 w4 w5 w6 w7 w8 w9\nw2 w3"), translator)
    (plain,) = translator.translate([source], device)
    loop, search, blocked = torch.tensor([7] * 12 + [2]), SideBySide._best, []

    def best(self, places, block=False):
        blocked.append((block, len(places)))
        for i, hypothesis in search(self, places, block):
            wrong = (
                {"tokens": loop, "positional_scores": torch.zeros(13)}
                if not block and len(places[i].tokens) > 3
                else {}
            )
            yield i, hypothesis | wrong

    monkeypatch.setattr(SideBySide, "_best", best)
    (found,) = translator.translate([source], device)
    assert blocked == [(False, 2), (True, 1)] and found[0].repaired and not found[0].flawed
    assert found[0].tokens.tolist() != loop[:-1].tolist()
    assert found[1].tokens.tolist() == plain[1].tokens.tolist() and not found[1].repaired
    translator.generator.alignment = translator.generator.alignment._replace(repairs=0)
    (left,) = translator.translate([source], device)
    assert left[0].flawed and not left[0].repaired and left[0].tokens.tolist() == loop[:-1].tolist()


def test_alternatives_differ_and_are_in_order(model):
    translator = model.translator(4)
    source = model.source(Request.of(TEXT), translator)
    (found,) = translator.translate([source], torch.device("cpu"))
    others = translator.alternatives(source, found, 2, torch.device("cpu"))
    assert len(others) == len(found) and all(len(its) <= 2 for its in others) and any(others)
    for line, its in zip(found, others):
        known = [line.tokens.tolist(), *(other.tokens.tolist() for other in its)]
        assert len({tuple(tokens) for tokens in known}) == len(known)
        assert [other.score for other in its] == sorted((other.score for other in its), reverse=True)
