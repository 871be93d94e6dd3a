"""Sample translations: lines side by side, differences in words."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_lasformer.analysis.attention_view import attention_view, sparse, telling
from fairseq_lasformer.analysis.samples import LINES, Sample, differences, page_samples, read_samples
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.word_attention import WordAttention
from fairseq_lasformer.plugin.model import LasformerModel


def test_words_that_differ_are_marked():
    found = differences("Die Lampe ist rot.", "Die Uhr ist rot.")
    assert [text for text, differs in found if differs] == ["Lampe"]
    assert differences("same text", "same text") == [["same text", False]]
    assert differences("", "x") == [] and [d for _, d in differences("x y", "")] == [True]


@given(st.text("ab ,.中", max_size=20), st.text("ab ,.中", max_size=20))
def test_the_pieces_are_the_text(text, other):
    found = differences(text, other)
    assert "".join(piece for piece, _ in found) == text
    assert all(piece for piece, _ in found)


def test_samples_are_the_first_documents(tmp_path):
    (tmp_path / "a").write_text("\n".join(f"s{i}" for i in range(LINES + 3)) + "\n\nw1\n\nw2\n")
    (tmp_path / "b").write_text("\n".join(f"t{i}" for i in range(LINES + 3)) + "\n\nv1\n\nv2\n")
    first, second = read_samples(tmp_path / "a", tmp_path / "b", 2)
    assert len(first.source) == len(first.reference) == LINES and first.omitted == 3
    assert second == Sample(2, ["w1"], ["v1"], 0)
    assert read_samples(tmp_path / "a", None, 1)[0].reference == []
    (tmp_path / "c").write_text("t\n")
    with pytest.raises(InputError, match=r"c: 1 documents; .*a has 3"):
        read_samples(tmp_path / "a", tmp_path / "c", 1)
    (tmp_path / "d").write_text("t\n\nv1\n\nv2\n")
    with pytest.raises(InputError, match="d: document 1 has 1 lines, 43 in"):
        read_samples(tmp_path / "a", tmp_path / "d", 1)


def test_without_a_reference_the_first_run_is_the_measure():
    sample = Sample(1, ["s1", "s2"], [], 0)
    (shown,) = page_samples([sample], {"a": [["x y", "z"]], "b": [["x q", "z"]], "c": [["x y z"]]})
    lines = {run["name"]: run["lines"] for run in shown["runs"]}
    assert lines["a"] == [[["x y", False]], [["z", False]]]
    assert lines["b"] == [[["x ", False], ["q", True]], [["z", False]]]
    assert all(run["because"] == [] for run in shown["runs"])
    (said,) = page_samples([sample], {"a": [["x y", "z"]]}, {"a": [[[], ["z: because of s1"]]]})
    assert said["runs"][0]["because"] == [[], ["z: because of s1"]]
    assert lines["c"] == [[["x y z", False]]]  # its lines do not match the source's: one text


def test_the_telling_word_is_the_one_with_the_far_link():
    source, target = ["the lamp burns", "it is old ."], ["x y z"]
    places = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]
    weights = np.zeros((7, 7), np.float32)
    weights[0, 1] = 0.9  # strong, but within its line
    weights[3, 1] = 0.5  # "it" to "lamp"
    weights[6, 0] = 0.8  # a punctuation mark
    cross = np.full((3, 7), 0.01, np.float32)
    found = telling(
        WordAttention(places, [(0, 0), (0, 1), (0, 2)], {"cross.0": cross, "encoder.0": weights}), source, target
    )
    assert found == [1, 3]
    alone = WordAttention(places[:3], places[:3], {"encoder.0": weights[2::-1, :3]})
    assert telling(alone, source[:1], source[:1]) == [0, 2]  # a single line: its strongest link
    # words that occur often attract each other
    repeated = np.zeros((4, 4), np.float32)
    repeated[0, 2], repeated[1, 3] = 0.6, 0.5
    four = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert telling(WordAttention(four, four, {"encoder.0": repeated}), ["in a", "in b"], [])[1] == 1


def test_few_keys_are_kept_the_highest_first():
    assert sparse(np.array([[0.1, 0.5, 0.001, 0.4]]), most=2) == [[[1, 0.5], [3, 0.4]]]
    assert sparse(np.array([[0.001, 0.5]])) == [[[1, 0.5]]]


def test_a_view_of_words_and_lines(trained_folder):
    model = LasformerModel.from_pretrained(trained_folder)
    view = attention_view(model, ["w1 w29 w3.", "w4 w5"], ["w3 w2", "w2, w1"])
    assert view["target"] == [[["w3", " "], ["w2", ""]], [["w2", ""], [",", " "], ["w1", ""]]]
    sides = {"source": 6, "target": 5}
    for module in view["modules"]:
        assert len(module["rows"]) == sides[module["from"]]
        assert all(0 <= key < sides[module["to"]] for row in module["rows"] for key, _ in row)
        assert np.shape(module["lines"]) == (2, 2)
        # a line's attention to lines is the mean of its words' attention
        summed = [sum(weight for _, weight in row) for row in module["rows"]]
        first = 4 if module["from"] == "source" else 2
        assert sum(module["lines"][0]) == pytest.approx(np.mean(summed[:first]), abs=0.03)
    module, word = view["open"]
    assert view["modules"][module]["rows"][word]
    long = [f"w{i} w{i + 1} w{i + 2} w{i + 3} w{i + 4}" for i in range(200)]
    shown = attention_view(model, long, long)
    assert 0 < len(shown["source"]) == len(shown["target"]) < 200
