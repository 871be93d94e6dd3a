"""TCP, the discourse score of PDC."""

from __future__ import annotations

import random

import pytest
from helpers import PDC, run

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.evaluation import tcp


def test_a_label_is_hit_within_twenty_tokens_of_its_scaled_place():
    hypothesis = [f"w{i}" for i in range(100)]
    for position, n_reference, hit in (
        (30, 100, False),
        (31, 100, True),
        (49, 100, True),
        (70, 100, True),
        (71, 100, False),
        (60, 200, False),
        (100, 200, True),
    ):
        assert tcp.hit(tcp.Label(position, ("w50",)), hypothesis, n_reference) is hit, position
    assert tcp.hit(tcp.Label(50, ("x", "w51 w52")), hypothesis, 100)
    assert not tcp.hit(tcp.Label(50, ("W50", "w5")), hypothesis, 100)  # case counts; one word is a whole token
    assert tcp.hit(tcp.Label(50, ("w50 w5",)), hypothesis, 100)  # several are a part of the joined window
    assert not tcp.hit(tcp.Label(3, ("a",)), [], 10)


@pytest.mark.skipif(not PDC.exists(), reason="the PDC test set is not at ../shared/data/pdc")
def test_tcp_gives_its_known_figures_on_the_reference():
    labels = tcp.read_labels(PDC / "test.en.candidates")
    tokens = [line.split() for line in (PDC / "test.en.tok").read_text(encoding="utf-8").splitlines()]
    whole = tcp.score(tokens, tokens, labels)
    assert (whole["TC_labels"], whole["CP_labels"], whole["PT_labels"]) == (2465, 455, 296)
    assert whole["TCP"] == pytest.approx(100)
    lowered = tcp.score([[w.lower() for w in d] for d in tokens], tokens, labels)
    assert round(lowered["TCP"], 1) == 75.1
    shuffled = list(tokens)
    random.Random(1).shuffle(shuffled)
    assert 17 < tcp.score(shuffled, tokens, labels)["TCP"] < 23
    with pytest.raises(InputError, match="148 documents: there are 147 hypotheses"):
        tcp.score(tokens[:-1], tokens, labels)


@pytest.mark.skipif(not PDC.exists(), reason="the PDC test set is not at ../shared/data/pdc")
def test_documents_are_tokenised_by_sentence_for_tcp():
    labels = tcp.read_labels(PDC / "test.en.candidates")
    references = [line.split() for line in (PDC / "test.en.tok").read_text(encoding="utf-8").splitlines()]
    documents = (PDC / "test.en").read_text(encoding="utf-8").splitlines()
    lowered = [tcp.tokenized([d.lower()]) for d in documents]
    assert round(tcp.score(lowered, references, labels)["TCP"], 1) == 75.1
    assert tcp.score([tcp.tokenized([d]) for d in documents], references, labels)["TCP"] == pytest.approx(100)


def test_sentences_known_or_not_give_the_same_tokens():
    sentences = ["it cost 5.30 in the u.s. and mr. smith paid.", 'he said "no." she left!', "(really?) yes."]
    assert tcp.tokenized(sentences) == tcp.tokenized([" ".join(sentences)])
    assert tcp.tokenized(["one."]) == ["one", "."]


@pytest.mark.command
@pytest.mark.skipif(not PDC.exists(), reason="the PDC test set is not at ../shared/data/pdc")
def test_tokenised_hypotheses_are_taken_as_they_are(tmp_path):
    tokens = (PDC / "test.en.tok").read_text(encoding="utf-8")
    (tmp_path / "ref").write_text(tokens.replace("\n", "\n\n"), encoding="utf-8")
    (tmp_path / "tok").write_text(tokens, encoding="utf-8")
    options = ["--tcp", PDC / "test.en.candidates", "--tcp-reference", PDC / "test.en.tok", "--tcp-tokenized"]
    done = run("lasformer", "score", tmp_path / "ref", tmp_path / "tok", *options)
    assert "tok: TC 100.0, CP 100.0, PT 100.0, TCP 100.0" in done.stdout


def test_bad_candidates_are_named(tmp_path):
    (tmp_path / "c").write_text("3:a,b\nx:c\n")
    with pytest.raises(InputError, match="c:2: 'x:c' is not position"):
        tcp.read_labels(tmp_path / "c")
