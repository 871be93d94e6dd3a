"""The Python interface."""

from __future__ import annotations

import pytest
from helpers import run

from fairseq_lasformer.data.hypotheses import read_hypotheses
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.plugin import hub
from fairseq_lasformer.plugin.model import LasformerModel


@pytest.mark.slow
def test_translate_documents_gives_what_generate_gives(trained_folder, prepared, tmp_path):
    run(
        "lasformer",
        "generate",
        prepared,
        trained_folder / "checkpoint_last.pt",
        tmp_path / "out",
        "--shards",
        1,
        "--",
        "--cpu",
        "--beam",
        3,
    )
    expected = ["\n".join(d) for d in read_hypotheses(tmp_path / "out", allow_empty=True)]
    model = LasformerModel.from_pretrained(trained_folder)
    raw = (prepared.parent / "raw" / "test.xx").read_text(encoding="utf-8").split("\n\n")
    assert model.translate_documents(raw, beam=3, progress=False) == expected
    # an empty document has an empty translation, wherever it stands
    mixed = ["", raw[0], " \n\n", *raw[1:]]
    assert model.translate_documents(mixed, beam=3, progress=False) == ["", expected[0], "", *expected[1:]]
    assert model.translate_documents([]) == [] and model.translate_documents(["\n"]) == [""]
    with pytest.raises(InputError, match="more than the limit"):
        model.translate_documents([" ".join(["w1"] * 40)])


@pytest.mark.parametrize(
    "documents, options, message",
    [
        ("w1 w2", {}, "not one string: wrap it"),
        (["w1"], {"lenpn": 2.0}, "lenpn: not an option of fairseq's generation; is lenpen meant?"),
        (["w1"], {"nonsense": 2.0}, "nonsense: not an option of fairseq's generation$"),
        (["w1"], {"nbest": 3}, "nbest: one translation per document"),
    ],
)
def test_mistakes_in_calls_are_named(trained_folder, documents, options, message):
    with pytest.raises(InputError, match=message):
        LasformerModel.from_pretrained(trained_folder).translate_documents(documents, **options)


def test_paragraphs_come_back_where_the_sentences_are_as_many(trained_folder, monkeypatch):
    model = LasformerModel.from_pretrained(trained_folder / "checkpoint_last.pt")
    for translated, expected in (
        (["A", "", "C"], "A\n\n\nC"),  # an empty sentence keeps its line
        (["A", "B"], "A\nB"),  # other counts: no paragraph can be placed
    ):
        monkeypatch.setattr(model, "_translate", lambda examples, *_, t=translated: [t])
        assert model.translate_documents(["w1\n\n\nw2\nw3\n"]) == [expected]


def test_from_pretrained_names_what_is_missing(tmp_path, trained_folder):
    with pytest.raises(InputError, match="holds none of model.pt"):
        hub.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="settings.json: not found"):
        hub.from_pretrained(trained_folder, "checkpoint_last.pt", tmp_path)
