"""The Python interface."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import hypothesis.strategies
import pytest
import torch
from helpers import run

from fairseq_lasformer import formats
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents import hub, streaming
from fairseq_lasformer.documents.part_search import PartSearch
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.formats.sentences import sentences, whole
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.processors import ProcessedSearch
from fairseq_lasformer.text.documents import read_lines
from fairseq_lasformer.text.hypotheses import read_hypotheses
from fairseq_lasformer.text.lines import clean_line, split_lines


@pytest.mark.command
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
    # an empty document has an empty translation, wherever it is
    mixed = ["", raw[0], " \n\n", *raw[1:]]
    assert model.translate_documents(mixed, beam=3, progress=False) == ["", expected[0], "", *expected[1:]]
    assert model.translate_documents([]) == [] and model.translate_documents(["\n"]) == [""]
    with pytest.raises(InputError, match="more than the limit"):
        model.translate_documents([" ".join(["w1"] * 40)])


@pytest.mark.parametrize(
    "documents, options, message",
    [
        ("w1 w2", {}, "not one string: wrap it"),
        (["w1"], {"lenpn": 2.0}, "lenpn: not an option of fairseq's generation; did you mean lenpen?"),
        (["w1"], {"nonsense": 2.0}, "nonsense: not an option of fairseq's generation$"),
        (["w1"], {"nbest": 3}, "nbest: one translation per document"),
        (["w1"], {"score_reference": True}, "score_reference: documents are translated here"),
        (["w1", ["w2"]], {}, r"documents\[1\] is of type list"),
        (["w1"], {"glossary": "/nowhere"}, "/nowhere: the glossary cannot be read"),
    ],
)
def test_mistakes_in_calls_are_named(trained_folder, documents, options, message):
    with pytest.raises(InputError, match=message):
        LasformerModel.from_pretrained(trained_folder).translate_documents(documents, **options)


def test_paragraphs_come_back_where_they_were(trained_folder):
    model = LasformerModel.from_pretrained(trained_folder / "checkpoint_last.pt")
    text = "\n w1 w2\n\n\nw3\r\nw4 w5 w6\n\n"
    translated = model.translate_documents([text], beam=2, progress=False)[0]
    assert [bool(line) for line in translated.splitlines()] == [bool(line.strip()) for line in text.splitlines()][:6]
    lines = model.translate_documents([text, "", "w7"], beam=2, progress=False, lines=True)
    assert [(line.number, line.source) for line in lines[0]] == [(2, "w1 w2"), (5, "w3"), (6, "w4 w5 w6")]
    assert [line.translation for line in lines[0]] == [line for line in translated.splitlines() if line]
    assert lines[1] == [] and len(lines[2]) == 1
    assert all(line.score < 0 for document in lines for line in document)  # repairs depend on the processor
    free = model.translate_documents([text], beam=2, progress=False, align_sentences="no")[0]
    assert free  # of any number of lines


# characters that some program takes for a line break, invisible ones, and ordinary ones
ODD = "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029\u200b\ufeff\t\x07 "


@hypothesis.settings(max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(
    text=hypothesis.strategies.lists(
        hypothesis.strategies.sampled_from([*ODD, "\n", "\r\n", "w1", "w2"]), max_size=30
    ).map("".join)
)
def test_a_line_is_the_same_at_every_door(trained_folder, prepared, text):
    """Python, translate, prepare (and so generate) and the server: as many lines, blank where the source's are."""
    hub = hub_of(trained_folder)
    expected = [bool(clean_line(line)) for line in split_lines(text)]
    # room for a word in each of 30 lines, and for what separates them
    (translated,) = hub.translate_documents([text], beam=1, progress=False, max_len_a=0, max_len_b=60)
    assert len(split_lines(translated + "\n")) == max(1, len(expected)) or not any(expected)
    for number, line in enumerate(split_lines(translated)):
        assert bool(line) == expected[number]
    if any(expected):
        assert [line.number for line in hub.translate_lines(text, beam=1)] == [
            i for i, b in enumerate(expected, 1) if b
        ]
    parsed = formats.read(text.encode(), "text", "utf-8")
    assert sum(bool(sentences(block, whole)) for block in parsed.blocks) == sum(expected)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "text"
        path.write_bytes(text.encode())
        assert [bool(clean_line(line)) for line in read_lines(path, clean=True)] == expected


@cache
def hub_of(folder):
    return LasformerModel.from_pretrained(folder / "checkpoint_last.pt")


