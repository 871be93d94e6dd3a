"""Word attention: subwords merged into words, across the lines of a document."""

from __future__ import annotations

import pytest
import torch
from helpers import BACKENDS, tokens
from tiers import thinned

from fairseq_lasformer.documents.word_attention import attention_of, document_attention
from fairseq_lasformer.nn.attentions.selected import LINE_BIAS_UNIT
from fairseq_lasformer.plugin.model import LasformerModel

SOURCE, TARGET = ["w1 w29 w3", "w4 w1999"], ["w3 w1999", "w2"]


def test_the_rows_of_a_words_subwords_are_averaged_and_the_columns_summed(trained_folder):
    model = LasformerModel.from_pretrained(trained_folder)
    found = document_attention(model, SOURCE, TARGET)
    assert found.source == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)] and found.target == [(0, 0), (0, 1), (1, 0)]
    tokens, owners = [], []
    for number, (lines, encode) in enumerate(
        ((SOURCE, model.codec.encode_source), (TARGET, model.codec.encode_target))
    ):
        pieces = model.codec.join([encode(line) for line in lines], number).split()
        side, word = [], 0
        for piece in pieces:  # a word ends with its last subword, which has no mark of continuation
            side.append(-1 if piece == model.codec.separator else word)
            word += piece != model.codec.separator and not piece.endswith("@@")
        owners.append([*side, -1])
        tokens.append(model.binarize(" ".join(pieces)))
    assert max(owners[0]) == 4 and max(map(owners[0].count, range(5))) > 1, "no word has several subwords"
    plain = attention_of(model.models[0], *tokens)
    assert found.modules.keys() == plain.keys() != set()
    sides = {"encoder": (owners[0], owners[0]), "cross": (owners[1], owners[0])}
    sides["decoder"] = owners[1], [-1, *owners[1][:-1]]  # column j is the token before step j
    for name, weights in plain.items():
        rows, columns = (torch.tensor(side) for side in sides[name.partition(".")[0]])
        merged = torch.from_numpy(found.modules[name])
        assert merged.shape == (max(rows) + 1, len(found.target if name[0] == "d" else found.source))
        for i in range(merged.shape[0]):
            for j in range(merged.shape[1]):
                part = weights[rows == i][:, columns == j].sum(1).mean()
                torch.testing.assert_close(merged[i, j], part)


@pytest.mark.parametrize("backend", thinned(BACKENDS, "reference", "cpu"))
def test_what_is_attended_to_does_not_depend_on_the_kernels(build, backend):
    source, target = tokens(1, 30)[0], tokens(1, 20)[0]
    expected = attention_of(build(0.3, backend="reference").eval(), source, target)
    found = attention_of(build(0.3, backend=backend).eval(), source, target)
    assert found.keys() == expected.keys() and len(found) == 6
    for name, weights in expected.items():
        assert 0.2 < float((weights > 0).float().mean()) < 0.7
        torch.testing.assert_close(found[name], weights, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", thinned(BACKENDS, "reference", "cpu"))
def test_attention_of_a_long_document_is_that_of_every_query(build, backend):
    """A pattern learns from some queries only; a click on a word of a long page used to fail."""
    source, target = tokens(1, 30)[0], tokens(1, 20)[0]
    model = build(0.3, backend=backend).eval()
    expected = attention_of(model, source, target)
    model.cfg.supervise_rows = "4"
    found = attention_of(model, source, target)
    assert all(torch.equal(found[name], weights) for name, weights in expected.items())


def test_own_lines_are_part_of_the_attention_by_their_bias(build, small_task, monkeypatch):
    monkeypatch.setattr(small_task, "separator_in", lambda dictionary: 10, raising=False)
    source, target = (t[0].masked_fill(t[0] == 10, 11) for t in (tokens(1, 30), tokens(1, 30)))
    source[9:29:10] = target[9:29:10] = 10
    source[-1] = target[-1] = 2
    model = build(0.3, own_lines=True).eval()
    biases = [p for name, p in model.named_parameters() if name.endswith("line_bias")]
    for parameter in biases:
        parameter.data.fill_(-2 / LINE_BIAS_UNIT)
    found = attention_of(model, source, target)
    line = torch.arange(30) // 10
    own = line[:, None] == line
    for name, weights in found.items():
        torch.testing.assert_close(weights.sum(1), torch.ones(30), rtol=1e-4, atol=1e-4)
        if not name.startswith("decoder"):  # whose row i reads the inputs of steps up to i
            assert (weights[own] > 0).all() and 0.003 < float(weights[~own].sum() / 30) < 0.03  # e^-2 of one key
    for parameter in biases:
        parameter.data.fill_(-6)
    alone = attention_of(model, source, target)
    assert float(alone["encoder.0"][~own].sum() + alone["cross.0"][~own].sum()) < 1e-5
