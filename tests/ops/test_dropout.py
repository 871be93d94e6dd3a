"""Dropout by a hash: the kernel is its definition to the bit, and a seed decides the whole mask."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from fairseq_lasformer import ops
from fairseq_lasformer.ops import cpu
from fairseq_lasformer.ops.dropout import dropped, factors
from fairseq_lasformer.ops.types import DropoutMask

MASK = DropoutMask(0.3, 2**31 - 5)


@pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")
@pytest.mark.parametrize("shape", [(1,), (16,), (3, 37), (2, 5, 64), (0, 4), (4, 0), (700, 300)])
def test_the_kernel_is_the_definition(shape, monkeypatch):
    x, added = torch.randn(2, *shape)
    found = [dropped(x, MASK), dropped(x, MASK, added), dropped(x.transpose(0, -1), MASK, added.transpose(0, -1))]
    monkeypatch.setattr(sys.modules["fairseq_lasformer.ops.dropout"], "kernels", lambda: None)
    expected = [dropped(x, MASK), dropped(x, MASK, added), dropped(x.transpose(0, -1), MASK, added.transpose(0, -1))]
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


@pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")
def test_any_number_of_threads_gives_the_same_mask():
    x, threads = torch.randn(3000, 256), torch.get_num_threads()
    found = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(dropped(x, MASK))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("p", [0.0001, 0.1, 0.5, 0.9])
def test_the_share_of_zeros_is_p_in_rows_columns_and_pairs_and_seeds_differ(p):
    n, zeros = 2**20, []
    for seed in (1, 2):
        y = dropped(torch.ones(1024, 1024), DropoutMask(p, seed))
        assert set(y.unique().tolist()) == {0.0, float(torch.tensor(1 / (1 - p)))}
        zeros.append(y == 0)
    first, second = zeros
    five = lambda share, of: 5 * (share * (1 - share) / of) ** 0.5  # noqa: E731
    for zero in zeros:
        assert abs(zero.double().mean() - p) < five(p, n)
        for axis in (0, 1):
            assert (zero.double().mean(axis) - p).abs().max() < five(p, 1024) + 0.01
    for other in (second, first.roll(1, 0), first.roll(1, 1), first.t()):  # independent: both with p squared
        assert abs((first & other).double().mean() - p * p) < five(p * p, n)


def test_gradients_pass_where_the_forward_pass_did():
    x, added = (torch.randn(40, 50, requires_grad=True) for _ in range(2))
    y = ops.dropout(x, 0.25, added)
    weight = torch.randn(40, 50)
    d_x, d_added = torch.autograd.grad((y * weight).sum(), (x, added))
    kept = (y - added).detach() != 0
    assert 0.6 < kept.double().mean() < 0.9
    torch.testing.assert_close(d_x, weight * kept / 0.75)
    assert torch.equal(d_added, weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_get_the_same_mask(dtype):
    x = torch.ones(20, 30)
    assert torch.equal(dropped(x, MASK) == 0, dropped(x.to(dtype), MASK) == 0)
    assert dropped(x.to(dtype), MASK).dtype == dtype
    assert torch.equal(factors(MASK, torch.arange(20)[:, None], torch.arange(30)), dropped(x, MASK))


def test_torchs_generator_decides_also_in_a_recomputed_pass():
    def twice(x):
        return ops.dropout(ops.dropout(x, 0.5) + 1, 0.5)

    results = []
    for run in (lambda x: twice(x), lambda x: checkpoint(twice, x, use_reentrant=False)):
        torch.manual_seed(3)
        x = torch.ones(100, 100, requires_grad=True)
        y = run(x)
        results.append((y, *torch.autograd.grad(y.sum(), x)))
    assert all(torch.equal(a, b) for a, b in zip(*results))
    torch.manual_seed(4)
    assert not torch.equal(twice(torch.ones(100, 100)), results[0][0])


def test_what_is_not_a_number_stays_so_and_p_is_checked():
    assert dropped(torch.full((9, 9), float("nan")), MASK).isnan().all()
    if cpu.kernels() is not None:
        for p in (1.0, -0.1, 0.0):
            with pytest.raises(RuntimeError, match="expected a probability"):
                torch.ops.fairseq_lasformer.dropout(torch.ones(3), None, p, 1)
