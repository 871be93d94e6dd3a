"""Terms of a document get one translation."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fairseq_lasformer.documents import consistency
from fairseq_lasformer.documents.consistency import Unifier, _families, _form, frequent_words
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.documents.source import Line
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.formats.projection import AlignedWords
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.translation_memory.building import build

TEXT = ["wab wcd", "wab wef", "wgh", "wab"]


@pytest.fixture(scope="module")
def model(trained_folder):
    return LasformerModel.from_pretrained(trained_folder)


def test_frequent_words_make_up_half_of_the_text():
    dictionary = SimpleNamespace(symbols=["a", "b", "c", "d"], count=[3, 50, 30, 17])
    assert frequent_words(dictionary) == {"b"}
    assert frequent_words(SimpleNamespace(symbols=["a", "b"], count=[1, 1])) == set()
    assert frequent_words(SimpleNamespace(symbols=["a", "b"], count=[5, 5])) == set()


def test_a_form_is_the_word_that_attends_most():
    weights = np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]])
    assert _form("die rote Taste", weights, 1) == "rote" and _form("die rote Taste", weights, 0) == "die"
    assert _form("die ro Taste", weights, 1) == "Taste"  # too short
    assert _form("die rote Taste", weights * 0.1, 1) == "" and _form("die", weights, 0) == ""


def test_inflections_are_one_form():
    forms = ["Schalter", "Taste", "Schaltern", "Taste", "Schalters", "Schalter"]
    assert _families(forms) == [["Schalter", "Schaltern", "Schalters"], ["Taste"]]
    assert _families([]) == []


def test_terms_are_words_of_several_lines_that_are_not_frequent(model):
    unifier = Unifier(model, model.translator(2))
    unifier.frequent = {"wzz"}
    texts = ["The Wab, a w12", "wab wzz 1984", "wzz w12 1984", "a b w12"]
    unifier.frequent = {model.codec.encode_source("w12")}
    assert unifier.repeated(texts) == {"wab": {0: 1, 1: 0}, "wzz": {1: 1, 2: 0}}
    unifier.frequent = {"other"}
    assert list(unifier.repeated(texts)) == ["w12", "wab", "wzz"]
    unifier.frequent = set()  # the dictionary knows nothing: what occurs in most lines is frequent
    assert list(unifier.repeated(texts)) == ["wab", "wzz"]


def encoded(model, text):
    tokens = model.tgt_dict.encode_line(model.codec.encode_target(text), add_if_not_exist=False, append_eos=False)
    return tokens.long()


@pytest.fixture
def unifier(model, monkeypatch):
    """A unifier whose model writes any required form, and prefers WA; it records what it tried."""
    made = Unifier(model, model.translator(2))
    made.frequent, made.frequent_forms = {"wzz"}, set()

    def alignment(_, source, translation):
        words = len(translation.split()), len(source.split())
        return AlignedWords(np.eye(*words))

    monkeypatch.setattr(consistency, "word_alignment", alignment)
    made.tried = []
    made.worth = {}

    def parts(tasks, device):
        found = []
        for document, place, _ in tasks:
            assert document.given is None or document.given[place.start] is None  # it would stay as it is
            terms = document.terms[place.start]
            made.tried.append((place.start, [model.tgt_dict.string(term) for term in terms]))
            tokens = torch.tensor([token for term in terms for token in term])
            found.append([Line(tokens, -1.0, False, False)])
        return found

    monkeypatch.setattr(made.translator, "translate_parts", parts)
    monkeypatch.setattr(
        made, "_scores", lambda document, its, i: [made.worth.get((i, made._text(lines[i])), 0.0) for lines in its]
    )
    return made


def unified(unifier, model, translations, given=None, drafts=()):
    document = model.source(Request.of("\n".join(TEXT), given=given), unifier.translator)._replace(drafts=drafts)
    lines = [Line(encoded(model, text), 0.0, False, False) for text in translations]
    made, found = unifier.unify(document, TEXT, lines)
    return [unifier._text(line) for line in made], found


def test_the_form_with_the_largest_sum_is_taken_where_little_is_lost(unifier, model):
    texts = ["W13 W3", "W20 W5", "W6", "W13"]  # the forms of wab: W13, W20, W13
    unifier.worth = {(1, "W13"): -1.0, (0, "W20"): -2.0, (3, "W20"): -2.0}
    made, found = unified(unifier, model, texts)
    assert made == ["W13 W3", "W13", "W6", "W13"]
    assert found == [("wab", "W13", [1], [])]
    unifier.worth = {(1, "W13"): -5.0, (0, "W20"): -1.0, (3, "W20"): -1.0}
    made, found = unified(unifier, model, texts)
    assert made == ["W20", "W20 W5", "W6", "W20"] and found == [("wab", "W20", [0, 3], [])]
    unifier.worth = {(1, "W13"): -4.0, (0, "W20"): -4.0, (3, "W20"): -4.0}  # each loses more than it may
    assert unified(unifier, model, texts) == (texts, [])


def test_given_lines_bind(unifier, model):
    texts = ["W13 W3", "W20 W5", "W6", "W13"]
    unifier.worth = {(1, "W13"): -1.0, (0, "W20"): -2.0, (3, "W20"): -2.0}
    made, found = unified(unifier, model, texts, given={2: "W20 W5"})
    assert made == ["W20", "W20 W5", "W6", "W20"] and found[0].form == "W20"
    made, _ = unified(unifier, model, texts, given={1: "W13 W3", 2: "W20 W5"})  # each of them stays
    assert made[:2] == texts[:2]


def test_drafts_follow_what_is_given(unifier, model):
    texts = ["W13 W3", "W20 W5", "W6", "W13"]
    made, found = unified(unifier, model, texts, given={1: "W13 W3", 2: "W20 W5"}, drafts={0})
    assert made == ["W20", "W20 W5", "W6", "W20"] and found == [("wab", "W20", [0, 3], [])]
    unifier.worth = {(0, "W20"): -4.0}
    assert unified(unifier, model, texts, given={1: "W13 W3", 2: "W20 W5"}, drafts={0})[0][0] == texts[0]


def test_the_terms_of_a_glossary_stay(unifier, model):
    texts = ["W13 W3", "W20 W5", "W6", "W13"]
    document = model.source(Request.of("\n".join(TEXT)), unifier.translator)
    terms = [[], [encoded(model, "W7").tolist()], [], []]
    lines = [Line(encoded(model, text), 0.0, False, False) for text in texts]
    unifier.worth = {(0, "W20"): -9.0, (3, "W20"): -9.0}
    made, _ = unifier.unify(document._replace(terms=terms), TEXT, lines)
    assert unifier._text(made[1]) == "W7 W13"


def test_a_memory_binds(unifier, model, tmp_path):
    (tmp_path / "pairs.tsv").write_text("wab w1\tW20 W1\nother\tW5\n")
    build(tmp_path / "m.tm", [tmp_path / "pairs.tsv"], ("xx", "yy"))
    memory = model.memory(tmp_path / "m.tm")
    document = model.source(Request.of("\n".join(TEXT), memory=memory), unifier.translator)
    assert [match.source for match in document.memory.each] == ["wab w1"]
    lines = [Line(encoded(model, text), 0.0, False, False) for text in ("W13 W3", "W13 W5", "W6", "W13")]
    unifier.worth = {(0, "W20"): -2.0, (1, "W20"): -4.0, (3, "W20"): 1.0}
    made, found = unifier.unify(document, TEXT, lines)
    assert [unifier._text(line) for line in made] == ["W20", "W13 W5", "W6", "W20"]
    assert found == [("wab", "W20", [0, 3], [1])]
    # a term found only in the memory is not one of the document's
    assert "other" not in unifier.repeated([*TEXT, "other", "other"], len(TEXT))


def test_one_form_changes_nothing(unifier, model):
    texts = ["W13 W3", "W13 W5", "W6", "W13"]
    assert unified(unifier, model, texts) == (texts, []) and unifier.tried == []


def test_documents_and_files_are_made_consistent(model, tmp_path, trained_folder, capsys):
    from fairseq_lasformer.cli.main import main

    text = "\n".join(["w11 w12", "w12 w13", "w13 w11", "w14"])
    (made,) = model.translate_documents([text], beam=2, progress=False, consistent=True)
    assert len(made.split("\n")) == 4
    (tmp_path / "in.txt").write_text(text + "\n")
    words = ["translate", trained_folder, tmp_path / "in.txt", "--lines", "--beam", 2, "--consistent"]
    assert main(list(map(str, words))) == 0
    assert capsys.readouterr().out == made + "\n"
    with pytest.raises(InputError, match="--consistent needs a model of documents"):
        model.translate_documents([text], progress=False, consistent=True, align_sentences="no")
