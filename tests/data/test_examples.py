"""The single rule that builds examples from sentences: limit, separator, cutting, joining."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.examples import ExampleRule, TooLong, line_spans
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.search.batching import batches


def rule(limit: int = 12, separator: str = "<sep>", resolutions: str = "mixture") -> ExampleRule:
    return ExampleRule(DataConfig("xx", "yy", "none", "subword-nmt", separator, limit, resolutions, ""))


SENTENCE = st.lists(st.sampled_from(["a", "b@@", "c"]), min_size=1, max_size=6).map(" ".join)


@given(st.lists(SENTENCE, min_size=1, max_size=12), st.lists(SENTENCE, min_size=12, max_size=12))
def test_every_part_fits_and_none_is_lost(source, target):
    made = rule()
    target = target[: len(source)]
    parts = made.cut(3, source, target)
    assert [s for p in parts for s in source[p.start : p.start + p.size]] == source
    assert all(p.document == 3 for p in parts)
    for side in (source, target):
        for p in parts:
            assert len(made.join(side[p.start : p.start + p.size], 0).split()) + 1 <= 12


@given(st.lists(SENTENCE, min_size=1, max_size=20), st.integers(1, 4), st.integers(0, 3))
def test_no_part_has_more_lines_than_allowed(source, most, overlap):
    made = ExampleRule(DataConfig("xx", "yy", "none", "subword-nmt", "<sep>", 30, "mixture", "", max_lines=most))
    parts = made.cut(0, source)
    free = ExampleRule(DataConfig("xx", "yy", "none", "subword-nmt", "<sep>", 30, "mixture", "")).cut(0, source)
    assert sum(p.size for p in parts) == len(source) and max(p.size for p in parts) <= most
    assert len(parts) >= max(len(free), -(-len(source) // most))
    lapped = made.cut(0, source, overlap=overlap)
    assert sum(p.size for p in lapped) == len(source) and max(p.size + p.context for p in lapped) <= most


def test_short_sentences_fill_the_lines():
    made = ExampleRule(DataConfig("xx", "yy", "none", "subword-nmt", "<sep>", 512, "mixture", "", max_lines=3))
    assert [p.size for p in made.cut(0, ["a"] * 12)] == [3] * 4
    assert [(p.size, p.context) for p in made.cut(0, ["a"] * 6, overlap=2)][1:] == [(1, 1), *[(1, 2)] * 4]
    with pytest.raises(InputError, match="--max-lines 300: too many for a --limit of 512"):
        ExampleRule(DataConfig("xx", "yy", "none", "subword-nmt", "", 512, "mixture", "", max_lines=300)).cut(0, ["a"])


@given(st.lists(SENTENCE, min_size=1, max_size=5))
def test_splitting_undoes_joining(sentences):
    assert rule().split(rule().join(sentences, 1)) == sentences
    bare = rule(separator="")
    assert bare.split(bare.join(sentences, 1)) == [" ".join(sentences)]


def test_a_separator_counts_as_a_token():
    assert rule().length("a b") == 3 and rule(separator="").length("a b") == 2
    five = ["a b c"] * 3  # 4 tokens each with its separator, of 11 without the end of sentence
    assert [p.size for p in rule().cut(0, five)] == [2, 1]
    assert [p.size for p in rule(separator="").cut(0, five)] == [3]


def test_a_sentence_that_fits_nowhere_is_named():
    with pytest.raises(TooLong) as e:
        rule().cut(0, ["a", "b"], ["a", " ".join("b" * 12)])
    assert (e.value.side, e.value.sentence, e.value.tokens) == (1, 1, 13)


def test_only_training_sees_every_resolution():
    (part,) = rule(limit=100).cut(0, ["a"] * 4)
    assert [s.size for s in rule().examples(part, training=True)] == [4, 2, 2, 1, 1, 1, 1]
    assert [s.size for s in rule().examples(part)] == [4]
    sentences = rule(resolutions="sentences")
    assert [s.size for s in sentences.examples(part)] == [1, 1, 1, 1]
    assert sentences.keeps_boundaries and rule().keeps_boundaries and not rule(separator="").keeps_boundaries


@pytest.mark.parametrize(
    "tokens, expected",
    [
        ([], [(0, 0)]),
        ([5, 6], [(0, 2)]),
        ([5, 4, 6, 7, 4, 8], [(0, 1), (2, 4), (5, 6)]),
        ([4, 4], [(0, 0), (1, 1), (2, 2)]),
    ],
)
def test_lines_lie_between_separators(tokens, expected):
    assert line_spans(tokens, 4) == expected
    assert line_spans(tokens, None) == [(0, len(tokens))]


def test_batches_are_full_but_never_too_large():
    lengths = [3, 3, 5, 9, 2]
    assert batches(lengths, range(5), 10) == [[0, 1], [2], [3], [4]]
    assert batches(lengths, [4, 0, 1, 2, 3], 9) == [[4, 0, 1], [2], [3]]
    assert batches(lengths, [4, 0, 1, 2, 3], 100, 2) == [[4, 0], [1, 2], [3]]
    assert batches(lengths, [3, 4], 8) == [[3], [4]]  # one that is too long is alone
    assert batches([], [], 8) == []
