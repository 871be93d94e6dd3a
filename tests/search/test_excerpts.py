"""Lines that went wrong are searched again in excerpts: what these contain, and what becomes of the document."""

from __future__ import annotations

import pytest
import torch
from test_alignment import EOS, PAD, SEPARATOR, Looping, batch, generator, lines_of, model, words  # noqa: F401

from fairseq_lasformer.search.alignment import SentenceLimits
from fairseq_lasformer.search.excerpts import (
    CONTEXTS,
    FlawedLine,
    excerpt,
    limits_of,
    replace_line,
    sample_of,
    together,
)
from fairseq_lasformer.search.generator import AlignedGenerator
from fairseq_lasformer.search.repair import loops, split

TAG = 11
SOURCE = [5, 6, SEPARATOR, 7, SEPARATOR, 8, 9, EOS]


@pytest.mark.parametrize(
    ("start", "line", "expected"),
    [(0, 0, [5, 6, EOS]), (1, 1, [7, EOS]), (0, 1, [5, 6, SEPARATOR, 7, EOS]), (1, 2, [7, SEPARATOR, 8, 9, EOS])],
)
def test_an_excerpt_is_the_line_after_its_context(start, line, expected):
    place = FlawedLine(0, start, line)
    assert excerpt(SOURCE, place, SEPARATOR, None) == expected
    assert excerpt([TAG, *SOURCE], place, SEPARATOR, TAG) == [TAG, *expected]


def test_excerpts_of_all_documents_are_searched_together():
    places = [FlawedLine(0, 0, 2), FlawedLine(1, 1, 1), FlawedLine(0, 1, 1)]
    (batched,) = together(places, [SOURCE, SOURCE], 0, SEPARATOR, None)
    assert sorted(batched[0]) == sorted(places)
    apart = list(together(places * 1000, [SOURCE, SOURCE], 0, SEPARATOR, None))
    assert sum(len(its) for its, _ in apart) == 3000 and len(apart) > 1
    assert all(len(rows) * max(map(len, rows)) <= 4096 for _, rows in apart)


def test_limits_and_terms_are_those_of_the_lines():
    limits = SentenceLimits(torch.tensor([3, 2]), torch.tensor([[4, 5, 6], [7, 8, 0]]))
    places = [FlawedLine(0, 1, 2), FlawedLine(1, 1, 1)]
    own = limits_of(places, limits)
    assert own.sentences.tolist() == [2, 1] and own.longest.tolist() == [[5, 6], [8, 0]]
    sample = {"id": torch.tensor([8, 9]), "net_input": {"src_tokens": torch.zeros(2, 3, dtype=torch.int64)}}
    sample["terms"] = {8: [[[1]], [[2]], [[3]]], 9: [[], [[4]]]}
    made = sample_of(places, [[7, SEPARATOR, 8, EOS], [7, EOS]], sample, PAD)
    assert made["terms"] == {0: [[], [[3]]], 1: [[[4]]]}
    assert made["net_input"]["src_tokens"].tolist() == [[7, SEPARATOR, 8, EOS], [PAD, PAD, 7, EOS]]
    assert made["net_input"]["src_lengths"].tolist() == [4, 2]


@pytest.mark.parametrize("tag", [None, TAG])
@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_new_line_takes_the_place_of_an_old_one(tag, line):
    head = [] if tag is None else [tag]
    tokens = [*head, 5, 5, SEPARATOR, 6, SEPARATOR, 7, 7, EOS]
    scores = -torch.arange(1.0, len(tokens) + 1)
    old = {"tokens": torch.tensor(tokens), "positional_scores": scores, "attention": torch.rand(4, len(tokens))}
    new_tokens = torch.tensor([*head, 3, SEPARATOR, 8, 8, 8, EOS])
    new = {"tokens": new_tokens, "positional_scores": -0.1 * torch.arange(1.0, len(new_tokens) + 1)}
    replace_line(old, line, new, SEPARATOR, tag, 1.0)
    found = old["tokens"].tolist()
    expected = split(tokens[len(head) : -1], SEPARATOR)
    expected[line] = [8, 8, 8]
    assert found[: len(head)] == head and split(found[len(head) : -1], SEPARATOR) == expected and found[-1] == EOS
    assert len(old["positional_scores"]) == len(found) == old["attention"].size(1)
    begin = found.index(8)
    assert old["positional_scores"][begin : begin + 4].tolist() == new["positional_scores"][-4:].tolist()
    assert old["positional_scores"][:begin].tolist() == scores[:begin].tolist()
    after = len(found) - begin - 4
    assert old["positional_scores"][begin + 4 :].tolist() == scores[len(scores) - after :].tolist()
    assert old["score"] == pytest.approx(float(old["positional_scores"].sum()) / len(found))


def test_the_lines_after_a_repaired_one_stay(model, words, monkeypatch):  # noqa: F811
    document = (3,) * 16
    sample = batch(document, (4, 4))
    before = generator([model], words, Looping(words, 0, 13), beam_size=2).generate([], sample)
    assert before[0][0]["flawed"] == [13]
    searched = []
    real = AlignedGenerator._among
    monkeypatch.setattr(
        AlignedGenerator, "_among", lambda self, taken, *a: (searched.append(taken), real(self, taken, *a))[1]
    )
    after = generator([model], words, Looping(words, 0, 13), beam_size=2, repairs=2).generate([], sample)
    old, new = lines_of(before[0][0]), lines_of(after[0][0])
    assert loops(old[13]) and not loops(new[13]) and after[0][0]["repaired"] == [13]
    assert [line for i, line in enumerate(new) if i != 13] == [line for i, line in enumerate(old) if i != 13]
    assert len(after[0][0]["positional_scores"]) == len(after[0][0]["tokens"])
    rows = [taken["net_input"]["src_tokens"] for taken in searched[1:]]
    assert [row.eq(SEPARATOR).sum(1).tolist() for row in rows] == [[CONTEXTS[0]]]


def test_a_line_that_went_wrong_is_no_context(model, words, monkeypatch):  # noqa: F811
    """This model's lines all reach their limits: each is searched alone, and only once."""
    searched = []
    real = AlignedGenerator._among
    monkeypatch.setattr(
        AlignedGenerator, "_among", lambda self, taken, *a: (searched.append(taken), real(self, taken, *a))[1]
    )
    found = generator([model], words, beam_size=2, repairs=2).generate([], batch((3, 4, 5), (2, 2)))
    flawed = sum(len(hypotheses[0]["flawed"]) + len(hypotheses[0]["repaired"]) for hypotheses in found)
    rows = [row for taken in searched[1:] for row in taken["net_input"]["src_tokens"].tolist()]
    assert flawed == len(rows) == 5 and not any(SEPARATOR in row for row in rows)


def test_given_lines_stay_in_the_context(model, words, monkeypatch):  # noqa: F811
    searched = []
    real = AlignedGenerator._among
    monkeypatch.setattr(
        AlignedGenerator, "_among", lambda self, taken, *a: (searched.append(taken), real(self, taken, *a))[1]
    )
    sample = batch((3,) * 16, (4, 4))
    first, second = sample["id"].tolist()
    sample["given"] = {first: [[5] if i == 1 else [] for i in range(16)], second: [[], []]}
    (found,) = generator([model], words, Looping(words, 0, 13), beam_size=2, repairs=2).generate([], sample)[:1]
    rows = [taken["net_input"]["src_tokens"].eq(SEPARATOR).sum(1).tolist() for taken in searched[1:]]
    assert 13 in [*found[0]["repaired"], *found[0]["flawed"]] and [12] in rows  # lines 1 to 13