def test_weights_that_change_after_loading_are_used(trained_folder):
    """Packed copies are rebuilt: in float32 on a CPU, the decoder reads nothing else."""
    model, text = LasformerModel.from_pretrained(trained_folder / "checkpoint_last.pt"), ["w1 w2 w3\nw4 w5"]
    before = model.translate_documents(text, lines=True, progress=False)[0]
    with torch.no_grad():
        for name, weight in model.models[0].decoder.layers.named_parameters():
            if "fc" in name or "q_proj" in name:
                weight.zero_()
    after = model.translate_documents(text, lines=True, progress=False)[0]
    assert [line.score for line in after] != [line.score for line in before]
    model.bfloat16()
    assert model.translate_documents(text, progress=False) and model.models[0].decoder.packed is None


def test_a_model_is_on_its_device_before_it_is_made_ready(trained_folder, monkeypatch):
    """Weights packed or quantised for generation depend on the device, and stay there."""
    done: list[str] = []
    for name in ("to", "prepare_for_inference_"):
        real = getattr(LasformerModel, name)

        def logged(self, *args, real=real, name=name, **kwargs):
            done.append(name)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(LasformerModel, name, logged)
    hub.load_model(trained_folder, device="cpu")
    assert done[:2] == ["to", "prepare_for_inference_"]


def test_lines_are_settled_one_by_one(trained_folder, prepared):
    """Streamed and returned lines are the same: text, scores and marks, and parts with their context."""
    model, compared = LasformerModel.from_pretrained(trained_folder / "checkpoint_last.pt"), 0
    for text in (prepared.parent / "raw" / "test.xx").read_text(encoding="utf-8").split("\n\n")[:6]:
        whole = model.translate_documents([text], beam=3, progress=False, lines=True)[0]
        seen = list(model.translate_lines(text, beam=3))
        compared += 1
        assert [(x.number, x.source, x.translation) for x in seen] == [
            (x.number, x.source, x.translation) for x in whole
        ]
        assert [x.score for x in seen] == pytest.approx([x.score for x in whole], abs=1e-4)
    assert compared >= 4
    lines = model.translate_lines("w1 w2\n" * 30, beam=3)
    assert next(lines).number == 1
    lines.close()  # the search stops; closing would hang otherwise
    with pytest.raises(InputError, match="only aligned lines"):
        next(model.translate_lines("w1", align_sentences="no"))
    with pytest.raises(InputError, match="more than the limit"):
        next(model.translate_lines(" ".join(["w1"] * 40)))


def test_from_pretrained_names_what_is_missing(tmp_path, trained_folder):
    with pytest.raises(InputError, match="contains none of model.pt"):
        hub.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="settings.json: not found"):
        hub.from_pretrained(trained_folder, "checkpoint_last.pt", tmp_path)


def test_a_search_that_nobody_follows_stops_at_its_next_step(trained_folder, monkeypatch):
    model = LasformerModel.from_pretrained(trained_folder / "checkpoint_last.pt")
    translator = model.translator(3)
    source = model.source(Request.of("w1 w2\nw3 w4\nw5\n", overlap=0), translator)
    steps, asked = [], []
    step = ProcessedSearch.step
    monkeypatch.setattr(ProcessedSearch, "step", lambda *args: steps.append(args[1]) or step(*args))

    def check():
        asked.append(None)
        if len(asked) == 3:
            raise streaming.Stopped

    with pytest.raises(streaming.Stopped):
        streaming._part(translator, source, source.parts[0], [], model.device, [].append, check)
    assert steps == [0, 1, 2]


@pytest.fixture
def of_sentences(trained_folder, broken):
    settings = json.loads((broken / "settings.json").read_text())
    (broken / "settings.json").write_text(json.dumps(settings | {"resolutions": "sentences"}))
    return hub.load_model(trained_folder, broken, "cpu")


def test_sentences_that_went_wrong_are_searched_again(of_sentences, monkeypatch):
    model, real, asked = of_sentences, PartSearch._hypotheses, []
    loop = {"tokens": torch.tensor([7] * 12 + [2]), "positional_scores": torch.zeros(13), "flawed": [0]}

    def wrong(self, tasks, device, check=None, block=False):
        asked.append((block, len(tasks)))
        ranked = real(self, tasks, device, check, block)
        return [[loop] if len(tasks) > 1 and i == 1 else its for i, its in enumerate(ranked)]

    text = ["w1 w2\nw3 w4\nw5 w6 w7\n"]
    (plain,) = model.translate_documents(text, 4, progress=False, lines=True)
    monkeypatch.setattr(PartSearch, "_hypotheses", wrong)
    (again,) = model.translate_documents(text, 4, progress=False, lines=True)
    assert asked == [(False, 3), (True, 1)]
    assert sum(line.repaired for line in again) == 1
    assert not any(line.flawed for line in again)
    assert sum(a.translation == b.translation for a, b in zip(plain, again)) >= 2
    asked.clear()
    monkeypatch.setattr(model.task.cfg, "repair", 0)
    (left,) = model.translate_documents(text, 4, progress=False, lines=True)
    assert asked == [(False, 3)] and sum(line.flawed for line in left) == 1


