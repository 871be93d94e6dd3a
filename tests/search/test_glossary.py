"""Glossaries: required terms, and translations that contain them where they have to."""

from __future__ import annotations

import pytest
import torch
from fairseq import search
from test_alignment import SENTENCES, SEPARATOR, batch, generator, lines_of, model, words  # noqa: F401

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.part_search import PartSearch
from fairseq_lasformer.documents.source import runs
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.glossary import Glossary, contains


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


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("ensemble", [1, 2])
def test_terms_stand_in_their_lines(model, words, beam, ensemble):  # noqa: F811
    """With the decoding cache, in batches of documents of different lengths, most of which have no term."""
    sample = batch(*SENTENCES)
    required = {90: [[], [[9, 11]], []], 91: [[[20]]], 92: [[], [], [], [], [[30, 31, 32], [33]]], 93: [[], []]}
    found = generator([model] * ensemble, words, beam_size=beam).generate([], sample | {"terms": required})
    for i, lengths in enumerate(SENTENCES):
        assert all(len(lines_of(hypothesis)) == len(lengths) for hypothesis in found[i])
        for line, terms in zip(lines_of(found[i][0]), required[90 + i]):
            assert all(contains(line, term) for term in terms)
    # a document without terms is searched as without a glossary
    free = generator([model] * ensemble, words, beam_size=beam).generate([], sample)
    assert found[3][0]["tokens"].tolist() == free[3][0]["tokens"].tolist()
    assert found[0][0]["tokens"].tolist() != free[0][0]["tokens"].tolist()


@pytest.mark.parametrize(
    "term, expected", [([2, 3], True), ([3, 2], False), ([1], True), ([1, 2, 3, 4], False), ([], True)]
)
def test_a_term_stands_in_a_line_token_by_token(term, expected):
    assert contains([1, 2, 3], term) is expected


def test_a_line_that_has_no_room_for_its_terms_ends_all_the_same(model, words):  # noqa: F811
    """Its limit is 1.5 * 1 + 2 = 3 tokens."""
    found = generator([model], words, beam_size=3).generate(
        [], batch((1, 2)) | {"terms": {90: [[[30, 31, 32, 33, 34]], []]}}
    )
    assert len(lines_of(found[0][0])) == 2


def test_other_searches_are_refused(model, words):  # noqa: F811
    sampling = generator([model], words, search.Sampling(words), beam_size=2)
    with pytest.raises(InputError, match="a glossary needs plain beam search"):
        sampling.generate([], batch((2, 2)) | {"terms": {90: [[[5]], []]}})
    again = generator([model], words, beam_size=2)
    again.generate([], batch((2, 2)) | {"terms": {90: [[[5]], []]}})
    torch.manual_seed(3)
    sample = batch((2, 2))
    after = again.generate([], sample)  # nothing of the glossary is left
    fresh = generator([model], words, beam_size=2).generate([], sample)
    assert after[0][0]["tokens"].tolist() == fresh[0][0]["tokens"].tolist()
    assert SEPARATOR in fresh[0][0]["tokens"].tolist()


@pytest.mark.parametrize("seed", range(6))
def test_lines_end_at_their_limits_whatever_their_terms(model, words, seed):  # noqa: F811
    """No room for any of them: a hypothesis that cannot be continued must not crowd out the end of another."""
    torch.manual_seed(seed)
    lengths = (1, 2, 1, 3, 1)
    required = [[[30 + i, 31, 32, 33 + i]] for i in range(len(lengths))]
    found = generator([model], words, beam_size=5).generate([], batch(lengths) | {"terms": {90: required}})
    assert found[0] and len(lines_of(found[0][0])) == len(lengths)


def test_a_line_is_first_asked_only_for_the_terms_that_it_lacks(trained_folder, monkeypatch):
    hub = LasformerModel.from_pretrained(trained_folder)
    (free,) = hub.translate_documents(["w1 w2\nw3 w4"], beam=2, progress=False, lines=True)
    there = free[1].translation.split()[0]
    asked, real = [], PartSearch.translate_parts

    def recorded(self, tasks, *more):
        asked.append([tuple(map(tuple, document.terms[part.start])) for document, part, _ in tasks if document.terms])
        return real(self, tasks, *more)

    monkeypatch.setattr(PartSearch, "translate_parts", recorded)
    glossary = Glossary([("w3", there), ("w4", "W17")])
    (made,) = hub.translate_documents(["w1 w2\nw3 w4"], beam=2, progress=False, glossary=glossary)
    rounds = [its for its in asked if its]
    tokens = [hub.tgt_dict.encode_line(hub.codec.encode_target(w), append_eos=False).tolist() for w in (there, "W17")]
    assert rounds[0] == [(tuple(tokens[1]),)]  # not the one that the line has
    assert {there, "W17"} <= set(made.split("\n")[1].split())
    if len(rounds) > 1:  # it lost the other
        assert set(rounds[1][0]) == set(map(tuple, tokens))


def test_lines_that_lack_terms_are_translated_again_in_runs():
    assert runs([1, 3, 6, 10, 11, 20], 3) == [(1, 6), (10, 11), (20, 20)]
    assert runs([], 3) == []
