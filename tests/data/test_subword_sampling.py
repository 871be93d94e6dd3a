"""Subwords drawn at random: the right text, the right distribution, and only words in the dictionary."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.subword_sampling import BpeDropout, UnigramSampler
from fairseq_lasformer.data.subwords import learn_subwords, merges

PIECES = {"a": -2.0, "b": -1.5, "ab": -1.0, "ba": -2.5, "aba": -2.0}


def segmentations(text: str) -> list[tuple[str, ...]]:
    if not text:
        return [()]
    return [
        (text[:i], *rest) for i in range(1, len(text) + 1) if text[:i] in PIECES for rest in segmentations(text[i:])
    ]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_segmentations_are_drawn_by_their_probability(alpha):
    ways = segmentations("ababa")
    weights = [math.exp(alpha * sum(PIECES[piece] for piece in way)) for way in ways]
    draw, generator, n = UnigramSampler(PIECES, alpha), random.Random(4), 20_000
    found = Counter(tuple(draw(["abab", "a"], generator)) for _ in range(n))
    assert set(found) == set(ways) and len(ways) > 8
    for way, weight in zip(ways, weights):
        p = weight / sum(weights)
        assert abs(found[way] / n - p) < 5 * (p * (1 - p) / n) ** 0.5  # five standard deviations


def test_words_are_drawn_one_by_one_unless_a_piece_crosses_a_space(monkeypatch):
    words = {"▁": -2.0, "▁a": -1.0, "a": -1.5, "b": -2.0, "▁ab": -1.2}
    draw = UnigramSampler(words, 0.4)
    assert draw.word.findall("ab▁a▁▁ab▁") == ["ab", "▁a", "▁", "▁ab", "▁"]
    kept = [draw(["ab", "▁a", "▁", "▁ab", "▁"], random.Random(n)) for n in range(300)]
    assert all("".join(pieces) == "ab▁a▁▁ab▁" and set(pieces) <= set(words) for pieces in kept)
    assert {tuple(pieces[-3:]) for pieces in kept} == {("▁", "▁ab", "▁"), ("▁a", "b", "▁"), ("a", "b", "▁")}
    assert len(draw.lattices) == 4
    monkeypatch.setattr("fairseq_lasformer.data.subword_sampling._WORDS", 2)
    assert kept == [draw(["ab▁a▁▁ab▁"], random.Random(n)) for n in range(300)]
    few = UnigramSampler(words, 0.4)
    assert kept[:9] == [few(["ab▁a▁▁ab▁"], random.Random(n)) for n in range(9)] and len(few.lattices) <= 2
    for crossing in ("a▁b", "▁▁"):
        assert UnigramSampler(words | {crossing: -1.0}, 0.4).word.findall("ab▁a") == ["ab▁a"]


def test_unknown_characters_stay(tmp_path):
    draw = UnigramSampler(PIECES, 0.5)
    drawn = [draw(["a", "ξ", "ab"], random.Random(n)) for n in range(50)]
    assert all("".join(pieces) == "aξab" and "ξ" in pieces for pieces in drawn)
    assert draw([], random.Random(1)) == []


def test_the_generator_alone_decides(tmp_path):
    draw = UnigramSampler(PIECES, 0.5)
    random.seed(1)
    first = [draw(["ababab"], random.Random(n)) for n in range(9)]
    random.seed(2)
    assert first == [draw(["ababab"], random.Random(n)) for n in range(9)]


def test_merges_are_left_out_unless_the_dictionary_lacks_the_result(tmp_path):
    learn_subwords(tmp_path / "codes", ["banana bandana"] * 9, "subword-nmt", 20)
    usual = ["banana"]
    known = {"b@@", "a@@", "n@@", "a", "an@@", "ban@@", "ana", "na", "banana"}
    for p, few in ((0.0, True), (0.4, False)):
        draw = BpeDropout(tmp_path / "codes", p, known)
        drawn = {tuple(draw(["ban@@", "ana"], random.Random(n))) for n in range(60)}
        assert (drawn == {tuple(usual)}) == few
        assert draw(["ban@@", "an@@"], random.Random(1)) == ["ban@@", "an@@"]  # cut off within a word
        assert all("".join(w.removesuffix("@@") for w in word) == "banana" and set(word) <= known for word in drawn)
    alone = BpeDropout(tmp_path / "codes", 0.9, {"banana"})
    assert all(alone(["banana"], random.Random(n)) == usual for n in range(20))


@pytest.mark.parametrize("damage", ["#version: 0.3\na b\n", "#version: x\n", "a b c\n", "\udcff"])
def test_damaged_merges_say_where(tmp_path, damage):
    (tmp_path / "codes").write_bytes(damage.encode("utf-8", "surrogateescape"))
    for read in (merges, lambda path: BpeDropout(path, 0.1, {"banana"})):
        with pytest.raises(InputError, match="codes: damaged; prepare the data again"):
            read(tmp_path / "codes")
