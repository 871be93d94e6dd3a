"""Adaptive sparsity (eq 7 of arXiv 2309.14174) by hand-computed steps."""

from __future__ import annotations

import copy

import pytest
import torch
from definitions import RULE

from fairseq_lasformer.nn.patterns.learned import Selector
from fairseq_lasformer.ops import KAPPA_ONE


@pytest.mark.parametrize(
    "kappa, mass, expected",
    [
        (1.0, 0.99, 0.999),  # enough mass: fewer keys
        (1.0, 0.95, 1.0),  # not above the threshold, and no growth above 0.5
        (0.501, 0.2, 0.501),
        (0.5, 0.2, 0.501),  # at 0.5 it may still grow
        (0.3, 0.9, 0.301),
        (0.3, 0.951, 0.299),
        (0.0105, 0.99, 0.01),  # never below the minimum
    ],
)
def test_kappa_steps_by_hand(kappa, mass, expected):
    assert RULE.next(round(kappa * KAPPA_ONE), mass) == round(expected * KAPPA_ONE)


@pytest.mark.parametrize("mass", [0.2, 0.99])
def test_kappa_may_be_held(mass):
    held = RULE._replace(fixed=0.005)  # even below the minimum of what adapts
    assert held.next(KAPPA_ONE, mass) == held.next(5000, mass) == 5000


def test_kappa_comes_down_and_turns_where_the_mass_does():
    kappa, seen = KAPPA_ONE, []
    for _ in range(1200):
        kappa = RULE.next(kappa, 0.96 if kappa > 0.2 * KAPPA_ONE else 0.9)
        seen.append(kappa)
    assert seen[:3] == [999_000, 998_000, 997_000]
    assert {k for k in seen[900:]} == {200_000, 201_000}


def test_kappa_survives_half_precision_and_copies():
    selector = Selector(8, 8, 4, RULE)
    selector.kappa.fill_(123_457)
    for other in (copy.deepcopy(selector).half(), copy.deepcopy(selector).bfloat16()):
        assert int(other.kappa) == 123_457 and other.kappa.dtype == torch.int64
    fresh = Selector(8, 8, 4, RULE)
    fresh.load_state_dict(selector.state_dict())
    assert fresh.share == 0.123457