def test_sentences_have_alternatives(of_sentences):
    model = of_sentences
    translator = model.translator(4)
    source = model.source(Request.of("w1 w2\nw3 w4\nw5 w6 w7\n"), translator)
    (found,) = translator.translate([source], "cpu")
    ranked = translator.alternatives(source, found, 2, "cpu")
    assert len(ranked) == len(found) == 3 and all(ranked)
    for line, its in zip(found, ranked):
        assert len({tuple(one.tokens.tolist()) for one in [line, *its]}) == 1 + len(its) <= 3
    alone = model.source(Request.of("w3 w4"), translator)
    first = translator.translate([alone], "cpu")[0]
    assert [one.tokens.tolist() for one in translator.alternatives(alone, first, 2, "cpu")[0]] == [
        one.tokens.tolist() for one in ranked[1]
    ]


@pytest.mark.command
def test_required_terms_are_met(by_lines_folder, prepared, tmp_path):
    """By documents that are translated freely first, by lines one at a time, and by the command."""
    model = LasformerModel.from_pretrained(by_lines_folder / "checkpoint_last.pt")
    raw = (prepared.parent / "raw" / "test.xx").read_text(encoding="utf-8")
    (tmp_path / "terms").write_text("w1\tW17 W9\nw4\tW4\n")
    texts = raw.split("\n\n")
    free = model.translate_documents(texts, beam=3, progress=False, lines=True)
    met = model.translate_documents(texts, beam=3, progress=False, lines=True, glossary=tmp_path / "terms")
    required = 0
    for before, after in zip(free, met):
        for line in after:
            for word, term in (("w1", "W17 W9"), ("w4", "W4")):
                if word in line.source.split():
                    required += 1
                    assert f" {term} " in f" {line.translation} " or line.flawed
        if not any({"w1", "w4"} & {*line.source.split()} for line in after):
            assert after == before  # a document without terms is translated as before
    assert required > 5 and sum(line.flawed for document in met for line in document) < required / 2
    streamed = list(model.translate_lines("w5 w1 w2\nw6", beam=3, glossary=tmp_path / "terms"))
    assert "W17 W9" in streamed[0].translation
    command = ["lasformer", "generate", prepared, by_lines_folder / "checkpoint_last.pt", tmp_path / "out"]
    run(*command, "--glossary", tmp_path / "terms", "--shards", 1, "--", "--cpu", "--beam", 3)
    assert [d for d in read_hypotheses(tmp_path / "out")] == [[line.translation for line in d] for d in met]
    with pytest.raises(InputError, match="a glossary: only where lines"):
        model.translate_documents(["w1"], glossary=tmp_path / "terms", align_sentences="no")


@pytest.mark.parametrize("options", [{}, {"align_sentences": "no"}])
def test_a_model_without_finite_weights_is_named(trained_folder, options):
    model = hub.load_model(trained_folder, device="cpu")
    with torch.no_grad():
        model.models[0].decoder.layers[0].fc2.weight.fill_(float("nan"))
    with pytest.raises(InputError, match="no translation of a text of 4 tokens: are the model's weights finite"):
        model.translate_documents(["w1 w2 w3"], **options)


def test_a_model_in_float64_translates(trained_folder):
    """The kernels have no float64: definitions are used."""
    model, text = hub.load_model(trained_folder, device="cpu"), ["w1 w2 w3\nw4 w5 w6 w7\nw8"]
    plain = model.translate_documents(text, beam=2)
    assert model.double().translate_documents(text, beam=2) == plain


@pytest.mark.parametrize("wrong", [0, -1, "2", 2.0, None, True])
@pytest.mark.parametrize("name", ["beam", "max_tokens"])
def test_numbers_of_other_kinds_are_refused_in_one_line(name, wrong, trained_folder):
    model = hub.load_model(trained_folder, device="cpu")
    with pytest.raises(InputError, match=f"^{name}={wrong!r}: expected a whole number, at least 1$"):
        model.translate_documents(["w1"], **{name: wrong})
