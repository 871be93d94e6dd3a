"""The contrastive set of pronouns: what is exchanged for what, and the files that come out."""

import pytest

from benchmarks import pronoun_set
from benchmarks.pronoun_set import exchanged
from fairseq_lasformer.analysis.contrast import pronoun
from fairseq_lasformer.analysis.contrast_sets import read_groups


@pytest.mark.parametrize(
    "line, expected",
    [
        ("He went home.", ("he", ["She went home.", "It went home."])),
        ("Then she's late", ("she", ["Then he's late", "Then it's late"])),
        ("They are here.", ("they", ["We are here.", "You are here."])),
        ("They left.", ("they", ["We left.", "You left.", "I left."])),
        ("No. I left, too.", ("I", ["No. They left, too.", "No. We left, too.", "No. You left, too."])),
        ("If you go, wait", ("you", ["If they go, wait", "If we go, wait", "If I go, wait"])),
        ("Tell him.", ("he", ["Tell them.", "Tell us.", "Tell me.", "Tell you."])),
        ("I'm late", None),  # the verb tells
        ("I was late", None),
        ("Are you late?", None),
        ("Give it away", None),
        ("He has his hat", None),
        ("He saw her", None),
        ("Nobody here", None),
    ],
)
def test_a_pronoun_is_exchanged_for_those_of_the_same_agreement(line, expected):
    assert exchanged(line) == expected


def test_the_set_is_read_by_score_contrast(tmp_path, monkeypatch, capsys):
    (tmp_path / "test.zh").write_text("一\n二\n他来了\n\n三\n")
    (tmp_path / "test.en").write_text("One.\nShe came.\nHe came.\n\nWe left them.\n")
    monkeypatch.setattr("sys.argv", ["pronoun_set", str(tmp_path / "test"), str(tmp_path / "set"), "--lines", "1"])
    pronoun_set.main()
    (group,) = read_groups(tmp_path / "set", "zh", "en")
    assert [c.target for c in group.candidates] == ["She came.", "He came.", "It came."]
    assert {(c.source_context, c.source, c.target_context) for c in group.candidates} == {(("一",), "二", ("One.",))}
    assert pronoun(group) == "she" and (tmp_path / "set.pronouns").read_text() == "she\n"
    assert "1 groups, 3 candidates; chance 0.333" in capsys.readouterr().out
