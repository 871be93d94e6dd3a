"""Windows for neural metrics, realignment of outputs without lines, subtitles."""

from __future__ import annotations

import pytest

from fairseq_lasformer.cli.main import main
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation import windows


def test_windows_hold_every_line_and_end_with_the_document(tmp_path, capsys):
    document = [f"line {i}." for i in range(8)]
    found = windows.windows([document, ["a"]], [document, ["a"]], [document, ["a"]], 3, 3)
    assert [(w.document, w.first) for w in found] == [(1, 1), (1, 4), (1, 6), (2, 1)]
    assert found[2].reference == "line 5. line 6. line 7." and found[3].source == "a"
    with pytest.raises(InputError, match=r"document 1 has 8 \(source\), 1 \(translation\)"):
        windows.windows([["a"]], [document], [document])
    (tmp_path / "ref").write_text("\n".join(document) + "\n")
    command = ["score", str(tmp_path / "ref"), str(tmp_path / "ref"), "--source", str(tmp_path / "ref")]
    assert main([*command, "--windows", str(tmp_path / "w.tsv"), "--window-lines", "4"]) == 0
    rows = [line.split("\t") for line in (tmp_path / "w.tsv").read_text().splitlines()]
    assert rows[0] == ["document", "first", "source", "hypothesis", "reference"] and len(rows) == 3
    assert rows[2][1] == "5" and "2 windows of 4 lines" in capsys.readouterr().out


def test_comet_says_what_is_missing(tmp_path, capsys):
    pytest.importorskip("sacrebleu")
    try:
        import comet  # noqa: F401

        pytest.skip("COMET is here")
    except ImportError:
        pass
    (tmp_path / "ref").write_text("a\n")
    command = ["score", str(tmp_path / "ref"), str(tmp_path / "ref"), "--source", str(tmp_path / "ref")]
    assert main([*command, "--comet", "wmt22"]) == 1
    assert "--comet: needs the package unbabel-comet" in capsys.readouterr().err


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


SRT = "1\n00:00:01,000 --> 00:00:03,000\nHello there,\nmy friend.\n\n2\n00:00:04,000 --> 00:00:06,000\n{}\n"


def test_subtitles_are_scored_with_their_times(tmp_path, capsys):
    pytest.importorskip("suber")
    for name, last in (("ref", "Goodbye now."), ("same", "Goodbye now."), ("other", "Good day.")):
        (tmp_path / f"{name}.srt").write_text(SRT.format(last))
    files = [str(tmp_path / f"{name}.srt") for name in ("ref", "same", "other")]
    assert main(["score", *files]) == 0
    same, other = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[1:3])
    assert same == 0 and 10 < other < 60
    (tmp_path / "bad.srt").write_text("no subtitles\n")
    assert main(["score", files[0], str(tmp_path / "bad.srt")]) == 1
    assert "bad.srt" in capsys.readouterr().err
    assert main(["score", files[0]]) == 1
    assert "also name the translated subtitles" in capsys.readouterr().err
