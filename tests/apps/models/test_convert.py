"""fairseq's Transformer as lasformer_dense: the same scores and translations, and refusals by name."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils, models
from fairseq.data import Dictionary
from helpers import run, tokens

from fairseq_lasformer.apps.models.convert import convert
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.plugin.model import LasformerModel


@pytest.fixture
def stock(checkpoint, prepared, tmp_path):
    """stock(**options): the path of a checkpoint of fairseq's transformer with random weights, and its model."""

    def make(**options):
        state = load(checkpoint)
        cfg = Namespace(**vars(state["cfg"]["model"]) | options)
        dictionary = Dictionary.load(str(prepared / "dict.xx.txt"))
        task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
        torch.manual_seed(5)
        model = models.build_model(Namespace(**vars(cfg)), task).eval()
        path = tmp_path / "stock.pt"
        torch.save(state | {"cfg": state["cfg"] | {"model": cfg}, "model": model.state_dict()}, path)
        return path, model

    return make


def converted(path, prepared, *keep):
    out = path.with_name("converted.pt")
    text = convert(path, out, *keep)
    found, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(out)], {"data": str(prepared)})
    assert isinstance(found[0], LasformerModel) and not list(found[0].selectors()) and "random tokens" in text
    return found[0].eval()


@torch.no_grad()
def assert_alike(model, stock):
    source, target = tokens(2, 20, pad_left=(0, 6)), tokens(2, 15)
    torch.testing.assert_close(model(source, None, target)[0], stock(source, None, target)[0], rtol=1e-4, atol=1e-5)


OPTIONS = {
    "post-norm": {},
    "pre-norm": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "no positions": {"no_token_positional_embeddings": True},
    "separate words": {"share_all_embeddings": False, "share_decoder_input_output_embed": False},
    "norm of the words": {"layernorm_embedding": True, "no_scale_embedding": True},
    "gelu": {"activation_fn": "gelu"},
    "no final norm": {"decoder_normalize_before": True, "no_decoder_final_norm": True},
    "wider": {"encoder_attention_heads": 4, "decoder_ffn_embed_dim": 48, "encoder_layers": 3},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_scores_are_those_of_fairseq(stock, prepared, options):
    path, model = stock(**options)
    assert_alike(converted(path, prepared), model)


def test_layers_that_layer_drop_removed_stay_removed(stock, prepared):
    path, whole = stock(encoder_layers=4, decoder_layers=3)
    pruned = converted(path, prepared, ("0,2", "0,2"))
    assert (len(pruned.encoder.layers), len(pruned.decoder.layers)) == (2, 2)
    for side, kept in (("encoder", [0, 2]), ("decoder", [0, 2])):
        layers = getattr(whole, side).layers
        getattr(whole, side).layers = torch.nn.ModuleList([layers[i] for i in kept])
    whole.encoder.num_layers = whole.decoder.num_layers = 2
    assert_alike(pruned, whole)


@pytest.mark.command
def test_translations_are_those_of_fairseq(checkpoint, prepared, tmp_path):
    out = tmp_path / "converted.pt"
    told = run("lasformer", "convert", checkpoint, out).stdout
    assert "lasformer_dense, 2+2 layers of 32" in told
    common = ["--cpu", "--beam", 3, "--user-dir", "fairseq_lasformer", "--task", "document_translation"]
    common += ["--align-sentences", "no"]
    texts = []
    for path in (checkpoint, out):
        done = run("fairseq-generate", prepared, "--path", path, *common)
        texts.append(sorted(line.split("\t")[::2] for line in done.stdout.splitlines() if line.startswith("H-")))
    assert len(texts[0]) > 5 and texts[0] == texts[1]


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"arch": "transformer_lm", "_name": "transformer_lm"}, "checkpoint of transformer_lm; expected fairseq's"),
        ({"arch": "lasformer_tiny", "_name": "lasformer_tiny"}, "lasformer_tiny already"),
        ({"adaptive_softmax_cutoff": "10,20"}, "adaptive-softmax-cutoff"),
        ({"no_cross_attention": True}, "no-cross-attention"),
        ({"encoder_embed_dim": 64}, "fairseq cannot build it"),
    ],
)
def test_what_cannot_be_converted_is_refused_by_name(checkpoint, tmp_path, options, reason):
    state = load(checkpoint)
    cfg = Namespace(**vars(state["cfg"]["model"]) | options)
    path = tmp_path / "other.pt"
    torch.save(state | {"cfg": state["cfg"] | {"model": cfg}}, path)
    with pytest.raises(InputError, match=reason):
        convert(path, tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_another_task_is_refused_and_no_checkpoint_replaces_itself(checkpoint, tmp_path):
    state = load(checkpoint)
    path = tmp_path / "task.pt"
    task = {"_name": "language_modeling", "data": ""}
    torch.save(state | {"cfg": state["cfg"] | {"task": task}}, path)
    with pytest.raises(InputError, match="its task is language_modeling"):
        convert(path, tmp_path / "out.pt")
    with pytest.raises(InputError, match="is the checkpoint to convert"):
        convert(path, path)
