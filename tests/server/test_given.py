"""The server's field ``given``."""

from __future__ import annotations

import json

import pytest
from test_attacks import page

from fairseq_lasformer.documents.consistency import Unifier


def test_given_sentences_stand_as_they_are(served):
    client = page(served)
    asked = {"q": "w1 w2\nw3\n", "given": {"1": "W9 W9"}}
    made = client.post("/translate", json=asked).json()["translatedText"]
    assert made.startswith("W9 W9\n")
    assert (
        client.post("/translate", data={**asked, "given": json.dumps(asked["given"])}).json()["translatedText"] == made
    )
    streamed = client.post("/translate", json={**asked, "stream": True}).text
    assert '"translation": "W9 W9"' in streamed and json.dumps(made) in streamed


def test_consistent_terms_change_given_sentences_that_nobody_has_corrected(served, monkeypatch):
    drafts = []

    def unify(self, document, texts, lines):
        drafts.append(sorted(document.drafts))
        return [lines[2], *lines[1:]], []

    monkeypatch.setattr(Unifier, "unify", unify)
    client = page(served)
    asked = {"q": "w1\nw2\nw3\n", "given": {"1": "W8", "2": "W7", "3": "W9"}, "consistent": True, "corrected": [3]}
    assert client.post("/translate", json=asked).json()["translatedText"] == "W9\nW7\nW9\n"
    streamed = client.post("/translate", json={**asked, "stream": True}).text
    (revised,) = [part for part in streamed.split("\n\n") if part.startswith("event: revised")]
    assert '"number": 1' in revised and '"translation": "W9"' in revised
    form = {**asked, "given": json.dumps(asked["given"]), "corrected": "[3]"}
    client.post("/translate", data=form)
    client.post("/translate", json={**asked, "corrected": []})
    client.post("/translate", json={name: value for name, value in asked.items() if name != "corrected"})
    assert drafts == [[0, 1], [0, 1], [0, 1], [0, 1, 2], []]


@pytest.mark.parametrize("corrected", ["[", "x", "null", "[" * 100_000, {"1": 2}, ["1"], [True], 7])
def test_wrong_numbers_of_corrected_sentences_are_refused(served, corrected):
    answer = page(served).post("/translate", json={"q": "w1", "given": {"1": "W"}, "corrected": corrected})
    assert answer.status_code == 400 and "corrected: expected a list" in answer.json()["error"]


@pytest.mark.parametrize(
    "given, message",
    [
        ("[", "an object"),
        ("{", "an object"),
        ("null", "an object"),
        ("[" * 100_000, "an object"),
        ([1], "an object"),
        ({"a": "W"}, "an object"),
        ({"9": "W1"}, "line 9"),
    ],
)
def test_wrong_given_sentences_are_refused(served, given, message):
    answer = page(served).post("/translate", json={"q": "w1", "given": given})
    assert answer.status_code == 400 and message in answer.json()["error"]
    assert page(served).post("/translate", json={"q": ["w1", "w2"], "given": {"1": "W"}}).status_code == 400


def test_endless_numbers_and_texts_are_refused(served):
    assert page(served).post("/translate", json={"q": "w1", "given": {"9" * 5000: "W"}}).status_code == 400
    long = page(served, characters=20).post("/translate", json={"q": "w1", "given": {"1": "W" * 21}})
    assert long.status_code == 413
