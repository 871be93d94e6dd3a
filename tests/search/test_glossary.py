"""Glossaries: required terms, and translations that contain them where they have to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_line_search import SEP, generator_of, lines_of, make, searched, texts, words  # noqa: F401

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.shortlist import Shortlist
from fairseq_lasformer.documents.side_by_side import SideBySide
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.glossary import Glossary, contains
from fairseq_lasformer.search.line_search import LineSearch


def test_terms_are_found_as_words():
    glossary = Glossary([("post office", "Postamt"), ("office", "Büro"), ("US", "USA"), ("über", "above")])
    assert glossary.required("The Post Office is near.") == ["Postamt"]  # not also the office in it
    assert glossary.required("An office, a post office and an Office") == ["Postamt", "Büro"]
    assert glossary.required("They told us about officers.") == []
    assert glossary.required("The US and Über") == ["above", "USA"]
    with pytest.raises(InputError, match="a has two translations, b and c"):
        Glossary([("a", "b"), ("a", "c")])


@pytest.mark.parametrize(
    "text, message",
    [("a\n", ":1: expected a source term, a tab"), ("a\tb\n\na\tb\tc\n", ":3: expected"), ("\n", "is empty")],
)
def test_a_damaged_glossary_is_refused_with_its_line(tmp_path, text, message):
    (tmp_path / "g").write_text(text)
    with pytest.raises(InputError, match=message):
        Glossary.read(tmp_path / "g")


def with_terms(lines, some: dict[int, list[list[int]]]):
    return [line._replace(terms=some.get(i, ())) for i, line in enumerate(lines)]


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_terms_stand_in_their_lines(make, words, beam):  # noqa: F811
    """Beside lines that have none, which are searched as without a glossary."""
    model, sources = make("auto", 0.3), texts()
    lines = lines_of(sources)
    required = {1: [[9, 11]], 4: [[20]], 9: [[30, 31, 32], [33]], 10: [[8]]}
    found = searched(model, words, with_terms(lines, required), sources, beam)
    free = searched(model, words, lines, sources, beam)
    for i in range(len(lines)):
        best, plain = found[i][0]["tokens"].tolist(), free[i][0]["tokens"].tolist()
        assert all(contains(best, term) for term in required.get(i, ()))
        assert (best == plain) is (i not in required)


@pytest.mark.parametrize(
    "term, expected", [([2, 3], True), ([3, 2], False), ([1], True), ([1, 2, 3, 4], False), ([], True)]
)
def test_a_term_stands_in_a_line_token_by_token(term, expected):
    assert contains([1, 2, 3], term) is expected


@pytest.mark.parametrize("seed", range(6))
def test_lines_end_at_their_limits_whatever_their_terms(make, words, seed):  # noqa: F811
    """No room for any of them: a hypothesis that cannot be continued must not crowd out the end of another."""
    model, sources = make("auto", 1.0), texts()
    draw = torch.Generator().manual_seed(seed)
    lines = lines_of(sources)
    terms = {i: [torch.randint(20, 60, (line.longest + 1,), generator=draw).tolist()] for i, line in enumerate(lines)}
    for i, hypotheses in searched(model, words, with_terms(lines, terms), sources, 5).items():
        assert hypotheses and len(hypotheses[0]["tokens"]) <= lines[i].longest + 1


def test_terms_need_not_stand_on_a_shortlist(make, words):  # noqa: F811
    """The list of a document has the separator, its own words and a translation of each."""
    model, sources, size = make("auto", 0.3), texts(), len(words)
    one = Shortlist(np.array([SEP]), np.arange(size + 1), 5 + np.arange(size) % 20, np.arange(size), size)
    lines = lines_of(sources)
    found = searched(model, words, with_terms(lines, {4: [[63, 62]]}), sources, 4, shortlist=one)
    assert contains(found[4][0]["tokens"].tolist(), [63, 62])
    listed = {*range(25), *(t for source in sources for t in source.tolist())}
    assert all({*h["tokens"].tolist()} <= listed for i, (h, *_) in found.items() if i != 4)
    # a line that is searched again may take any word
    again = LineSearch(generator_of(model, words, 4, shortlist=one), SEP, sources)
    everywhere = dict(again.search(lines, block=True)).values()
    assert not all({*h["tokens"].tolist()} <= listed for h, *_ in everywhere)


def test_a_line_is_first_asked_only_for_the_terms_that_it_lacks(by_lines_folder, monkeypatch):
    hub = LasformerModel.from_pretrained(by_lines_folder)
    (free,) = hub.translate_documents(["w1 w2\nw3 w4"], beam=2, progress=False, lines=True)
    there = free[1].translation.split()[0]
    asked, real = [], SideBySide._best

    def recorded(self, places, block=False):
        asked.append([list(place.line.terms) for place in places])
        return real(self, places, block)

    monkeypatch.setattr(SideBySide, "_best", recorded)
    glossary = Glossary([("w3", there), ("w4", "W17")])
    (made,) = hub.translate_documents(["w1 w2\nw3 w4"], beam=2, progress=False, glossary=glossary)
    rounds = [its for its in asked if any(its)]
    tokens = [hub.tgt_dict.encode_line(hub.codec.encode_target(w), append_eos=False).tolist() for w in (there, "W17")]
    assert rounds[0] == [[tokens[1]]]  # not the one that the line has
    assert {there, "W17"} <= set(made.split("\n")[1].split())


@pytest.mark.parametrize("options", [{"sampling": True}, {"align_sentences": "no"}, {"max_len_b": 30}], ids=str)
def test_other_searches_are_refused(by_lines_folder, trained_folder, options):
    ours, plain = (LasformerModel.from_pretrained(folder) for folder in (by_lines_folder, trained_folder))
    glossary = Glossary([("w3", "W1")])
    for hub, asked in (ours, options), (plain, {}):
        with pytest.raises(InputError, match="a glossary: only where lines are searched side by side"):
            hub.translate_documents(["w1"], glossary=glossary, **asked)
