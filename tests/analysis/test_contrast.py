"""Contrastive sets: scores, and files that do not fit together."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import run

from fairseq_lasformer.analysis import contrast
from fairseq_lasformer.errors import InputError
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
    groups = contrast.read_groups(write_set(tmp_path, LINES, "0\n2\n5\n", "1\n0\n"), "xx", "yy")
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
        "lasformer", "contrast", trained_folder / "checkpoint_last.pt", tmp_path / "set", "--json", tmp_path / "j"
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
        contrast.read_groups(write_set(tmp_path, lines, groups), "xx", "yy")
