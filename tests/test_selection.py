"""Adaptive sparsity (eq 7) by hand-computed steps, and what keeps kappa exact."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import assert_steps_are_a_full_pass, tokens

from fairseq_lasformer import ops
from fairseq_lasformer.ops import KAPPA_ONE
from fairseq_lasformer.selection import Selector, SparsityRule

RULE = SparsityRule(threshold=0.95, step=0.001, minimum=0.01, freeze_above=0.5)


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


@pytest.mark.parametrize("window", [1, 4, 5, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_a_window_keeps_the_nearest_keys(window, causal):
    padding = torch.zeros(2, 13, dtype=torch.bool)
    padding[1, :4] = not causal
    for own, n_queries in ((True, 13), (False, 17)):
        if causal and not own:
            continue
        allowed = ops.Allowed(padding, causal)
        mask = ops.window_mask((2, n_queries, 13), allowed, window, own, padding.device)
        full = allowed.full(2, n_queries, 13, padding.device)
        for b in range(2):
            for i in range(n_queries):
                keys = [j for j in range(13) if full[b, i, j]]
                place = i - 4 if b and own and not causal else i
                if place < 0:
                    continue  # padding asks nothing
                nearest = sorted(range(len(keys)), key=lambda r: (abs(r - place), r))[:window]
                assert mask[b, i].nonzero()[:, 0].tolist() == sorted(keys[r] for r in nearest), (b, i)


@pytest.mark.parametrize("window", [4, 20])
def test_a_model_with_a_window_decodes_as_it_trains(build, window):
    model = build(1.0, select_window=window).eval()
    src, prev = tokens(2, 15, pad_left=(0, 6)), tokens(2, 25)
    assert_steps_are_a_full_pass(model, src, prev)
    assert not list(model.selectors())
