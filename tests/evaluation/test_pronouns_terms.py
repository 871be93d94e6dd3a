"""Pronouns that the source leaves out, and terms."""

from __future__ import annotations

import pytest

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.evaluation import pronouns, terms
from fairseq_lasformer.search.glossary import Glossary
from fairseq_lasformer.text.terms import term_pattern

SOURCE = ["他来了", "走了", "知道吗"]
REFERENCE = ["He came.", "He's gone, and they left me.", "Do you know her?"]


def test_recall_is_counted_by_whether_the_source_has_a_pronoun():
    ours = ["He came with him.", "She is gone, they left.", "Do you know it?"]
    found = pronouns.summary(pronouns.evaluate([ours], [REFERENCE], [SOURCE]))
    assert found["counts"] == {
        pronouns.WITH: {"he": [1, 1]},
        pronouns.WITHOUT: {"he": [0, 1], "they": [1, 1], "I": [0, 1], "you": [1, 1]},
    }
    assert found["recall"] == {pronouns.WITH: 1.0, pronouns.WITHOUT: 0.5}
    assert "source has none: pronouns found 50.0% (he 0/1, they 1/1, I 0/1, you 1/1)" in pronouns.text("x", found)
    with pytest.raises(InputError, match="document 1 has 2"):
        pronouns.evaluate([ours[:2]], [REFERENCE], [SOURCE])


def test_german_pronouns_are_counted_by_whether_the_source_has_it():
    source = ["Close it.", "It saves Sie and them.", "Do you want to?", "A site."]
    reference = ["Schließen Sie ihn.", "Er schließt sie und es.", "Möchten Sie es?", "Sie ist ein Ort."]
    ours = ["Schließen Sie er.", "Sie und sie.", "Möchten Sie das?", "es"]
    found = pronouns.summary(pronouns.evaluate([ours], [reference], [source], "de"))
    assert found["counts"] == {
        pronouns.WITH: {"er": [1, 2], "sie": [1, 1], "es": [0, 1]},
        pronouns.WITHOUT: {"es": [0, 1]},
    }
    assert "(er 1/2, sie 1/1, es 0/1)" in pronouns.text("x", found)
    with pytest.raises(InputError, match="--pronouns: knows only en, de as --target-lang, not fr"):
        pronouns.evaluate([ours], [reference], [source], "fr")
    with pytest.raises(InputError, match="--pronouns: the reference has none of the language en; --target-lang names"):
        pronouns.evaluate([["das"]], [["Schließen ihn."]], [["x"]])


def test_a_better_system_is_significantly_better_and_an_equal_one_is_not():
    reference, source = [["He came.", "They left."]] * 30, [["来了", "走了"]] * 30
    good = pronouns.evaluate([["He came.", "They left."]] * 30, reference, source)
    bad = pronouns.evaluate([["Came.", "They left."]] * 30, reference, source)
    assert pronouns.significance(good, bad, 200)[pronouns.WITHOUT] < 0.01
    assert pronouns.significance(bad, bad, 200)[pronouns.WITHOUT] == 1.0
    assert pronouns.significance(bad, good, 200)[pronouns.WITHOUT] == 1.0


def test_terms_count_where_they_occur_and_as_often():
    wanted = terms.grouped([("bank", "Bank"), ("post office", "Post"), ("office", "Büro"), ("office", "Amt")])
    source = ["The bank is a bank.", "The post office is no office.", "An office."]
    found = terms.evaluate([["Die Bank ist ein Ufer.", "Die Post ist kein Büro.", "Ein Amt."]], [source], wanted)
    assert found == {"found": 4, "asked": 5, "same": 2, "repeated": 4}
    # two offices, one in each form; two banks, one found
    joined = terms.evaluate([["Ein Amt. Die Post ist kein Amt. Bank, Bank."]], [source], wanted)
    assert joined == {"found": 5, "asked": 5, "same": 4, "repeated": 4}
    assert terms.text("x", found) == ("x: terms translated 80.0% (4 of 5), in one form where repeated 50.0% (2 of 4)")


@pytest.mark.parametrize(
    "term, text, n",
    [
        ("bank", "Bank banks embank bank.", 2),
        ("Bank", "Bank bank", 1),
        ("银行", "这家银行是银行", 2),
        ("C++", "C++ and C++x", 1),
    ],
)
def test_words_have_edges_where_the_script_has_spaces(term, text, n):
    assert len(term_pattern(term).findall(text)) == n


def test_the_command_reports_both(tmp_path, capsys):
    for name, lines in (("src", SOURCE), ("ref", REFERENCE), ("out", REFERENCE), ("bad", ["Came.", "Gone.", "Know?"])):
        (tmp_path / name).write_text("\n".join(lines) + "\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "terms").write_text("知道\tknow\n", encoding="utf-8")
    files = [str(tmp_path / name) for name in ("ref", "bad", "out")]
    more = ["--source", str(tmp_path / "src"), "--pronouns", "--terms", str(tmp_path / "terms"), "--bootstrap", "50"]
    assert main(["score", *files, *more]) == 0
    said = capsys.readouterr().out
    assert "out: terms translated 100.0% (2 of 2)" in said and "source has none: pronouns found 0.0%" in said
    assert "source has none: pronouns found 100.0%, p = 0.0196" in said
    assert main(["score", *files, "--pronouns"]) == 1
    assert "--pronouns: also needs the source documents: --source FILE" in capsys.readouterr().err
    (tmp_path / "src").write_text("他\n", encoding="utf-8")
    assert main(["score", *files, "--pronouns", "--source", str(tmp_path / "src")]) == 1
    assert "1 documents for 2 reference documents" in capsys.readouterr().err


def test_names_are_found_with_their_translations(tmp_path, capsys):
    names = (("阿曼达", "Amanda"), ("哈罗德", "Harold"))
    lines = []
    for i in range(24):
        source, target = names[i % 2]
        thing = (("面包", "bread"), ("水果", "fruit"), ("书本", "books"))[i % 3]
        lines.append((f"{'甲乙丙丁'[i % 4]}看见{source}拿着{thing[0]}", f"Then he saw {target} and {thing[1]}"))
    for side, language in enumerate(("zh", "en")):
        (tmp_path / f"set.{language}").write_text("".join(line[side] + "\n" for line in lines), encoding="utf-8")
    command = ["score", "terms", str(tmp_path / "set"), str(tmp_path / "out"), "-s", "zh", "-t", "en"]
    assert main(command) == 0
    found = dict(line.split("\t")[::-1] for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines())
    assert found.keys() == {"Amanda", "Harold"} and all(found[t] in f"看见{s}拿着" and s in found[t] for s, t in names)
    assert main([*command, "--random", "1", "--overwrite"]) == 0
    drawn = dict(line.split("\t")[::-1] for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines())
    assert len(drawn) == 2 and drawn.keys() < {"bread", "fruit", "books"}
    # two words that always come together are translations of one: a glossary takes one of them
    for side, language in enumerate(("zh", "en")):
        lines = [(line[0], line[1].replace("bread", "fresh bread")) for line in lines]
        (tmp_path / f"set.{language}").write_text("".join(line[side] + "\n" for line in lines), encoding="utf-8")
    for seed in "1234":
        assert main([*command, "--random", seed, "--overwrite"]) == 0
        assert len(Glossary.read(tmp_path / "out").translations) == 2
    assert main([*command, "--least", "30", "--overwrite"]) == 1
    assert "no term occurs in 30 lines" in capsys.readouterr().err
