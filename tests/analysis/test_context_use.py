"""CXMI: the bits that the context is worth."""

from __future__ import annotations

import json
import math

import pytest
import torch
from helpers import run, write_corpus

from fairseq_lasformer.analysis import context_use
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.text.documents import Pair

DOCUMENTS = [
    Pair(["w1 w2", "w3", "w4 w5 w6", "w7"], ["W1 W2", "W3", "W4 W5 W6", "W7"]),
    Pair(["w8", "w9"], ["W8", "W9"]),
]


@pytest.fixture(scope="module")
def use(trained_folder):
    return context_use.ContextUse(LasformerModel.from_pretrained(trained_folder), DOCUMENTS)


def test_lines_are_drawn_evenly_and_have_context():
    every = context_use.places(DOCUMENTS, None)
    assert every == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert context_use.places(DOCUMENTS, 2) == [(0, 2), (1, 1)]


def test_context_is_whole_lines_up_to_the_limits(use):
    codec = use.codec
    place = context_use.Place(0, 3)
    own = codec.length(use.target[0][3])
    for lines, tokens, kept in ((0, None, 0), (2, None, 2), (9, None, 3), (9, 3, 0), (9, 1000, 3)):
        source, target, start = use.example(place, lines, tokens)
        text = codec.decode(use.hub.tgt_dict.string(target))
        if tokens == 3:
            assert len(text) == 1 + sum(
                sum(map(codec.length, use.target[0][3 - k : 3])) <= 3
                and sum(map(codec.length, use.source[0][3 - k : 3])) <= 3
                for k in (1, 2, 3)
            )
        else:
            assert text == DOCUMENTS[0].target[3 - kept :]
        assert len(target) - start == own and len(use.hub.src_dict.string(source).split("<sep>")) == len(text)


def test_bits_are_those_of_the_definition(use):
    chosen = context_use.places(DOCUMENTS, None)
    found = context_use.evaluate(use, chosen, [4, 100], max_tokens=60)
    model = use.hub.models[0]

    def bits(place, tokens):
        source, target, start = use.example(place, 10**9 if tokens else 0, tokens)
        previous = torch.cat([target[-1:], target[:-1]])[None]
        with torch.no_grad():
            out = model(source[None], torch.tensor([len(source)]), previous)[0]
        return -float(out.log_softmax(-1)[0].gather(1, target[:, None])[start:].sum()) / math.log(2)

    n = found["target_tokens"]
    alone = sum(bits(p, None) for p in chosen) / n
    assert found["alone"] == pytest.approx(alone, rel=1e-4)
    rows = [sum(bits(p, t) for p in chosen) / n for t in (4, 100)]
    for row, expected, before in zip(found["rows"], rows, [alone, rows[0]]):
        assert row["bits"] == pytest.approx(expected, rel=1e-4)
        assert row["cxmi"] == pytest.approx(alone - expected, abs=1e-3)
        assert row["more"] == pytest.approx(before - expected, abs=1e-3)


def test_the_standard_error_is_that_of_a_ratio():
    before, after, lengths = [3.0, 5.0, 4.0, 8.0], [2.0, 5.0, 3.0, 7.0], [2, 2, 2, 2]
    gains = torch.tensor([0.5, 0.0, 0.5, 0.5])
    assert context_use._error(before, after, lengths) == pytest.approx(float(gains.std() / 2))


def test_whole_documents_are_worth_what_an_explanation_says(use):
    """The same bits, by another way; and for the last line of a document, those of all lines before it."""
    every = [context_use.Place(d, i) for d, pair in enumerate(DOCUMENTS) for i in range(len(pair.source))]
    found = context_use.evaluate_whole(use, every)
    explained = [use.hub.explain("\n".join(pair.source), "\n".join(pair.target)) for pair in DOCUMENTS]
    bits, tokens = (sum(sum(getattr(e, name).values()) for e in explained) for name in ("bits", "tokens"))
    assert found["cxmi"] == pytest.approx(bits / tokens, abs=1e-6) and found["error"] > 0
    last = context_use.Place(0, 3)
    pairs = [use.example(last, lines) for lines in (9, 0)]
    before, alone = context_use.target_scores(use.hub, pairs)
    expected = float((before - alone)[:-1].sum()) / math.log(2)
    assert explained[0].bits[4] == pytest.approx(expected, abs=1e-4)


def test_kappa_can_be_set_where_there_are_selectors(use, build):
    context_use.set_kappa(use.hub, 0.25)
    assert {s.share for _, s in use.hub.models[0].selectors()} == {0.25}
    dense = type("Hub", (), {"models": [build(select_modules="none")]})()
    with pytest.raises(InputError, match="the model selects nothing"):
        context_use.set_kappa(dense, 0.25)


def test_the_command_prints_a_table(trained_folder, tmp_path):
    prefix = write_corpus(tmp_path, "set", 5, seed=4)
    command = ["lasformer", "score", "context", trained_folder / "checkpoint_last.pt", prefix, "--tokens", "5,20"]
    done = run(*command, "--kappa", "0.1,1", "--whole", "--json", tmp_path / "out.json")
    assert done.stdout.count("the document") == 2
    assert done.stdout.count("20 tokens") == 2 and "CXMI" in done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith("kappa")] == ["kappa 0.1", "kappa 1"]
    assert [r["kappa"] for r in json.loads((tmp_path / "out.json").read_text())["context"]] == [0.1, 1.0]
    refused = run(*command, "--kappa", "2", check=False)
    assert refused.returncode == 1 and "--kappa: shares from 0 to 1" in refused.stderr


def test_lines_cut_in_two_are_measured_and_written(trained_folder, tmp_path):
    for language, letter in (("xx", "w"), ("yy", "W")):
        lines = [" ".join(f"{letter}{(3 * i + j) % 30}" for j in range(n)) for i, n in enumerate((9, 3, 12))]
        (tmp_path / f"set.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [
        "lasformer",
        "score",
        "context",
        trained_folder / "checkpoint_last.pt",
        tmp_path / "set",
        "--tokens",
        "5",
    ]
    done = run(*command, "--split", tmp_path / "halves")
    assert (
        f"{tmp_path / 'halves.xx'}, {tmp_path / 'halves.yy'}: 5 lines" in done.stdout and "\n4 lines, " in done.stdout
    )
    source, target = ((tmp_path / f"halves.{language}").read_text(encoding="utf-8") for language in ("xx", "yy"))
    assert source.upper() == target and source.split() == (tmp_path / "set.xx").read_text(encoding="utf-8").split()
    assert [len(line.split()) for line in source.splitlines()][2] == 3
    again = run(*command, "--split", tmp_path / "halves", check=False)
    assert again.returncode == 1 and "exists; choose another name for --split" in again.stderr
    unwritten = run(*command, "--split")
    assert unwritten.stdout == done.stdout.split("\n", 1)[1]
