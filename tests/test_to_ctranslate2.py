"""Models converted to CTranslate2 for benchmarks: the same scores and translations."""

from __future__ import annotations

import pytest
import torch
from tiers import thinned

ctranslate2 = pytest.importorskip("ctranslate2")
transformers = pytest.importorskip("transformers")

from apps.models.hf_models import FAMILIES, lines  # noqa: E402

from benchmarks.to_ctranslate2 import to_ctranslate2  # noqa: E402
from fairseq_lasformer.apps.models.huggingface.importing import import_model  # noqa: E402
from fairseq_lasformer.base.errors import InputError  # noqa: E402
from fairseq_lasformer.checkpoints.loading import load  # noqa: E402
from fairseq_lasformer.documents.hub import from_pretrained  # noqa: E402
from fairseq_lasformer.documents.scoring import log_probabilities  # noqa: E402
from fairseq_lasformer.ops import KAPPA_ONE  # noqa: E402


@pytest.fixture(scope="module", params=thinned(FAMILIES, "marian"))
def imported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(1)
    original = FAMILIES[request.param](folder)
    if original.model.config.encoder_attention_heads != original.model.config.decoder_attention_heads:
        pytest.fail("CTranslate2 has one number of heads")
    import_model(folder, folder / "out", original.languages, check=False)
    return folder / "out"


def test_scores_and_translations_are_equal(imported, tmp_path):
    told = to_ctranslate2(imported, tmp_path / "out")
    ours = from_pretrained(imported).eval()
    there = ctranslate2.Translator(str(tmp_path / "out"), inter_threads=1, intra_threads=1)
    tag = ours.settings.target_tag
    assert (tag in told) if tag else "target_prefix" not in told
    for line in lines()[:1000:50]:
        words = [*ours.codec.join([ours.codec.encode_source(line)], 0).split()[-60:], "</s>"]
        (found,) = there.translate_batch(
            [words], target_prefix=[[tag]] if tag else None, beam_size=1, max_decoding_length=30
        )
        source = torch.tensor([ours.src_dict.index(word) for word in words])
        mine = ours.generate(source, beam=1, max_len_a=0, max_len_b=40)[0]["tokens"]
        expected = [ours.tgt_dict[int(i)] for i in mine if int(i) != 2]
        assert found.hypotheses[0][bool(tag) :][:29] == expected[:29], line
        (scored,) = there.score_batch([words], [found.hypotheses[0]])
        target = torch.tensor([ours.tgt_dict.index(word) for word in (*found.hypotheses[0], "</s>")])
        (scores,) = log_probabilities(ours.models[0], ours.tgt_dict, [(source, target)], 4096, "cpu")
        torch.testing.assert_close(torch.tensor(scored.log_probs), scores, rtol=1e-4, atol=1e-4)
    for path in imported.glob("*sentencepiece*"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("kind", ["int8", "float16"])
def test_weights_may_be_smaller(imported, tmp_path, kind):
    to_ctranslate2(imported, tmp_path / kind, quantisation=kind)
    whole = sum(weight.numel() * 4 for weight in load(imported / "model.pt")["model"].values())
    assert (tmp_path / kind / "model.bin").stat().st_size < whole * 0.7


def test_a_model_that_selects_is_refused(trained_folder, prepared, tmp_path):
    with pytest.raises(InputError, match="only kappa 1 can be converted"):
        to_ctranslate2(trained_folder, tmp_path / "out", prepared)
    assert not (tmp_path / "out").exists()


def test_single_lines_of_a_model_with_own_lines_are_the_same(by_lines_folder, prepared, tmp_path):
    """The other lines' biases and distances play no part in a line alone."""
    state = load(by_lines_folder / "checkpoint_last.pt")
    kappas = [name for name in state["model"] if name.endswith(".kappa")]
    for name in kappas:
        state["model"][name].fill_(KAPPA_ONE)
    torch.save(state, tmp_path / "checkpoint.pt")
    to_ctranslate2(tmp_path / "checkpoint.pt", tmp_path / "out", prepared)
    there = ctranslate2.Translator(str(tmp_path / "out"), inter_threads=1, intra_threads=1)
    ours = from_pretrained(tmp_path, "checkpoint.pt", prepared).eval()
    assert kappas and ours.models[0].cfg.own_lines
    lines = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9", "w2 w9"]
    sources = [[*ours.codec.join([ours.codec.encode_source(line)], 0).split(), "</s>"] for line in lines]
    theirs = there.translate_batch(sources, beam_size=1, max_decoding_length=20)
    scored = there.score_batch(sources, [found.hypotheses[0] for found in theirs])
    for words, found, their in zip(sources, theirs, scored, strict=True):
        source = torch.tensor([ours.src_dict.index(word) for word in words])
        target = torch.tensor([ours.tgt_dict.index(word) for word in (*found.hypotheses[0], "</s>")])
        (scores,) = log_probabilities(ours.models[0], ours.tgt_dict, [(source, target)], 4096, "cpu")
        torch.testing.assert_close(torch.tensor(their.log_probs), scores, rtol=1e-4, atol=1e-4)
