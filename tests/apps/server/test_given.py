"""The server's field ``given``."""

from __future__ import annotations

import json

import pytest
from test_attacks import page


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
