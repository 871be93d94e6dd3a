"""Given lines, prefixes that are read in one pass, and updates of documents."""

from __future__ import annotations

import pytest

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.given_lines import parse_given
from fairseq_lasformer.plugin.model import LasformerModel

TEXT = ["w1 w2", "", "w3 w4 w5", "w6", "w7 w8", "w9 w1"]


@pytest.fixture(scope="module")
def model(trained_folder):
    return LasformerModel.from_pretrained(trained_folder)


def lines_of(model, given=None, text=TEXT, **options):
    (made,) = model.translate_documents(["\n".join(text)], beam=3, progress=False, given=[given], **options)
    return made.split("\n")


def test_given_lines_stand_as_they_are(model):
    free = lines_of(model)
    given = {3: "W9  W9 W9 W9 W9 W9 W9 W9 W9 W9 W9 W9", 6: "W2"}  # longer than the limit of its line, and odd space
    made = lines_of(model, given)
    assert (made[2], made[5], made[1], len(made)) == (given[3], given[6], "", len(free))
    marked = model.translate_documents(["\n".join(TEXT)], beam=3, progress=False, given=[given], lines=True)[0]
    assert not any(line.flawed or line.repaired for line in marked if line.number in given)
    # what the model writes itself changes nothing, and all lines may be given
    assert lines_of(model, {1: " ".join(["W1"] * 60)})[0].count("W1") == 60  # beyond the limit of an example
    same = lines_of(model, {i: line for i, line in enumerate(free, 1) if line})
    assert same == free
    streamed = list(model.translate_lines("\n".join(TEXT), beam=3, given=given))
    assert [line.translation for line in streamed] == [line for line in made if line]


@pytest.mark.parametrize(
    "given, message",
    [
        ({7: "W1"}, "line 7, which does not exist; it has 6 lines"),
        ({2: "W1"}, "line 2, which is blank"),
        ({"1": "W1"}, "line 1, which does not exist"),
        ({1: " "}, "line 1 is not text"),
        ({1: "W1\nW2"}, "line 1 has more than one line"),
    ],
)
def test_wrong_given_lines_are_refused(model, given, message):
    with pytest.raises(InputError, match=message):
        lines_of(model, given)
    with pytest.raises(InputError, match="for 1 documents instead of 2"):
        model.translate_documents(["w1", "w2"], given=[None])
    with pytest.raises(InputError, match="given lines need aligned lines"):
        lines_of(model, {1: "W1"}, align_sentences="no")


def test_given_lines_are_read_from_a_table_or_from_lines():
    assert parse_given("3\tJa. \n\n5\tNein.\tDoch.\n", 9, "f") == {3: "Ja. ", 5: "Nein.\tDoch."}
    assert parse_given("a\n\nb\n", 3, "f") == {1: "a", 3: "b"}
    with pytest.raises(InputError, match="f, line 2: gives a second translation for line 3"):
        parse_given("3\ta\n3\tb\n", 9, "f")
    with pytest.raises(InputError, match="has 2 lines, but the document has 3"):
        parse_given("a\nb\n", 3, "f")


def test_numbers_beyond_all_documents_are_text():
    assert parse_given("9" * 5000 + "\tJa.\n", 1, "f") == {1: "9" * 5000 + "\tJa."}
