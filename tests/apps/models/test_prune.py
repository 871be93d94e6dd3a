"""Smaller checkpoints: the groups and heads that remain, and everything else unchanged."""

from __future__ import annotations

import pytest
import torch
from helpers import train

from fairseq_lasformer.apps.models.dense_start import write_start
from fairseq_lasformer.apps.models.prune import _cut, importance, prune
from fairseq_lasformer.apps.models.start_options import StartOptions
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.documents.hub import from_pretrained, load_model
from fairseq_lasformer.documents.scoring import log_probabilities
from fairseq_lasformer.evaluation.calibration import calibration


@pytest.fixture(scope="module")
def deep(prepared, tmp_path_factory):
    """A model with three groups of layers on each side and four heads."""
    folder = tmp_path_factory.mktemp("deep")
    sizes = [f"--{side}-{k}" for side in ("encoder", "decoder") for k in ("layers=3", "attention-heads=4")]
    train(prepared, folder, *sizes, "--select-share", 1, "--max-update", 8, "--lr", 0.01, "--group-drop", 0.2)
    return folder / "checkpoint_last.pt"


def model_of(path, prepared):
    return from_pretrained(path, data=prepared).eval()


def test_what_remains_of_groups_is_as_it_was(deep, prepared, tmp_path):
    told = prune(deep, tmp_path / "small.pt", groups="encoder.0, encoder.2,decoder.1")
    assert "bits per token before" in told and "--finetune-from-model" in told and "--encoder-layers 2" in told
    whole, small = (model_of(path, prepared) for path in (deep, tmp_path / "small.pt"))
    model, its = whole.models[0], small.models[0]
    assert [len(side.layers) for side in (its.encoder, its.decoder)] == [2, 1]
    for side, kept in (("encoder", (0, 2)), ("decoder", (1,))):
        layers = getattr(model, side).layers
        for new, old in enumerate(kept):
            ours, theirs = getattr(its, side).layers[new].state_dict(), layers[old].state_dict()
            assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    # the same as if the others had been left out of the pass
    examples = list(calibration(whole.task))[:4]
    for side, kept in (("encoder", (0, 2)), ("decoder", (1,))):
        stack = getattr(model, side).layers
        groups = list(stack.groups())
        stack.groups = lambda groups=groups, kept=kept: (groups[i] for i in kept)
    words, model.decoder.packed = whole.task.target_dictionary, None  # which knows nothing of groups that are left out
    for mine, expected in zip(*(log_probabilities(m, words, examples, 4096, "cpu") for m in (its, model))):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)
    text = "w1 w2 w3\nw4 w5"
    assert load_model(tmp_path / "small.pt", data=prepared).translate_documents([text], beam=2)[0].count("\n") == 1


@pytest.mark.command
def test_importance_is_the_first_order_effect_of_leaving_a_head_out(deep, prepared):
    """By finite differences, for one attention."""
    found = importance(deep, prepared)
    assert len(found) == 9 and all(scores.shape == (4,) for scores in found.values())
    hub = model_of(deep, prepared)
    model, eos = hub.models[0].double(), hub.task.target_dictionary.eos()
    place, step = ("decoder", "encoder_attn", 1), 1e-4
    projection = model.decoder.layers[1].encoder_attn.out_proj
    weight = projection.weight.detach().clone()

    def loss(source, target, head, by):
        scale = torch.ones(4, dtype=torch.float64)
        scale[head] += by
        projection.weight.data = (weight.unflatten(1, (4, -1)) * scale[:, None]).flatten(1)
        previous = torch.cat([target.new_tensor([eos]), target[:-1]])
        logits = model(source[None], torch.tensor([len(source)]), previous[None])[0]
        return float(torch.nn.functional.cross_entropy(logits[0], target))

    with torch.no_grad():
        effects = [
            sum(abs(loss(*pair, head, step) - loss(*pair, head, -step)) / (2 * step) for pair in calibration(hub.task))
            for head in range(4)
        ]
    torch.testing.assert_close(found[place].double(), torch.tensor(effects).double(), rtol=2e-2, atol=1e-4)


