"""Scores of documents and sentences, and the bootstrap."""

from __future__ import annotations

import json

import pytest
import sacrebleu
from helpers import PDC, run

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.evaluation.scores import compare, comparison_table, score, table
from fairseq_lasformer.text.hypotheses import read_hypotheses, write_hypotheses


def test_a_system_without_boundaries_has_no_sentence_score():
    references = [["one whole sentence alone"], ["two of the", "sentences here"], ["and", "three here", "to be sure"]]
    joined = [[" ".join(d)] for d in references]
    scores = score(joined, references)
    assert scores["s_bleu"] is None and scores["s_bleu_documents"] == 0 and scores["d_bleu"] > 99
    assert "no s-BLEU, the hypotheses have no sentence boundaries" in table({"joined": scores})
    assert score(references, references)["s_bleu_documents"] == 3
    assert score(references[:1], references[:1])["s_bleu_documents"] == 1


@pytest.mark.command
@pytest.mark.skipif(not PDC.exists(), reason="the PDC test set is not at ../shared/data/pdc")
def test_score_prints_tcp_and_the_bootstrap(tmp_path):
    documents = (PDC / "test.en").read_text(encoding="utf-8").splitlines()
    (tmp_path / "ref").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    (tmp_path / "good").write_text("\n".join(documents) + "\n", encoding="utf-8")
    (tmp_path / "worse").write_text("\n".join(d.replace(" the ", " a ") for d in documents) + "\n", encoding="utf-8")
    options = ["--tcp", PDC / "test.en.candidates", "--tcp-reference", PDC / "test.en.tok"]
    done = run(
        "lasformer",
        "score",
        "--bootstrap",  # without its number it takes nothing of what follows
        tmp_path / "ref",
        tmp_path / "good",
        tmp_path / "worse",
        *options,
        "--json",
        tmp_path / "j",
    )
    assert "good: TC 100.0, CP 100.0, PT 100.0, TCP 100.0" in done.stdout and "worse: " in done.stdout
    found = json.loads((tmp_path / "j").read_text())["bootstrap"]["systems"]
    assert found["good"]["p"] is None and found["worse"]["p"] < 0.05
    done = run("lasformer", "score", tmp_path / "ref", tmp_path / "good", "--bootstrap", check=False)
    assert done.returncode == 1 and done.stderr.strip().splitlines()[-1].startswith("error: --bootstrap compares")


def test_systems_are_named_apart(tmp_path, capsys):
    for name in ("ref", "a/out.txt", "b/out.txt", "other.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Der Hund bellt.\n")
    a, b = str(tmp_path / "a/out.txt"), str(tmp_path / "b/out.txt")
    report = str(tmp_path / "j")
    assert main(["score", str(tmp_path / "ref"), a, str(tmp_path / "other.txt"), b, "--json", report]) == 0
    assert list(json.loads((tmp_path / "j").read_text())["systems"]) == [a, "other", b]
    capsys.readouterr()
    assert main(["score", str(tmp_path / "ref"), a, b, a]) == 1
    assert capsys.readouterr().err == f"error: {a}: given 2 times; give each file once\n"


def test_the_bootstrap_tells_a_difference_from_none():
    references = [[f"the {w} of day {i} is long and good"] for i, w in enumerate(["sun", "moon", "rain", "snow"] * 6)]
    worse = [[d[0].replace("long", "short")] for d in references]
    first, second = [*worse[:4], *references[4:]], [*references[:4], *worse[4:8], *references[8:]]
    found = compare({"first": first, "second": second, "worse": worse}, references, samples=200)
    assert found["systems"]["worse"]["p"] < 0.01 < 0.2 < found["systems"]["second"]["p"]
    assert 90 < found["systems"]["first"]["d_bleu"] < 100 and "bs:200" in found["signature"]
    assert "worse: " in comparison_table(found)


REFERENCES = [["Der Hund bellt.", "Er ist laut."], ["Das ist gut, sagte sie."]]


def test_the_reference_scores_a_hundred_and_case_counts_where_said():
    assert score(REFERENCES, REFERENCES)["d_bleu_cased"] == pytest.approx(100)
    lowered = score([[s.lower() for s in d] for d in REFERENCES], REFERENCES)
    assert lowered["d_bleu"] == pytest.approx(100) and lowered["d_bleu_cased"] < 90
    assert lowered["s_bleu"] == pytest.approx(100) and lowered["s_bleu_documents"] == 2


def test_d_bleu_takes_documents_and_s_bleu_sentences():
    hypotheses = [["Der Hund bellt.", "Sie ist laut."], ["Das ist nicht gut, sagte er."]]
    seen = score(hypotheses, REFERENCES)
    joined = [[" ".join(d) for d in side] for side in (hypotheses, REFERENCES)]
    flat = [[s for d in side for s in d] for side in (hypotheses, REFERENCES)]
    assert seen["d_bleu"] == sacrebleu.corpus_bleu(joined[0], [joined[1]], lowercase=True).score
    assert seen["s_bleu"] == sacrebleu.corpus_bleu(flat[0], [flat[1]], lowercase=True).score
    assert seen["chrf"] == sacrebleu.corpus_chrf(joined[0], [joined[1]]).score
    assert "nrefs:1" in seen["signatures"]["d_bleu"]


def test_s_bleu_is_over_the_documents_that_agree():
    references = [*REFERENCES, ["Noch eins.", "Und Schluss."]]
    seen = score([["Der Hund bellt. Er ist laut."], REFERENCES[1], references[2]], references)
    assert seen["s_bleu_documents"] == 2 and seen["s_bleu"] == pytest.approx(100)
    assert "sentence counts differ in 1 documents" in table({"x": seen})
    assert score([["x"], ["y", "z"]], REFERENCES)["s_bleu"] is None


def test_no_document_may_be_missing(tmp_path):
    with pytest.raises(InputError, match="1 hypotheses for 2 .* document\\(s\\) 2 to 2"):
        score(REFERENCES[:1], REFERENCES)
    write_hypotheses(tmp_path / "h", [["a", "b"], [""]])
    with pytest.raises(InputError, match="h:2: no hypothesis for document\\(s\\) 2"):
        read_hypotheses(tmp_path / "h")
    assert read_hypotheses(tmp_path / "h", allow_empty=True) == [["a", "b"], [""]]
