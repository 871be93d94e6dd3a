"""Steps over rows of scores: the CPU kernels against their definitions in plain PyTorch."""

from __future__ import annotations

import pytest
import torch

from fairseq_lasformer.ops import reference
from fairseq_lasformer.ops.cpu import kernels, rows

pytestmark = [pytest.mark.skipif(kernels() is None, reason="no CPU kernels"), pytest.mark.usefixtures("instructions")]
B, H, R, K = 2, 3, 5, 37


def both(work, monkeypatch):
    """Return the results of a function with the kernels and without."""
    found = work()
    monkeypatch.setattr(rows, "_kernels", lambda block: None)
    return zip(found, work())


@pytest.mark.parametrize("items", [0, 1, B])
def test_kernels_are_their_definitions(items, monkeypatch):
    scores, d = torch.randn(B, H, R, K) * 5, torch.randn(B, H, R, K)
    mask = torch.rand(items, R, K) < 0.4 if items else None
    if mask is not None:
        mask[0, 1] = False  # a row without keys
    keep = torch.rand(B, R, K) < 0.3
    keep[1, 2] = False
    delta, d_mean = torch.randn(B, H, R), torch.randn(B, R, K)

    def work():
        mean = torch.ones(B, R, K)
        weights = rows.softmax_mean_(scores.clone(), mask, mean, 0.1)
        kept, lse = rows.kept_softmax_(scores.clone(), keep)
        again, d_scores = rows.kept_gradient_(scores.clone(), d.clone(), lse, delta, keep)
        gradient = rows.softmax_gradient_(kept.clone(), d_mean)
        found = [mean, weights, kept, lse, again, d_scores, gradient]
        return found + [rows.mask_gradient(scores, lse, d, delta, mask, bounded) for bounded in (True, False)]

    for a, b in both(work, monkeypatch):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_what_is_not_a_number_stays_one():
    """A score that is NaN makes its row NaN, as in the definition; a masked one does not matter."""
    scores, mask = torch.randn(1, 1, 4, K), torch.ones(1, 4, K, dtype=torch.bool)
    scores[0, 0, 0] = scores[0, 0, 1, 5] = scores[0, 0, 2, 7] = float("nan")
    mask[0, 2, 7] = False
    mask[0, 3] = False
    mean = torch.zeros(1, 4, K)
    found = rows.softmax_mean_(scores.clone(), mask, mean, 1.0)
    expected = reference.masked_softmax(scores, mask[:, None])
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(mean, expected[:, 0], equal_nan=True)
    assert found[0, 0, :2].isnan().all() and not found[0, 0, 2:].isnan().any()


def test_wrong_blocks_are_refused():
    ops, x = torch.ops.fairseq_lasformer, torch.randn(B, H, R, K)
    for call, reason in (
        (lambda: ops.row_softmax(x.double(), None, None, 0.0), "scores: expected"),
        (lambda: ops.row_softmax(x, torch.ones(B, R, K - 1, dtype=torch.bool), None, 0.0), "allowed: expected"),
        (lambda: ops.row_softmax(x, None, torch.zeros(R, K), 0.1), "mean: expected"),
        (lambda: ops.softmax_gradient(x, torch.zeros(R, K)), "mean: expected"),
        (lambda: ops.mask_gradient(x, x[0], x, x[..., 0].contiguous(), None, 0.0), "lse, delta: expected"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            call()
