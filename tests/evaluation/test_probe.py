"""Probes: words whose translation depends on context."""

from __future__ import annotations

import json

import pytest

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.evaluation.probe import Probe, accuracy, judge, read_probes


@pytest.mark.parametrize(
    "change",
    [{"document": "1"}, {"distance": float("nan")}, {"distance": 1e12}, {"word": -1}, {"sentence": None}, {"wrong": 5},
     {"wrong": [1]}, {"right": None}, {"first": "yes"}, {"phenomenon": 3}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_damaged_probes_are_named(tmp_path, change):
    probe = {"document": 0, "sentence": 0, "word": 0, "phenomenon": "p", "right": "a", "wrong": ["b"], "distance": 1}
    (tmp_path / "p").write_text(json.dumps(probe | {"first": True} | change) + "\n")
    with pytest.raises(InputError, match="p: not a probe file"):
        read_probes(tmp_path / "p")


def test_the_probe_finds_words_by_alignment_and_sorts_them():
    references = [["Eine Lampe kommt.", "Sie ist alt.", "Sie ist neu."]]
    probes = [
        Probe(0, 1, 0, "pronoun", "Sie", ["Er", "Es"], 3, True),
        Probe(0, 2, 0, "pronoun", "Sie", ["Er", "Es"], 200, False),
        Probe(0, 0, 1, "ambiguity", "Lampe", ["Leuchte"], 0, True),
    ]
    right = judge(probes, [["Eine kleine Lampe kommt . Sie ist alt .", "Er ist neu."]], references)
    assert right == [True, False, True]
    report = accuracy(probes, right)
    assert report["accuracy"] == {"all": 0.5, "pronoun": 0.5}
    assert report["by_distance"] == {"1-30": 1.0, "101-300": 0.0}
    assert report["same_sentence"] == 1.0 and report["first"] == 1.0
    assert report["chance"]["pronoun"] == pytest.approx(1 / 3)
    with pytest.raises(InputError, match="sentence 9"):
        judge([probes[0]._replace(sentence=9)], references, references)
