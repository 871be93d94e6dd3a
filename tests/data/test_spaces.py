"""Spaces and invisible characters: words stay apart where a reader sees a space, in training as in translation."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from fairseq_lasformer.data.subwords import DataConfig, Encoding, SubwordCodec, learn_subwords, subword_model, tokenize
from fairseq_lasformer.formats import read
from fairseq_lasformer.formats.sentences import sentences, splitter
from fairseq_lasformer.text.lines import clean_line, with_plain_letters

TOKENIZERS = ("moses", "moses-aggressive", "none")
SPACES = [c for c in map(chr, range(sys.maxunicode + 1)) if c.isspace() and c != "\n"]
FORMATS = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) == "Cf"]
SEPARATES = "\u200b"
"""The one character of category Cf that separates words (in Khmer and Thai)."""

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


@pytest.fixture(scope="module", params=["subword-nmt", "sentencepiece"])
def folders(request, tmp_path_factory):
    """Prepared subwords with each tokenizer."""
    found = {}
    lines = [" ".join(WORDS[i % 8 :] + WORDS[: i % 5]) for i in range(200)]
    for tokenizer in TOKENIZERS:
        folder = tmp_path_factory.mktemp(tokenizer)
        size = 40 if request.param == "sentencepiece" else 20
        learn_subwords(subword_model(folder, request.param), lines, request.param, size)
        config = DataConfig("en", "fr", tokenizer, request.param, "<sep>", 99, "mixture", "")
        found[tokenizer] = folder, config
    return found


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_words_stay_apart_where_there_is_a_space(folders, tokenizer):
    folder, config = folders[tokenizer]
    codec = SubwordCodec.of(folder, config)
    worker = Encoding(str(folder), config, "fr")
    worker.begin()
    for character in SPACES + FORMATS:
        text = f"alpha{character}beta {character}gamma{character} delta"
        apart = character.isspace() or character == SEPARATES
        expected = ["alpha", "beta", "gamma", "delta"] if apart else ["alphabeta", "gamma", "delta"]
        (trained,) = worker([tokenize(text, "fr", tokenizer)], lambda n: None)
        assert codec.encode(text, "fr") == trained, f"U+{ord(character):04X}"
        assert trained.split() == trained.split(" ")  # what the data preparation stores
        if clean_line(text).split() == expected:
            assert codec.decode(trained, "fr").split() == expected, f"U+{ord(character):04X}"
        else:  # letters for those that join or shape letters stay with them
            assert character in clean_line(text) and len(clean_line(text).split()) == 3, f"U+{ord(character):04X}"


@pytest.mark.parametrize("character", "\u00ad\u200e\u200f\u2060\u034f\u202a\u202c\u2066\u2069\ufeff")
def test_invisible_characters_change_no_sentence(character):
    marked = f"{character}The friend{character}ly man speaks.{character} He buys a bridge.{character}"
    for form, data in (("text", marked.encode()), ("html", f"<p>{marked}</p>".encode())):
        (block,) = read(b"\n" + data, form).blocks
        found = [sentence.text for sentence in sentences(block, splitter("en"))]
        assert found == ["The friendly man speaks.", "He buys a bridge."]


def test_forms_of_letters_are_one():
    unknown, known = (lambda letters: True), (lambda letters: False)
    for text, plain in (("ﬁnd ﬂour", "find flour"), ("Ｗｉｆｉ", "Wifi"), ("twenty\u2011one", "twenty-one")):
        assert with_plain_letters(text, unknown) == plain and with_plain_letters(text, known) == text
        assert clean_line(text) == text  # other models may have learned them
    assert clean_line("Bru\u0308cke") == "Br\u00fccke"
    assert clean_line("２０２６年，你好！") == "２０２６年，你好！"  # digits and punctuation of Chinese stay
    assert clean_line("නිකුත්\u200dව") == "නිකුත්\u200dව"  # joiners change letters
