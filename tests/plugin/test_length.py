"""Options for long documents: shifted positions, sharper attention, long examples more often."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from fairseq.data import FairseqDataset
from helpers import assert_steps_are_a_full_pass, tokens

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.ops import AttentionMask
from fairseq_lasformer.plugin.datasets.long_examples import LongExamplesOften


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


def test_attention_is_sharpened_beyond_a_length(build):
    """Queries that see no more keys than that attend as before; steps do as a full pass does."""
    sharp, plain = build(attention_length=12, backend="reference").eval(), build(backend="reference").eval()
    src, prev = tokens(2, 10, pad_left=(0, 3)), tokens(2, 20)
    with torch.no_grad():
        a, b = sharp(src, None, prev)[0], plain(src, None, prev)[0]
    torch.testing.assert_close(a[:, :12], b[:, :12])
    assert not torch.allclose(a[:, 12:], b[:, 12:])
    assert_steps_are_a_full_pass(sharp, tokens(2, 30, pad_left=(0, 15)), prev)
    attention = sharp.decoder.layers[0].self_attn
    q = torch.ones(1, 3, 2)
    scaled = attention.sharpened(q, torch.tensor([[[6], [12], [144]]]))
    torch.testing.assert_close(scaled[0, :, 0], torch.tensor([1.0, 1.0, 2.0]))
    assert math.log(144) / math.log(12) == pytest.approx(2)


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
        ({"position_offset": -1}, "--position-offset and --attention-length: expected 0, or"),
        ({"attention_length": 1}, "--position-offset and --attention-length: expected 0, or"),
        ({"position_offset": 5, "encoder_learned_pos": True}, "only sinusoidal positions can be shifted"),
    ],
)
def test_impossible_options_are_refused(build, options, message):
    with pytest.raises(InputError, match=message):
        build(**options)


class Lengths(FairseqDataset):
    def __init__(self, lengths):
        self.lengths = np.array(lengths)

    def __len__(self):
        return len(self.lengths)

    def num_tokens(self, index):
        return self.lengths[index]

    def num_tokens_vec(self, indices):
        return self.lengths[indices]

    def size(self, index):
        return self.lengths[index]

    def ordered_indices(self):
        return np.argsort(self.lengths, kind="stable")


def test_long_examples_occur_more_often_but_not_in_one_batch():
    data = LongExamplesOften(Lengths([3, 20, 9, 10, 1, 15]), 3)
    indices = data.ordered_indices()
    assert [list(indices).count(i) for i in range(6)] == [1, 3, 1, 3, 1, 3]
    batches = data.batch_by_size(indices, max_tokens=40)
    assert all(len(set(batch)) == len(batch) for batch in batches)
    assert sorted(i for batch in batches for i in batch) == sorted(indices)
