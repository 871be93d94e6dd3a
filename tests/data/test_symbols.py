"""Text that looks like one of fairseq's symbols survives; separators that cannot work are refused."""

from __future__ import annotations

import pytest
from helpers import read_split
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.data.subwords import SubwordCodec, check_separator, learn_subwords, subword_model


@pytest.mark.parametrize("bpe", ["subword-nmt", "sentencepiece"])
def test_words_that_are_symbols_survive_as_text(tmp_path, bpe):
    text = ["a <pad> b </s> <sep> c <unk> <s>", "and <pad> </s> again <sep>", "no symbols p a d s e p u n k / < >"] * 9
    learn_subwords(subword_model(tmp_path, bpe), text, bpe, 60)
    codec = SubwordCodec(tmp_path, "none", bpe, ["<sep>"])
    for sentence in text[:3]:
        tokens = codec.encode(sentence, "en").split()
        assert not set(tokens) & {"<s>", "<pad>", "</s>", "<unk>", "<sep>"}
        assert codec.decode(" ".join(tokens), "en") == sentence


SYMBOLS = st.sampled_from(["<s>", "<pad>", "</s>", "<unk>", "<sep>"])


@settings(deadline=None, max_examples=60)
@given(st.lists(SYMBOLS | st.text("ab<>/sepadunk@▁ ", min_size=1, max_size=6), min_size=1, max_size=8))
def test_no_text_turns_into_a_symbol(tmp_path_factory, parts):
    folder = tmp_path_factory.getbasetemp() / "symbols"
    for bpe in ("subword-nmt", "sentencepiece"):
        if not (folder / bpe).exists():
            (folder / bpe).mkdir(parents=True)
            learn_subwords(
                subword_model(folder / bpe, bpe), ["<pad> </s> <sep> ab a b / < > @ s e p d u n k " * 3] * 9, bpe, 40
            )
        tokens = SubwordCodec(folder / bpe, "none", bpe, ["<sep>"]).encode(" ".join(parts), "en").split()
        assert not set(tokens) & {"<s>", "<pad>", "</s>", "<unk>", "<sep>"}


def test_a_corpus_full_of_symbols_is_prepared_whole(tmp_path):
    (tmp_path / "raw.xx").write_text("a <pad> b\n</s>\n\n<s> c <sep>\n" * 5)
    (tmp_path / "raw.yy").write_text("A <pad> B\n</s>\n\n<s> C <sep>\n" * 5)
    raw = str(tmp_path / "raw")
    config = PrepareConfig(
        "xx", "yy", (raw,), (), (raw,), tmp_path / "out", "none", size=20, separator="<sep>", workers=1
    )
    prepare(config)

    codec = SubwordCodec.of(config.out, config.settings())
    for line in read_split(config.out, "test", "xx"):
        assert "<pad>" not in line.split() and "</s>" not in line.split()
        assert all(codec.decode(s, "xx") in ("a <pad> b", "</s>", "<s> c <sep>") for s in line.split("<sep>"))


@pytest.mark.parametrize(
    "separator", ["</s>", "<unk>", "<pad>", "a b", " ", "\t", "\u3000", "\n", ".", ";", "x@@", "▁x", "\x07\x07"]
)
def test_separators_that_would_break_something_are_refused(separator):
    with pytest.raises(InputError, match="--separator"):
        check_separator(separator)
