"""Rotations by the numbers of lines: a head scores a key by the distance in lines."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import BACKENDS
from torch import nn

from fairseq_lasformer.nn.rotary import frequencies, near, rotations, unrotated
from fairseq_lasformer.ops import PAIRS, n_pairs, rotate, rotate_heads


@pytest.mark.parametrize("width, pairs", [(4, 0), (8, 1), (15, 1), (16, 2), (31, 2), (32, 4), (64, 8), (128, 8)])
def test_a_quarter_of_a_head_is_rotated_at_most(width, pairs):
    assert n_pairs(width) == pairs


@pytest.mark.parametrize("width", [4, 8, 24, 64, 128])
def test_products_are_those_of_complex_numbers_and_depend_on_the_difference_of_lines(width):
    torch.manual_seed(1)
    q, k = torch.randn(2, 5, width, dtype=torch.float64)
    lines, others = torch.tensor([0, 3, 9, 40, 41]), torch.tensor([0, 4, 0, 40, 2])
    n = n_pairs(width)
    expected = (q[:, 2 * n :] * k[:, 2 * n :]).sum(-1)
    for i in range(n):
        angle = (lines - others).double() * 2.0 * 0.5 ** (i * (8 // n) + 4 // n)
        a, b = (torch.complex(x[:, i], x[:, n + i]) for x in (q, k))
        expected = expected + (a * torch.polar(torch.ones_like(angle), angle) * b.conj()).real
    for shift in (0, 7, 300):
        turned = [rotate(x, rotations(at + shift, frequencies())) for x, at in ((q, lines), (k, others))]
        torch.testing.assert_close((turned[0] * turned[1]).sum(-1), expected, rtol=0, atol=1e-4)
    assert width == 4 or not torch.equal(turned[0], q)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [4, 8, 20, 32, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@torch.no_grad()
def test_heads_that_follow_each_other_are_rotated_one_by_one(backend, width, dtype):
    """Part of a product, whose rows are not next to each other."""
    x, rotation = torch.randn(3, 5 + 3 * width, dtype=dtype)[:, 5:], rotations(torch.tensor([1, 2, 5]), frequencies())
    expected = torch.cat([rotate(x[:, i * width : (i + 1) * width].double(), rotation) for i in range(3)], 1)
    within = {torch.float32: 1e-6, torch.float64: 1e-6, torch.bfloat16: 0.05}[dtype]
    found = rotate_heads(x, 3, rotation, backend)
    torch.testing.assert_close(found.double(), expected, rtol=within, atol=within)
    assert found.dtype == dtype and (width == 4) == torch.equal(found, x)
    assert rotate_heads(x, 3, None, backend) is x


@pytest.mark.parametrize("width", [8, 32, 64])
def test_at_the_start_near_lines_score_more(width):
    constants = near(3, width, (8.0, 2.0, 0.0)).view(3, width)
    scores = []
    for distance in (0, 1, 30):
        turned = rotate(constants, rotations(torch.full((3,), distance), frequencies()))
        scores.append((turned * constants).sum(-1) / math.sqrt(width))
    torch.testing.assert_close(scores[0], torch.tensor([8.0, 2.0, 0.0]))
    assert (scores[1][:2] < scores[0][:2]).all()
    if width == 64:  # which has all frequencies
        assert 4.0 < scores[1][0] < 7.0 and abs(scores[2][0]) < 2.0


def test_rows_without_rotation():
    layer = nn.Linear(3, 2 * 16)
    kept = unrotated(layer.weight.detach(), 2).view(2, 16, 3)
    assert not kept[:, :4].any() and torch.equal(kept[:, 4:], layer.weight.detach().view(2, 16, 3)[:, 4:])


def test_a_rotation_has_all_pairs():
    found = rotations(torch.tensor([[0, 2]]), frequencies())
    assert found.shape == (1, 2, PAIRS, 2) and found.dtype == torch.float32
    assert torch.equal(found[0, 0, :, 0], torch.ones(PAIRS)) and not found[0, 0, :, 1].any()
    assert math.isclose(float(found[0, 1, 0, 1]), math.sin(4.0), rel_tol=1e-6)
    assert math.isclose(float(found[0, 1, 7, 1]), math.sin(2 * 2 / 128), rel_tol=1e-6)
