"""Operators whose rows depend on nothing else: PyTorch's results, and the same bits in any batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fairseq_lasformer import ops
from fairseq_lasformer.nn.activations import KERNELS
from fairseq_lasformer.ops import KeyIndex, cpu

pytestmark = pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")


def close(mine: torch.Tensor, exact: torch.Tensor) -> None:
    torch.testing.assert_close(mine, exact.float(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("n", [1, 15, 16, 515])
def test_rows_are_those_of_pytorch_and_alone_the_same(n):
    x, weight, bias = torch.randn(7, n) * 4, torch.randn(n), torch.randn(n)
    cases = [
        (
            lambda x: ops.layer_norm(x, weight, bias, 1e-5),
            lambda x: F.layer_norm(x, (n,), weight.double(), bias.double()),
        ),
        (ops.log_softmax, lambda x: x.log_softmax(-1)),
        *((lambda x, k=k: ops.activate(x, k), f) for f, k in KERNELS.items()),
    ]
    for mine, exact in cases:
        found = mine(x)
        close(found, exact(x.double()))
        assert all(torch.equal(mine(x[i : i + 1]), found[i : i + 1]) for i in range(7))


def test_log_probabilities_of_what_is_excluded_or_undefined():
    x = torch.tensor([[0.0, -torch.inf, 0.0], [-torch.inf] * 3, [torch.nan, 1.0, 2.0], [torch.inf, 1.0, 2.0]])
    found, theirs = ops.log_softmax(x), x.log_softmax(-1)
    torch.testing.assert_close(found, theirs, equal_nan=True)


@pytest.mark.parametrize("n_keys, head_width", [(1, 8), (50, 64), (333, 20)])
def test_dense_attention_is_that_of_pytorch_whatever_stands_beside_an_item(n_keys, head_width):
    q, k, v = torch.randn(3, 60, 3 * head_width), *torch.randn(2, 3, n_keys, 3 * head_width)
    start, count = torch.tensor([0, n_keys // 2, 0]), torch.tensor([n_keys, n_keys - n_keys // 2, 0])
    found = ops.dense_attention(q, k, v, KeyIndex(None, start, count, n_keys), 3)
    assert not found[2].any()
    for i in range(2):
        own = slice(int(start[i]), int(start[i] + count[i]))
        heads = (t.view(1, -1, 3, head_width).transpose(1, 2).double() for t in (q[i], k[i, own], v[i, own]))
        close(found[i], F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(60, -1))
        index = KeyIndex(None, torch.tensor([0]), count[i : i + 1], int(count[i]))
        some = ops.dense_attention(q[i : i + 1, 7:20], k[i : i + 1, own], v[i : i + 1, own], index, 3)
        assert torch.equal(some[0], found[i, 7:20])
    with pytest.raises(RuntimeError, match="positions beyond"):
        ops.dense_attention(q, k, v, KeyIndex(None, start + 1, count, n_keys), 3)
