"""Scores by length and by position, omissions and additions."""

from __future__ import annotations

import json

import pytest
from helpers import run

from fairseq_lasformer.evaluation import breakdown
from fairseq_lasformer.evaluation.line_alignment import align

NOUNS = (
    "cat",
    "window",
    "teacher",
    "river",
    "lamp",
    "garden",
    "engine",
    "letter",
    "mountain",
    "bottle",
    "doctor",
    "ship",
)


def sentence(i: int) -> str:
    return f"the {NOUNS[i % 12]} and the {NOUNS[(i * 5 + 3) % 12]} saw number {i * 37}"


DOCUMENT = [sentence(i) for i in range(24)]


@pytest.mark.parametrize("lost", [0, 7, 23])
def test_a_removed_sentence_is_reported_as_exactly_that_one(lost):
    shorter = DOCUMENT[:lost] + DOCUMENT[lost + 1 :]
    assert breakdown.omissions([shorter], [DOCUMENT]) == {"omitted": [(1, lost + 1)], "added": []}
    assert breakdown.omissions([DOCUMENT], [shorter]) == {"omitted": [], "added": [(1, lost + 1)]}
    # also if the number of lines is right because an extra one was made up
    padded = [*shorter, "nothing of the kind was ever written"]
    assert breakdown.omissions([padded], [DOCUMENT]) == {"omitted": [(1, lost + 1)], "added": [(1, 24)]}


def test_a_line_in_other_words_is_no_omission():
    other = [line.replace("saw number", "seen the number") for line in DOCUMENT]
    found = align(other, DOCUMENT)
    assert found.pairs == [(i, i) for i in range(24)] and not found.omitted and not found.added
    assert align([], DOCUMENT).omitted == list(range(24)) and align(DOCUMENT, []).added == list(range(24))


def test_quarters_are_those_of_the_reference():
    """Ruin one quarter: its score falls, the others stay perfect."""
    for quarter in range(4):
        ruined = [("what is this" if i * 4 // 24 == quarter else line) for i, line in enumerate(DOCUMENT)]
        found = breakdown.by_position([ruined, DOCUMENT], [DOCUMENT, DOCUMENT], "13a")
        scores = [found[name]["d_bleu"] for name in breakdown.QUARTERS]
        assert scores[quarter] < 80 and all(s == pytest.approx(100) for i, s in enumerate(scores) if i != quarter)
        assert {found[name]["documents"] for name in breakdown.QUARTERS} == {2}
    # if the numbers of lines differ, lines are aligned first
    found = breakdown.by_position([DOCUMENT[2:]], [DOCUMENT], "13a")
    assert [found[name]["d_bleu"] for name in breakdown.QUARTERS][1:] == [pytest.approx(100)] * 3
    assert found["first quarter"]["d_bleu"] < 90
    assert breakdown.by_position([DOCUMENT[:3]], [DOCUMENT[:3]], "13a") == {}  # too short for quarters


def test_the_command_prints_and_writes_them(tmp_path):
    (tmp_path / "ref").write_text("\n".join(DOCUMENT) + "\n")
    (tmp_path / "hyp").write_text("\t".join(DOCUMENT[:5] + DOCUMENT[6:]) + "\n")
    flags = ("--by-position", "--omissions", "--json", tmp_path / "j")
    done = run("lasformer", "score", tmp_path / "ref", tmp_path / "hyp", *flags)
    assert "hyp: 1 lines omitted in 1 documents: document 1 line 6" in done.stdout and "no line added" in done.stdout
    assert "hyp, last quarter: d-BLEU 100.00" in done.stdout
    system = json.loads((tmp_path / "j").read_text())["systems"]["hyp"]
    assert system["omissions"] == {"omitted": [[1, 6]], "added": []}
    assert set(system["by_position"]) == set(breakdown.QUARTERS)
