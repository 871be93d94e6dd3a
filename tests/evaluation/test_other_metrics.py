"""Realignment of outputs without lines, and what is not scored here."""

from __future__ import annotations

import pytest

from fairseq_lasformer.cli.main import main


def test_an_output_without_lines_gets_those_of_its_reference(tmp_path, capsys):
    pytest.importorskip("mweralign")
    from fairseq_lasformer.evaluation.realign import realign

    reference = ["A cat sat.", "The dog ran quickly.", "Bye, all of you."]
    whole = ["the cat sat. the dog ran away quickly. bye, all of us."]
    made = realign([whole, reference], [reference, reference])
    assert made == [["the cat sat.", "the dog ran away quickly.", "bye, all of us."], reference]
    chinese = realign([["我爱你们我们走吧再见"]], [["我爱你。", "我们走吧", "再见"]], "zh")
    assert chinese == [["我爱你们", "我们走吧", "再见"]]
    (tmp_path / "ref").write_text("\n".join(reference) + "\n")
    (tmp_path / "out").write_text(whole[0] + "\n")
    assert main(["score", str(tmp_path / "ref"), str(tmp_path / "out"), "--realign"]) == 0
    assert "no s-BLEU" not in capsys.readouterr().out


def test_subtitles_are_refused_with_the_package_that_scores_them(tmp_path, capsys):
    (tmp_path / "ref.srt").write_text("1\n00:00:01,000 --> 00:00:03,000\nHello.\n")
    assert main(["score", str(tmp_path / "ref.srt"), str(tmp_path / "ref.srt")]) == 1
    assert "use the package subtitle-edit-rate" in capsys.readouterr().err
