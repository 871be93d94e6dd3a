"""Contrastive sets: scores, and files that do not match."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers import run

from fairseq_lasformer.analysis import contrast, contrast_sets
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.plugin.model import LasformerModel


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


def test_contrastive_scores_are_those_of_one_candidate_at_a_time(trained_folder, prepared, tmp_path):
    groups = contrast_sets.read_groups(write_set(tmp_path, LINES, "0\n2\n5\n", "1\n0\n"), "xx", "yy")
    assert [len(g.candidates) for g in groups] == [2, 3] and [g.distance for g in groups] == [1, 0]
    assert [contrast.pronoun(g) for g in groups] == ["er", "other"]
    model = LasformerModel.from_pretrained(trained_folder)
    for policy in contrast.POLICIES:
        examples = [contrast.encoded(c, policy, model) for g in groups for c in g.candidates]
        batched = contrast.target_scores(model, examples, max_tokens=60)
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
    done = run(
        "lasformer",
        "score",
        "contrast",
        trained_folder / "checkpoint_last.pt",
        tmp_path / "set",
        "--json",
        tmp_path / "j",
    )
    assert all(f"context {p}: " in done.stdout for p in contrast.POLICIES) and "pronoun er" in done.stdout
    assert [r["policy"] for r in json.loads((tmp_path / "j").read_text())["results"]] == list(contrast.POLICIES)


@pytest.mark.parametrize(
    ("lines", "groups", "message"),
    [
        (LINES, "0\n2\n4\n", "must begin with 0 and end with 5"),
        (LINES, "0\n4\n5\n", "set.groups:2: a group of one line"),
        (LINES, "0\nx\n5\n", "set.groups:2: expected a line number"),
        ([*LINES, ("a <SEP>", "b")], "0\n2\n6\n", "set.xx:6: no sentence after"),
    ],
)
def test_damaged_contrastive_sets_are_refused(tmp_path, lines, groups, message):
    with pytest.raises(InputError, match=message):
        contrast_sets.read_groups(write_set(tmp_path, lines, groups), "xx", "yy")


def consistency_set(path: Path, **change) -> Path:
    items = [
        {"src": "w1 w2 _eos w3 w4", "dst": ["W1 W2 _eos W5", "W1 W2 _eos W3 W4"], "true_ind": 1, "ctx_dist": 1},
        {"src": "w1 _eos w3 w4", "dst": ["W1 _eos W4", "W2 _eos W4", "W1 _eos W5"], "true_ind": 0, "ctx_dist": 3},
    ]
    items[0] |= change
    path.write_text(json.dumps(items))
    return path


def test_consistency_sets_put_the_right_one_first(trained_folder, tmp_path):
    groups = contrast_sets.read_set(consistency_set(tmp_path / "set.json"), "xx", "yy")
    first = groups[0].candidates[0]
    assert first == (("w1 w2",), "w3 w4", ("W1 W2",), "W3 W4") and [g.distance for g in groups] == [1, 3]
    assert [contrast.differing(g) for g in groups] == [False, True]
    model = LasformerModel.from_pretrained(trained_folder)
    last, whole = (contrast.encoded(first, "both", model, w) for w in (False, True))
    assert last[2] == len(model.codec.encode_target("W1 W2").split()) + 1 and whole[2] == 0
    result = contrast.evaluate(model, groups, "both")
    assert result["groups"] == 2 and result["by_distance"].keys() == {"1", "3"}
    # the second group is judged by everything that differs
    scores = contrast.target_scores(model, [contrast.encoded(c, "both", model, True) for c in groups[1].candidates])
    best = torch.stack([s.mean() for s in scores]).argmax() == 0
    assert result["by_distance"]["3"] == (float(best), 1)
    done = run(
        "lasformer",
        "score",
        "contrast",
        trained_folder / "checkpoint_last.pt",
        tmp_path / "set.json",
        "--context",
        "both",
    )
    assert "of 2 groups" in done.stdout


@pytest.mark.parametrize("change", [{"dst": ["a"]}, {"true_ind": 9}, {"src": "a _eos"}, {"dst": 5}, {"src": None}])
def test_other_files_are_no_consistency_sets(tmp_path, change):
    with pytest.raises(InputError, match="set.json: not a consistency test set"):
        contrast_sets.read_set(consistency_set(tmp_path / "set.json", **change), "xx", "yy")
    (tmp_path / "set.json").write_text("[]")
    with pytest.raises(InputError, match="it is empty"):
        contrast_sets.read_set(tmp_path / "set.json", "xx", "yy")


def test_written_pronouns_are_counted_in_the_last_line(trained_folder, tmp_path, monkeypatch):
    groups = contrast_sets.read_groups(write_set(tmp_path, LINES, "0\n2\n5\n", "1\n0\n"), "xx", "yy")
    model = LasformerModel.from_pretrained(trained_folder)
    seen, words = [], [""]

    def translate(documents, beam, max_tokens, lines):
        seen.append(documents)
        made = type(model).translate_documents(model, documents, beam, max_tokens, lines=lines)
        assert [len(m) for m in made] == [d.count("\n") + 1 for d in documents]
        return [
            [SimpleNamespace(translation="Er")] * (len(m) - 1) + [SimpleNamespace(translation=words[0])] for m in made
        ]

    monkeypatch.setattr(model, "translate_documents", translate, raising=False)
    for words[0], right in (("Dann kam er.", 1.0), ("Dann kam sie, der.", 0.0)):
        found = contrast.generate(model, groups, "source", beam=1)
        assert (found["groups"], found["generated"]) == (1, right) and found["by_distance"] == {"1": (right, 1)}
    contrast.generate(model, groups, "none", beam=1)
    assert seen == [["w1 w2\nw3 w4"], ["w1 w2\nw3 w4"], ["w3 w4"]]
    with pytest.raises(InputError, match="--context both: with --generative"):
        contrast.generate(model, groups, "both")
    with pytest.raises(InputError, match="no group differs in one of the pronouns er, sie, es"):
        contrast.generate(model, groups[1:], "none")


def test_generative_contrast_from_the_command_line(trained_folder, tmp_path):
    prefix = write_set(tmp_path, LINES, "0\n2\n5\n")
    done = run(
        "lasformer", "score", "contrast", trained_folder / "checkpoint_last.pt", prefix, "--generative", "--beam", 1
    )
    assert done.stdout.count("of 1 pronouns translated right") == 2
