"""A subword model and a dictionary for each language."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fairseq.data import Dictionary
from helpers import read_split, train, write_corpus

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.examples import ExampleCodec
from fairseq_lasformer.data.prepare import prepare, summary
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.data.subwords import DataConfig, subword_model, vocabulary


def config_of(folder, bpe: str, **options) -> PrepareConfig:
    prefixes = [(str(write_corpus(folder, name, n, seed=n)),) for name, n in (("train", 12), ("test", 3))]
    given = {"tokenizer": "none", "bpe": bpe, "size": 60, "workers": 1, "joined_dictionary": False} | options
    return PrepareConfig("xx", "yy", prefixes[0], (), prefixes[1], folder / "data", **given)


@pytest.mark.parametrize("bpe", ["sentencepiece", "subword-nmt"])
def test_each_language_has_its_own_words(tmp_path, bpe):
    config = config_of(tmp_path, bpe)
    done = prepare(config)
    source, target = (Dictionary.load(str(config.out / f"dict.{la}.txt")) for la in ("xx", "yy"))
    words = [{d[i] for i in range(4, len(d)) if not d[i].startswith("madeupword")} for d in (source, target)]
    assert not any("W" in word for word in words[0]) and not any("w" in word for word in words[1])
    assert len(done.vocabulary) == 2 and "dictionaries: " in summary(config, done)
    assert not subword_model(config.out, bpe).exists()
    codec = ExampleCodec.load(config.out)
    text = (tmp_path / "test.yy").read_text().split("\n")
    for line in filter(None, text):
        assert codec.decode_line(codec.encode_target(line)) == line
    assert codec.encode_source("w1 w2") != codec.encode_target("w1 w2")
    encoded = [s for line in read_split(config.out, "test", "yy") for s in codec.decode(line)]
    assert encoded == [line for line in text if line]


def test_other_data_reuses_both_models(tmp_path):
    config = config_of(tmp_path, "sentencepiece")
    prepare(config)
    again = replace(config, out=tmp_path / "again", size=None, reuse=config.out, joined_dictionary=None, limit=20)
    prepare(again)
    assert not DataConfig.load(again.out).joined_dictionary
    for name in ("sentencepiece.xx.model", "sentencepiece.yy.model", "dict.xx.txt", "dict.yy.txt"):
        assert (again.out / name).read_bytes() == (config.out / name).read_bytes()
    with pytest.raises(InputError, match="--joined-dictionary True"):
        prepare(replace(again, out=tmp_path / "joined", joined_dictionary=True))
    (config.out / "sentencepiece.yy.model").write_bytes(b"damaged")
    with pytest.raises(InputError, match="sentencepiece.yy.model: damaged"):
        ExampleCodec.load(config.out)


def test_a_dictionary_holds_every_piece_of_its_sentencepiece_model(tmp_path):
    config = config_of(tmp_path, "sentencepiece", size=90)
    prepare(config)
    for language in ("xx", "yy"):
        words = Dictionary.load(str(config.out / f"dict.{language}.txt"))
        pieces = vocabulary(subword_model(config.out, "sentencepiece", language))
        assert len(pieces) > 25 and all(words.index(piece) != words.unk() for piece in pieces)


@pytest.mark.command
def test_lasformer_train_shares_what_can_be_shared(tmp_path):
    from fairseq_lasformer.experiments.settings import TrainOptions

    config = config_of(tmp_path, "sentencepiece")
    prepare(config)
    command = TrainOptions(arch="lasformer_tiny").command(config.out, tmp_path / "model")
    assert "--share-decoder-input-output-embed" in command and "--share-all-embeddings" not in command
    done = train(config.out, tmp_path / "model", "--max-update", 1, check=False)
    assert "the two dictionaries differ" in done.stderr
