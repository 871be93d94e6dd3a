"""Options for long documents: shifted positions, sharper attention, long examples more often."""

from __future__ import annotations

import pytest
import torch
from helpers import tokens

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.ops import AttentionMask


def test_positions_are_shifted_by_one_offset_on_both_sides(build, monkeypatch):
    """In training only; each example by its own."""
    model = build(position_offset=50)
    src, prev = tokens(2, 9, pad_left=(0, 3)), tokens(2, 7, pad_right=(2, 0))
    plain = build()
    for side, batch in ((model.encoder, src), (model.decoder, prev)):
        offset = torch.tensor([[0], [13]])
        shifted = side.position_embeddings(batch, offset)
        torch.testing.assert_close(shifted[0], plain.encoder.position_embeddings(batch, None)[0])
        table = side.embed_positions.weights
        n = int(batch[1].ne(1).sum())
        torch.testing.assert_close(shifted[1][batch[1].ne(1)], table[1 + 1 + 13 : 1 + 1 + 13 + n])
        assert not shifted[1][batch[1].eq(1)].any()  # padding has no position
    seen = []
    monkeypatch.setattr(torch, "randint", lambda high, shape, **_: seen.append(high) or torch.full(shape, 50))
    model.train()(src, None, prev)
    assert seen == [51]
    trained = model(src, None, prev)[0]
    model.eval()
    assert seen == [51, 51]
    evaluated = model(src, None, prev)[0]
    assert seen == [51, 51] and not torch.allclose(trained, evaluated)
    torch.testing.assert_close(evaluated, plain.eval()(src, None, prev)[0])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_counts_are_those_of_the_mask(causal, padding):
    key_padding = None
    if padding:
        key_padding = torch.zeros(2, 9, dtype=torch.bool)
        key_padding[0, slice(0, 3) if padding == "left" else slice(-3, None)] = True
    mask = AttentionMask(key_padding, causal)
    device = torch.device("cpu")
    for n_queries in (9, 4) if causal else (5,):
        full = mask.full(2, n_queries, 9, device).sum(-1)
        assert torch.equal(mask.counts(n_queries, 9, device).expand(2, n_queries), full)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"position_offset": -1}, "--position-offset -1: expected 0, or"),
        ({"position_offset": 5, "encoder_learned_pos": True}, "only sinusoidal positions can be shifted"),
    ],
)
def test_impossible_options_are_refused(build, options, message):
    with pytest.raises(InputError, match=message):
        build(**options)
