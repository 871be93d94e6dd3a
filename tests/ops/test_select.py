"""Selection of keys: against a brute-force sort, in blocks."""

from __future__ import annotations

import pytest
import torch
from helpers import SHAPES, case
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lasformer.ops import KAPPA_ONE, reference


def brute_force(scores: list[float], keep: int) -> list[bool]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return [i in order[:keep] for i in range(len(scores))]


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_selection_equals_a_brute_force_sort_with_ties_and_masks(data):
    n = data.draw(st.integers(1, 40))
    rows = data.draw(st.integers(1, 4))
    # few distinct values: many ties, also at the threshold
    values = st.lists(st.sampled_from([-1.5, 0.0, 0.25, 2.0, float("-inf")]), min_size=n, max_size=n)
    scores = torch.tensor([data.draw(values) for _ in range(rows)])
    n_allowed = (scores > float("-inf")).sum(-1)
    kappa = data.draw(st.integers(10_000, KAPPA_ONE))
    keep = reference.keep_counts(n_allowed, kappa)
    expected = torch.tensor([brute_force(r, int(c)) for r, c in zip(scores.tolist(), keep)])
    from fairseq_lasformer.ops.select import topk_rows

    assert torch.equal(reference.select(scores, keep), expected)
    assert torch.equal(topk_rows(scores, keep, n_allowed), expected)


@pytest.mark.parametrize(
    "n_allowed, kappa, keep",
    [
        (5, 0.05, 5),
        (10, 0.05, 10),
        (11, 0.05, 10),
        (200, 0.05, 10),
        (201, 0.05, 11),
        (4096, 0.05, 205),
        (100, 0.29, 29),
        (0, 0.5, 0),
        (7, 1.0, 7),
    ],
)
def test_keep_counts_by_hand(n_allowed, kappa, keep):
    assert int(reference.keep_counts(torch.tensor(n_allowed), round(kappa * KAPPA_ONE))) == keep


@pytest.mark.parametrize("shape", [s.values for s in SHAPES], ids=[s.id for s in SHAPES])
def test_blocked_selection_equals_its_definition(shape, small_blocks):
    *_, sel_q, sel_k, mask, allowed, full = case(*shape)
    scores = reference.selector_scores(sel_q, sel_k, full)
    expected = reference.select(scores, reference.keep_counts(full.sum(-1), 300_000)) & full
    assert torch.equal(mask, expected)
