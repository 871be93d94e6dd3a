"""Start checkpoint of a selecting model: the dense model's scores, different words, more positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers import train, write_corpus

from fairseq_lasformer.apps.models.dense_start import words_of_options, write_start
from fairseq_lasformer.apps.models.start_options import StartOptions
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.documents.hub import from_pretrained
from fairseq_lasformer.documents.scoring import log_probabilities
from fairseq_lasformer.evaluation.calibration import calibration
from fairseq_lasformer.ops import KAPPA_ONE


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Sentences without a separator, and a dense model of them with learned positions in the decoder."""
    folder = tmp_path_factory.mktemp("plain")
    prefixes = {name: str(write_corpus(folder, name, n, seed=n)) for name, n in (("train", 20), ("valid", 4))}
    corpus = {"train": (prefixes["train"],), "valid": (prefixes["valid"],), "test": ()}
    config = PrepareConfig(
        "xx", "yy", out=folder / "data", tokenizer="none", size=40, separator="", limit=30, workers=1,
        resolutions="sentences", **corpus,
    )  # fmt: skip
    prepare(config)
    options = ["--max-source-positions", 30, "--max-target-positions", 30, "--max-update", 3]
    train(folder / "data", folder / "dense", "--select-modules", "none", "--decoder-learned-pos", *options)
    reused = PrepareConfig(
        "xx", "yy", out=folder / "documents", reuse=folder / "data", separator="<sep>", limit=60,
        resolutions="mixture", workers=1, **corpus,
    )  # fmt: skip
    prepare(reused)
    return folder


OPTIONS = StartOptions(dim=8, share_loss=1.0)


def scores(checkpoint, data, examples):
    hub = from_pretrained(checkpoint, data=data).eval()
    return log_probabilities(hub.models[0], hub.task.target_dictionary, examples, 4096, "cpu")


def test_it_scores_as_the_dense_model(tmp_path, plain):
    """With the same words, and with a separator added, on text without one."""
    dense = plain / "dense/checkpoint_last.pt"
    told = write_start(dense, plain / "data", tmp_path / "same.pt", OPTIONS)
    assert "added" not in told and "become" not in told and "layers that share a selection: encoder 1-2" in told
    told = write_start(dense, plain / "documents", tmp_path / "more.pt", OPTIONS)
    assert "xx: <sep> is added" in told and "yy: <sep> is added" in told
    assert "encoder: 30 positions become 60; sinusoidal positions extend" in told
    assert "decoder: 30 positions become 60; the learned positions are stretched" in told
    hub = from_pretrained(dense)
    examples = list(calibration(hub.task, "valid"))
    assert len(examples) > 10
    expected = scores(dense, plain / "data", examples)
    torch.testing.assert_close(scores(tmp_path / "same.pt", plain / "data", examples), expected, rtol=1e-4, atol=1e-4)
    state, before = (load(path)["model"] for path in (tmp_path / "more.pt", dense))
    words = from_pretrained(tmp_path / "more.pt").task.target_dictionary
    new = words.index("<sep>")
    assert new == len(words) - 1 == len(hub.task.target_dictionary)
    for name in ("encoder.embed_tokens.weight", "decoder.output_projection.weight"):
        assert torch.equal(state[name][:-1], before[name]) and torch.equal(state[name][new], before[name][2])
    assert all(int(state[name]) == KAPPA_ONE for name in state if name.endswith("kappa"))


def test_what_does_not_fit_is_refused(checkpoint, trained_folder, plain, prepared, tmp_path):
    out, dense = tmp_path / "start.pt", plain / "dense/checkpoint_last.pt"
    with pytest.raises(InputError, match="lasformer convert"):
        write_start(checkpoint, prepared, out, OPTIONS)
    with pytest.raises(InputError, match="has selectors already"):
        write_start(trained_folder / "checkpoint_last.pt", prepared, out, OPTIONS)
    with pytest.raises(InputError, match="of its words are not in the model"):
        write_start(dense, prepared, out, OPTIONS)
    with pytest.raises(InputError, match="name its folder with --words"):
        write_start(dense, prepared, out, replace(OPTIONS, words=tmp_path))
    with pytest.raises(InputError, match="no layer encoder.9"):
        write_start(dense, plain / "data", out, replace(OPTIONS, groups="encoder.9"))
    assert not out.exists()


def test_options_of_a_model_as_words():
    words = words_of_options(
        {"encoder_layers": 2, "decoder_layers": 6, "share_all_embeddings": True, "select_groups": "", "dropout": 0.3}
    )
    assert set(words) == {
        "--encoder-layers", "2", "--share-all-embeddings", "--dropout", "0.3"
    }  # fmt: skip
