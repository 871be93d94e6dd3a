"""Lines cut in two at the same place on both sides."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_lasformer.text.documents import Pair
from fairseq_lasformer.text.halves import AFTER_MARK, BETWEEN, INSIDE, LEAST, boundaries, cut, fragments, halves


def test_lines_are_cut_after_punctuation_that_both_sides_have():
    source = "If you delete a label, the other labels are not moved, as a rule."
    target = "Wenn Sie eine Beschriftung löschen, werden die anderen Beschriftungen nicht verschoben."
    for seed in range(5):
        first, second = halves(source, target, random.Random(seed))
        assert first == ("If you delete a label,", "Wenn Sie eine Beschriftung löschen,")
        assert second[0].startswith("the other") and second[1].startswith("werden")


def test_without_punctuation_both_sides_are_cut_at_about_the_same_share():
    numbers = [f"w{i}" for i in range(20)], [f"W{i}" for i in range(40)]
    places = set()
    for seed in range(50):
        (s, t), rest = halves(" ".join(numbers[0]), " ".join(numbers[1]), random.Random(seed))
        places.add(len(s.split()))
        assert abs(len(s.split()) / 20 - len(t.split()) / 40) <= 0.05
        assert f"{s} {rest[0]}".split() == numbers[0] and f"{t} {rest[1]}".split() == numbers[1]
    assert min(places) >= 6 and max(places) <= 14 and len(places) > 3


def test_texts_without_spaces_are_cut_between_characters_and_after_their_marks():
    pair = (
        "我觉得他昨天晚上没有回家，因为他的车不在这里",
        "I think he did not come home last night, because his car is not here",
    )
    first, second = halves(*pair, random.Random(1))
    assert first == ("我觉得他昨天晚上没有回家，", "I think he did not come home last night,")
    assert boundaries("ab, c d") == [BETWEEN, INSIDE, INSIDE, INSIDE, AFTER_MARK, INSIDE, BETWEEN]
    assert boundaries("我，你") == [BETWEEN, BETWEEN, AFTER_MARK]


def test_short_lines_stay_whole():
    for pair in (("Click OK", "Klicken"), ("a b c d e f", "a b c d e f g h i"), ("", ""), ("ab" * 40, "ab" * 40)):
        assert halves(*pair, random.Random(1)) == [pair]
    words = " ".join("abcdefg")
    assert len(words.split()) == LEAST and len(halves(words, words, random.Random(1))) == 2


def test_fragments_have_all_words_of_all_documents_in_order_and_are_always_the_same():
    documents = [Pair([f"{'a ' * n}b" for n in (3, 9, 20)], [f"{'A ' * n}B" for n in (3, 9, 20)]), Pair(["x"], ["y"])]
    made = fragments(documents)
    assert [len(pair.source) for pair in made] == [5, 1] == [len(pair.target) for pair in made]
    for pair, whole in zip(made, documents):
        assert all(" ".join(side).split() == " ".join(lines).split() for side, lines in zip(pair, whole))
    assert made == fragments(documents)


@given(st.text(), st.text(), st.integers())
def test_halves_of_any_text_have_its_characters_and_are_no_blank_lines(source, target, seed):
    found = halves(source, target, random.Random(seed))
    assert len(found) in (1, 2)
    if len(found) == 2:
        for text, parts in zip((source, target), zip(*found)):
            assert "".join("".join(parts).split()) == "".join(text.split()) and all(part.strip() for part in parts)


@given(st.lists(st.sampled_from([INSIDE, BETWEEN, AFTER_MARK])), st.lists(st.sampled_from([INSIDE, BETWEEN])))
def test_cuts_are_never_within_a_word(source, target):
    where = cut(source, target, random.Random(1))
    if where is not None:
        assert source[where.source] != INSIDE and target[where.target] != INSIDE


@pytest.mark.parametrize("mark", [",", "，"])
def test_marks_far_apart_are_not_the_same(mark):
    source = "a b c d e f g h, i j k l m n o p q r s t".replace(",", mark)
    target = "A B C D E F G H I J K L M N O P Q, R S T".replace(",", mark)
    first, _ = halves(source, target, random.Random(3))
    assert not (first[0].endswith(mark) and first[1].endswith(mark))
