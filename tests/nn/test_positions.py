"""Positions that are the same on every processor: within rounding, the tables of fairseq and of Vaswani et al."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.modules import SinusoidalPositionalEmbedding

from fairseq_lasformer.ops import cpu
from fairseq_lasformer.plugin.positions import ReproduciblePositions, VaswaniPositions


@pytest.mark.parametrize("kind", [SinusoidalPositionalEmbedding, VaswaniPositions])
@pytest.mark.parametrize("dim", [8, 64])
def test_the_table_is_that_of_the_others(kind, dim):
    plain = kind(dim, 1, 300)
    fixed = ReproduciblePositions(plain)
    torch.testing.assert_close(fixed.weights, plain.weights, rtol=0, atol=3e-5)  # of angles up to 300, in float32
    tokens = torch.tensor([[1, 1, *range(4, 700)]])  # padded on the left, and longer than the table
    found, theirs = fixed(tokens), plain(tokens)
    assert found.shape == theirs.shape and not found[0, :2].any()
    torch.testing.assert_close(found, theirs, rtol=0, atol=1e-4)
    for place in (0, 3, 500):  # a step reads only the newest position
        step = tokens[:, 2 : 3 + place]
        torch.testing.assert_close(fixed(step, incremental_state={})[:, -1], found[:, 2 + place])


def test_sines_are_rounded_correctly():
    positions = ReproduciblePositions(SinusoidalPositionalEmbedding(4, 0, 3000))
    sines = positions.weights[1:, 0]  # of the frequency 1
    exact = torch.tensor([math.sin(p) for p in range(1, 3000)], dtype=torch.float64).float()
    assert torch.equal(sines, exact) and torch.equal(
        positions.weights[1:, 2], torch.cos(torch.arange(1, 3000).double()).float()
    )


@pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")
@pytest.mark.parametrize("table", ["fairseq", "vaswani"])
def test_preparing_a_model_twice_changes_nothing(build, table):
    model = build(0.2, position_table=table).eval()
    plain = [side.embed_positions.weights.clone() for side in (model.encoder, model.decoder)]
    for _ in range(2):
        for side, theirs in zip((model.encoder, model.decoder), plain):
            side.make_generation_fast_()  # the decoder does so again where weights have changed
            assert isinstance(side.embed_positions, ReproduciblePositions)
            torch.testing.assert_close(side.embed_positions.weights, theirs, rtol=0, atol=1e-4)
