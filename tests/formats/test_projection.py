"""Projection of markup when words move, and sentences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_lasformer import formats
from fairseq_lasformer.formats import markdown
from fairseq_lasformer.formats.block import BREAK, PLACEHOLDER, Block
from fairseq_lasformer.formats.compose import compose
from fairseq_lasformer.formats.projection import AlignedWords, by_place, place
from fairseq_lasformer.formats.sentences import sentences, split_sentences, splitter, whole
from fairseq_lasformer.text.units import units


def aligned(*columns: int, source: int) -> AlignedWords:
    weights = np.zeros((len(columns), source))
    for row, column in enumerate(columns):
        weights[row, column] = 1.0
    return AlignedWords(weights)


def test_markup_follows_its_word():
    # "I <b>now</b> go": the marked word moves to the end
    found = place(["I ", "now", " go"], ["", "b", ""], [False] * 2, "ich gehe jetzt", aligned(0, 2, 1, source=3))
    assert found == ["ich gehe ", "jetzt", ""]
    found = place(["I ", "now", " go"], ["", "b", ""], [False] * 2, "jetzt gehe ich", aligned(1, 2, 0, source=3))
    assert found == ["", "jetzt", " gehe ich"]


def test_alignment_counts_more_than_place_and_marked_words_are_kept():
    identity = aligned(0, 1, 2, 3, source=4)
    long = "a" * 30
    assert place(["one two", "three four"], ["", ""], [True], f"{long} b c d", identity) == [f"{long} b", "c d"]
    nothing = aligned(0, 0, 0, source=3)  # no word of the translation belongs to the marked one
    found = place(["see ", "this", " now"], ["", "b", ""], [False] * 2, "ja nein doch", nothing)
    assert all(text.strip() for text in found)


def test_space_stays_on_the_side_where_it_was():
    assert place(["see ", "this", "."], ["", "b", ""], [False] * 2, "siehe dies.", aligned(0, 1, 2, source=3)) == [
        "siehe ",
        "dies",
        ".",
    ]
    assert place(["a", "", "b"], ["", "", ""], [True, False], "c d", aligned(0, 1, source=2)) == ["c", "", "d"]


words = st.lists(st.text("abcdeé中文.,!", min_size=1, max_size=5), min_size=1, max_size=8).map(" ".join)


@given(st.lists(words, min_size=1, max_size=5), words, st.lists(st.sampled_from("xyz"), min_size=5, max_size=5))
def test_no_letter_is_lost(segments, translation, states):
    segments = [s + " " for s in segments]
    found = place(
        segments,
        states[: len(segments)],
        [False] * (len(segments) - 1),
        translation,
        by_place("".join(segments), translation),
    )
    assert len(found) == len(segments)
    assert "".join("".join(found).split()) == "".join(translation.split())


@pytest.mark.parametrize(
    "translation, expected, lost",
    [
        ("Drücken X1, um X2 zu öffnen.", ["Drücken ", ", um ", " zu öffnen."], 0),
        ("Um X2 zu öffnen, X1 drücken.", None, 0),  # in a different order: with the words around them
        ("Drücken, um zu öffnen.", None, 2),  # none of them: likewise, and reported
    ],
)
def test_placeholders_stand_where_the_translation_has_them(translation, expected, lost):
    block = Block(("Press ", " to open ", "."), (("{key}",), ("{file}",)), (None,) * 3, (PLACEHOLDER,) * 2)
    (sentence,) = sentences(block, splitter("en"))
    assert sentence.text == "Press X1 to open X2."
    made = compose(block, [sentence], [translation], by_place)
    assert (made.lost, made.guessed) == (0, lost) and len(made.segments) == 3
    if expected:
        assert made.segments == expected
    assert not any("X1" in s or "X2" in s for s in made.segments)


def test_breaks_separate_words():
    block = Block(("one two", "three. Four"), (("\n> ",),), (None,) * 2, (BREAK,))
    found = sentences(block, splitter("en"))
    assert [s.text for s in found] == ["one two three.", "Four"]
    assert compose(block, found, ["eins zwei drei.", "Vier"], by_place).segments == ["eins zwei", "drei. Vier"]


def test_a_marked_whole_sentence_needs_no_alignment():
    block = Block(("", "One two.", " Three."), (("<b>",), ("</b>",)), ("", "b", ""), ("", ""))
    found = sentences(block, splitter("en"))
    made = compose(block, found, ["Eins zwei.", "Drei."], lambda a, b: pytest.fail("asked"))
    assert made.segments == ["", "Eins zwei.", " Drei."]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("Dr. Smith left. He said: No.", ["Dr. Smith left.", "He said: No."]),
        ("1. First. 2. Second.", ["1. First.", "2. Second."]),
        ("  One.  Two! ", ["One.", "Two!"]),
        ("No end", ["No end"]),
        ("这是。好的。", ["这是。", "好的。"]),
        ("   ", []),
    ],
)
def test_sentences(text, expected):
    assert [text[a:b] for a, b in split_sentences(text, "en")] == expected
    assert [text[a:b] for a, b in whole(text)] == ([text.strip()] if text.strip() else [])


def test_units():
    assert ["don't stop, U.S.-made 中文!"[a:b] for a, b in units("don't stop, U.S.-made 中文!")] == [
        "don't", "stop", ",", "U.S", ".", "-", "made", "中", "文", "!",
    ]  # fmt: skip


def test_control_characters_are_left_out_and_counted():
    (block,) = formats.read(b"a\x07b\x0bc d.\n", "text").blocks
    (sentence,) = sentences(block, splitter("en"))
    assert sentence.text == "a b c d." and sentence.cleaned


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1"])
def test_encodings_come_back(encoding):
    text = "Die Brücke über den Fluss führt zu den schönen Häusern.\r\nÜber Österreich fällt Schnee.\n" * 4
    data = text.encode(encoding)
    file = formats.read(data, "text")
    assert file.blocks[0].text.startswith("Die Brücke über")
    assert file.write([b.segments for b in file.blocks]) == data
    assert bool(file.note) == (encoding == "latin-1")


def test_a_named_encoding_wins_and_html_can_write_anything():
    file = formats.read("<p>caf\xe9</p>".encode("latin-1"), "html", "latin-1")
    assert file.write([["茶"]]) == b"<p>&#33590;</p>"
    declared = b'<meta charset="koi8-r"><p>\xc1\xc2</p>'
    assert formats.read(declared, "html").blocks[0].text == "аб"
    with pytest.raises(formats.InputError, match="which iso8859-1 lacks"):
        formats.read(b"x\n", "text", "latin-1").write([["茶"]])


@pytest.mark.parametrize(
    "text, expected",
    [
        ("* In", "\\* In"),
        ("1. One", "1\\. One"),
        ("a*b*c", "a\\*b\\*c"),
        ("2 * 3 - 4", "2 * 3 - 4"),
        ("snake_case", "snake_case"),
        ("a [b](c)", "a [b\\](c)"),
        ("a `b` <b>", "a \\`b\\` &lt;b>"),
        ("5 < 6", "5 < 6"),
    ],
)
def test_text_is_never_taken_for_markup(text, expected):
    assert markdown.PARAGRAPH.start(text) == expected
    assert text[0] in "*1" or markdown.PARAGRAPH(text) == expected