@pytest.mark.command
def test_the_heads_that_matter_most_remain(deep, prepared, tmp_path, capsys):
    out = tmp_path / "small.pt"
    words = ["prune", str(deep), str(out), "--heads", "cross=1,encoder=3", "--data", str(prepared)]
    assert main(words) == 0
    assert "--fewer-heads encoder=3,cross=1" in capsys.readouterr().out
    before, after, scores = load(deep)["model"], load(out)["model"], importance(deep, prepared)
    for layer in range(3):
        stem = f"decoder.layers.{layer}.encoder_attn"
        best = int(scores["decoder", "encoder_attn", layer].argmax())
        rows = slice(8 * best, 8 * best + 8)
        assert torch.equal(after[f"{stem}.k_proj.weight"], before[f"{stem}.k_proj.weight"][rows])
        assert torch.equal(after[f"{stem}.out_proj.weight"], before[f"{stem}.out_proj.weight"][:, rows])
        assert after[f"encoder.layers.{layer}.self_attn.q_proj.bias"].shape == (24,)
        name = f"decoder.layers.{layer}.self_attn.q_proj.weight"
        assert torch.equal(after[name], before[name])
    # it can be pruned again, and decodes in all forms
    prune(out, tmp_path / "smaller.pt", heads="encoder=1")
    assert load(tmp_path / "smaller.pt")["cfg"]["model"]["fewer_heads"] == "encoder=1,cross=1"
    text = ["w1 w2 w3\nw4 w5", "w7"]
    plain = model_of(tmp_path / "smaller.pt", prepared).translate_documents(text, beam=2)
    packed = load_model(tmp_path / "smaller.pt", data=prepared, device="cpu")
    assert packed.translate_documents(text, beam=2) == plain
    assert len(load_model(out, data=prepared, decode_dtype="int8", device="cpu").translate_documents(text)) == 2


@pytest.mark.parametrize(
    "options, message",
    [
        ({"groups": "decoder.3"}, "there is no group decoder.3, only encoder.0 to encoder.2 and"),
        ({"groups": "cross.0"}, "there is no group cross.0"),
        ({"heads": "cross=9"}, "^--heads cross=9: cross=9: expected a module"),
        ({"heads": "cross"}, "expected a module"),
        ({}, "name --groups or --heads"),
    ],
)
def test_what_is_not_there_is_refused(deep, prepared, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        prune(deep, tmp_path / "out.pt", data=prepared, **options)
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.command
def test_attention_without_keys_is_not_cut(prepared, tmp_path):
    train(prepared, tmp_path, "--select-pattern", "performer:features=8", "--max-update", 1)
    checkpoint = tmp_path / "checkpoint_last.pt"
    with pytest.raises(InputError, match=r"--heads: not with encoder \(performer\), decoder \(performer\)"):
        prune(checkpoint, tmp_path / "out.pt", data=prepared, heads="cross=1")
    with pytest.raises(InputError, match="attends by performer"):
        write_start(checkpoint, prepared, tmp_path / "start.pt", StartOptions())


def test_heads_take_their_biases_of_other_lines_with_them():
    weights = {
        f"x.layers.0.a.{name}.{part}": torch.randn(8, 3)[:, 0]
        for name in ("q_proj", "k_proj", "v_proj")
        for part in ("bias",)
    }
    weights |= {f"x.layers.0.a.{name}.weight": torch.randn(8, 8) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    weights["x.layers.0.a.line_bias"] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    _cut(weights, "x", "a", 0, torch.tensor([0.1, 0.9, 0.2, 0.8]), 2)
    assert weights["x.layers.0.a.line_bias"].tolist() == [2.0, 4.0]


def test_heads_that_are_gone_do_not_come_back(deep, prepared, tmp_path):
    prune(deep, tmp_path / "small.pt", heads="cross=2", data=prepared)
    with pytest.raises(InputError, match="cross has 2 heads"):
        prune(tmp_path / "small.pt", tmp_path / "out.pt", heads="cross=3", data=prepared)
