"""Discourse metrics, contrastive sets and the Python interface."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run
from test_training import train

from fairseq_lasformer import hub
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation import contrast, tcp
from fairseq_lasformer.evaluation.hypotheses import read_hypotheses
from fairseq_lasformer.evaluation.probe import read_probes
from fairseq_lasformer.evaluation.scores import compare, comparison_table
from fairseq_lasformer.model import LasformerModel

PDC = ROOT.parent / "shared" / "data" / "pdc"


def test_a_label_is_hit_within_twenty_tokens_of_its_scaled_place():
    hypothesis = [f"w{i}" for i in range(100)]
    for position, n_reference, hit in (
        (30, 100, False),
        (31, 100, True),
        (49, 100, True),
        (70, 100, True),
        (71, 100, False),
        (60, 200, False),
        (100, 200, True),
    ):
        assert tcp.hit(tcp.Label(position, ("w50",)), hypothesis, n_reference) is hit, position
    assert tcp.hit(tcp.Label(50, ("x", "w51 w52")), hypothesis, 100)
    assert not tcp.hit(tcp.Label(50, ("W50", "w5")), hypothesis, 100)  # case counts; one word is a whole token
    assert tcp.hit(tcp.Label(50, ("w50 w5",)), hypothesis, 100)  # several are a part of the joined window
    assert not tcp.hit(tcp.Label(3, ("a",)), [], 10)


@pytest.mark.skipif(not PDC.exists(), reason="the PDC test set is not at ../shared/data/pdc")
def test_tcp_gives_its_known_figures_on_the_reference():
    labels = tcp.read_labels(PDC / "test.en.candidates")
    tokens = [line.split() for line in (PDC / "test.en.tok").read_text(encoding="utf-8").splitlines()]
    whole = tcp.score(tokens, tokens, labels)
    assert (whole["TC_labels"], whole["CP_labels"], whole["PT_labels"]) == (2465, 455, 296)
    assert whole["TCP"] == pytest.approx(100)
    lowered = tcp.score([[w.lower() for w in d] for d in tokens], tokens, labels)
    assert round(lowered["TCP"], 1) == 75.1
    shuffled = list(tokens)
    random.Random(1).shuffle(shuffled)
    assert 17 < tcp.score(shuffled, tokens, labels)["TCP"] < 23
    with pytest.raises(InputError, match="148 documents: there are 147 hypotheses"):
        tcp.score(tokens[:-1], tokens, labels)


@pytest.mark.skipif(not PDC.exists(), reason="the PDC test set is not at ../shared/data/pdc")
def test_documents_are_tokenised_by_sentence_for_tcp():
    labels = tcp.read_labels(PDC / "test.en.candidates")
    references = [line.split() for line in (PDC / "test.en.tok").read_text(encoding="utf-8").splitlines()]
    documents = (PDC / "test.en").read_text(encoding="utf-8").splitlines()
    lowered = [tcp.tokenized([d.lower()]) for d in documents]
    assert round(tcp.score(lowered, references, labels)["TCP"], 1) == 75.1
    assert tcp.score([tcp.tokenized([d]) for d in documents], references, labels)["TCP"] == pytest.approx(100)


def test_sentences_known_or_not_give_the_same_tokens():
    sentences = ["it cost 5.30 in the u.s. and mr. smith paid.", 'he said "no." she left!', "(really?) yes."]
    assert tcp.tokenized(sentences) == tcp.tokenized([" ".join(sentences)])
    assert tcp.tokenized(["one."]) == ["one", "."]


@pytest.mark.skipif(not PDC.exists(), reason="the PDC test set is not at ../shared/data/pdc")
def test_tokenised_hypotheses_are_taken_as_they_are(tmp_path):
    tokens = (PDC / "test.en.tok").read_text(encoding="utf-8")
    (tmp_path / "ref").write_text(tokens.replace("\n", "\n\n"), encoding="utf-8")
    (tmp_path / "tok").write_text(tokens, encoding="utf-8")
    options = ["--tcp", PDC / "test.en.candidates", "--tcp-reference", PDC / "test.en.tok", "--tcp-tokenized"]
    done = run("lasformer", "score", tmp_path / "ref", tmp_path / "tok", *options)
    assert "tok: TC 100.0, CP 100.0, PT 100.0, TCP 100.0" in done.stdout


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


def test_the_bootstrap_tells_a_difference_from_none():
    references = [[f"the {w} of day {i} is long and good"] for i, w in enumerate(["sun", "moon", "rain", "snow"] * 6)]
    worse = [[d[0].replace("long", "short")] for d in references]
    first, second = [*worse[:4], *references[4:]], [*references[:4], *worse[4:8], *references[8:]]
    found = compare({"first": first, "second": second, "worse": worse}, references, samples=200)
    assert found["systems"]["worse"]["p"] < 0.01 < 0.2 < found["systems"]["second"]["p"]
    assert 90 < found["systems"]["first"]["d_bleu"] < 100 and "bs:200" in found["signature"]
    assert "worse: " in comparison_table(found)


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


def test_bad_candidates_are_named(tmp_path):
    (tmp_path / "c").write_text("3:a,b\nx:c\n")
    with pytest.raises(InputError, match="c:2: 'x:c' is not position"):
        tcp.read_labels(tmp_path / "c")


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    train(prepared, folder, "--max-update", 30, "--lr", 0.02, "--disable-validation")
    return folder


def write_set(folder: Path, lines: list[tuple[str, str]], groups: str, distance: str = "") -> Path:
    for i, language in enumerate(("xx", "yy")):
        (folder / f"set.{language}").write_text("".join(line[i] + "\n" for line in lines), encoding="utf-8")
    (folder / "set.groups").write_text(groups)
    if distance:
        (folder / "set.distance").write_text(distance)
    return folder / "set"


LINES = [
    ("w1 w2 <SEP> w3 w4", "W1 W2 <SEP> Er W4"),
    ("w1 w2 <SEP> w3 w4", "W1 W2 <SEP> Sie W4"),
    ("w5 w6", "W5 W6"),
    ("w5 w6", "W5 W7 W8"),
    ("w5 w6", "W5"),
]


def test_contrastive_scores_are_those_of_one_candidate_at_a_time(trained, prepared, tmp_path):
    groups = contrast.read_groups(write_set(tmp_path, LINES, "0\n2\n5\n", "1\n0\n"), "xx", "yy")
    assert [len(g.candidates) for g in groups] == [2, 3] and [g.distance for g in groups] == [1, 0]
    assert [contrast.pronoun(g) for g in groups] == ["er", "other"]
    model = LasformerModel.from_pretrained(trained)
    for policy in contrast.POLICIES:
        examples = [contrast.encoded(c, policy, model) for g in groups for c in g.candidates]
        batched = contrast.log_probabilities(model, examples, max_tokens=60)
        for (source, target, first), scores in zip(examples, batched):
            previous = torch.cat([target[-1:], target[:-1]])[None]
            out = model.models[0](source[None], torch.tensor([len(source)]), previous)
            alone = out[0].log_softmax(-1)[0].gather(1, target[:, None])[first:, 0]
            torch.testing.assert_close(scores, alone.detach(), rtol=1e-4, atol=1e-5)
        with_context = model.src_dict.string(examples[0][0])
        assert ("w1" in with_context) == (policy != "none") and (examples[0][2] > 0) == (policy == "both")
        result = contrast.evaluate(model, groups, policy)
        best = [torch.stack([s.mean() for s in batched[a:b]]).argmax() == 0 for a, b in ((0, 2), (2, 5))]
        assert result["accuracy"] == sum(best) / 2 and result["by_distance"].keys() == {"0", "1"}
    done = run("lasformer", "contrast", trained / "checkpoint_last.pt", tmp_path / "set", "--json", tmp_path / "j")
    assert all(f"context {p}: " in done.stdout for p in contrast.POLICIES) and "pronoun er" in done.stdout
    assert [r["policy"] for r in json.loads((tmp_path / "j").read_text())["results"]] == list(contrast.POLICIES)


@pytest.mark.parametrize(
    ("lines", "groups", "message"),
    [
        (LINES, "0\n2\n4\n", "must begin with 0 and end with 5"),
        (LINES, "0\n4\n5\n", "set.groups:2: a group of one line"),
        (LINES, "0\nx\n5\n", "set.groups:2: expected the number"),
        ([*LINES, ("a <SEP>", "b")], "0\n2\n6\n", "set.xx:6: no sentence behind"),
    ],
)
def test_damaged_contrastive_sets_are_refused(tmp_path, lines, groups, message):
    with pytest.raises(InputError, match=message):
        contrast.read_groups(write_set(tmp_path, lines, groups), "xx", "yy")


def test_translate_documents_gives_what_generate_gives(trained, prepared, tmp_path):
    run(
        "lasformer",
        "generate",
        prepared,
        trained / "checkpoint_last.pt",
        tmp_path / "out",
        "--shards",
        1,
        "--",
        "--cpu",
        "--beam",
        3,
    )
    expected = ["\n".join(d) for d in read_hypotheses(tmp_path / "out", allow_empty=True)]
    model = LasformerModel.from_pretrained(trained)
    raw = (prepared.parent / "raw" / "test.xx").read_text(encoding="utf-8").split("\n\n")
    assert model.translate_documents(raw, beam=3, progress=False) == expected
    # an empty document has an empty translation, wherever it stands
    mixed = ["", raw[0], " \n\n", *raw[1:]]
    assert model.translate_documents(mixed, beam=3, progress=False) == ["", expected[0], "", *expected[1:]]
    assert model.translate_documents([]) == [] and model.translate_documents(["\n"]) == [""]
    with pytest.raises(InputError, match="more than the limit"):
        model.translate_documents([" ".join(["w1"] * 40)])


@pytest.mark.parametrize(
    "documents, options, message",
    [
        ("w1 w2", {}, "not one string: wrap it"),
        (["w1"], {"lenpn": 2.0}, "lenpn: not an option of fairseq's generation; is lenpen meant?"),
        (["w1"], {"nonsense": 2.0}, "nonsense: not an option of fairseq's generation$"),
        (["w1"], {"nbest": 3}, "nbest: one translation per document"),
    ],
)
def test_mistakes_in_calls_are_named(trained, documents, options, message):
    with pytest.raises(InputError, match=message):
        LasformerModel.from_pretrained(trained).translate_documents(documents, **options)


def test_paragraphs_come_back_where_the_sentences_are_as_many(trained, monkeypatch):
    model = LasformerModel.from_pretrained(trained / "checkpoint_last.pt")
    for translated, expected in (
        (["A", "", "C"], "A\n\n\nC"),  # an empty sentence keeps its line
        (["A", "B"], "A\nB"),  # other counts: no paragraph can be placed
    ):
        monkeypatch.setattr(model, "_translate", lambda examples, *_, t=translated: [t])
        assert model.translate_documents(["w1\n\n\nw2\nw3\n"]) == [expected]


def test_from_pretrained_names_what_is_missing(tmp_path, trained):
    with pytest.raises(InputError, match="holds none of model.pt"):
        hub.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="settings.json: not found"):
        hub.from_pretrained(trained, "checkpoint_last.pt", tmp_path)
