"""ctxpro's sets: the package's rule, and its numbers on real outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import ROOT

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.evaluation import ctxpro

SETS = ROOT.parent / "shared" / "data" / "ctxpro"

# of ctxpro 0.0.5: ctxpro score -e SET.json -t OUTPUT -l de -c
PACKAGE = {
    ("auxiliary", "contexts"): 434,
    ("auxiliary", "sentences"): 76,
    ("formality", "contexts"): 493,
    ("formality", "sentences"): 638,
}


@pytest.mark.skipif(not SETS.is_dir(), reason="the sets are not here")
@pytest.mark.parametrize("name, kind", PACKAGE)
def test_the_numbers_are_those_of_the_package(name, kind, capsys):
    pytest.importorskip("sentence_splitter")
    assert main(["score", "--ctxpro", str(SETS / f"{name}.json"), str(SETS / f"{name}.deepl.{kind}.de")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"accuracy: {PACKAGE[name, kind]} / 1000"
    counts = [line.rpartition(": ")[2].split(" / ") for line in lines[:-1] if not line.startswith("distance")]
    assert [sum(int(n) for n in column) for column in zip(*counts)] == [PACKAGE[name, kind], 1000]


def test_a_form_is_a_whole_word_of_the_last_line():
    assert ctxpro.passes("-Ja, das GEHT.", "geht") and ctxpro.passes("geht's? Geht!", "geht")
    assert not ctxpro.passes("Es geht's.", "geht") and not ctxpro.passes("ergeht", "geht")
    items = [ctxpro.Item("geht", "a", 1), ctxpro.Item("geht", "a", 2), ctxpro.Item("sie", "b")]
    found = ctxpro.evaluate([["Es geht.", "Ja. Nein."], ["Nein.", "Es geht. Ja."], ["x", "Sie!"]], items, "")
    assert found == {
        "right": 2,
        "total": 3,
        "by_rule": {"a": [1, 2], "b": [1, 1]},
        "by_distance": {"1": [0, 1], "2": [1, 1]},
    }
    assert ctxpro.text(found).splitlines()[-1] == "accuracy: 2 / 3"


def test_bad_sets_are_refused(tmp_path: Path, capsys):
    good = [{"expected": "a", "rule": "r", "document id": "de-en/1"}] * 2
    (tmp_path / "good.json").write_text(json.dumps(good))
    assert ctxpro.read_set(tmp_path / "good.json") == ([ctxpro.Item("a", "r")] * 2, "de")
    for name, text in (("a", "[]"), ("b", "{}"), ("c", "no"), ("d", '[{"rule": 1}]'), ("e", "[" * 100_000)):
        (tmp_path / f"{name}.json").write_text(text)
        with pytest.raises(InputError, match=f"{name}.json: not a set of ctxpro"):
            ctxpro.read_set(tmp_path / f"{name}.json")
    (tmp_path / "out").write_text("a\tb\nc\td\ne\tf\n")
    assert main(["score", "--ctxpro", str(tmp_path / "good.json"), str(tmp_path / "out")]) == 1
    assert "3 translations for 2 examples" in capsys.readouterr().err
    assert main(["score", "--ctxpro", str(tmp_path / "good.json"), "x", "y"]) == 1
    assert "expected only the translations" in capsys.readouterr().err


def test_languages_that_the_splitter_does_not_know_are_named():
    pytest.importorskip("sentence_splitter")
    with pytest.raises(InputError, match="--target-lang xx: sentence-splitter does not know it"):
        ctxpro.evaluate([["a"]], [ctxpro.Item("a", "r")], "xx")
