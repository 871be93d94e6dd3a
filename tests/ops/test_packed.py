"""Packed linear layers: float32 against PyTorch, int8 against its definition to the bit, on every instruction set."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fairseq_lasformer import ops
from fairseq_lasformer.ops import cpu
from fairseq_lasformer.ops.reference import linear_int8, quantised

pytestmark = pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")

SHAPES = [
    (1, 1, 1),
    (5, 512, 512),
    (5, 513, 130),
    (6, 64, 16),
    (7, 37, 17),
    (31, 4, 200),
    (160, 96, 260),
    (47, 128, 90),
    (200, 64, 33),
]


def layer(inputs: int, outputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(outputs, inputs), torch.randn(outputs)


@pytest.mark.parametrize("rows, inputs, outputs", SHAPES)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "plain"])
def test_float_products_are_those_of_pytorch(rows, inputs, outputs, with_bias, instructions):
    weight, bias = layer(inputs, outputs)
    bias = bias if with_bias else None
    x = torch.randn(2, rows, inputs)
    packed = ops.pack_linear(weight, bias)
    found = packed(x)
    torch.testing.assert_close(found, F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    cpu.use_instructions()
    exact = 1e-5 if "plain" in (instructions, cpu.use_instructions()) else 0  # products are not fused there
    torch.testing.assert_close(found, packed(x), rtol=exact, atol=exact)  # registers of any width add in the same order


@pytest.mark.parametrize("rows, inputs, outputs", SHAPES)
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "plain"])
def test_8_bit_products_are_the_definition_to_the_bit(rows, inputs, outputs, with_bias, instructions):
    weight, bias = layer(inputs, outputs)
    bias = bias if with_bias else None
    x = torch.randn(rows, inputs) * torch.logspace(-20, 20, rows)[:, None]
    torch.testing.assert_close(
        ops.pack_linear(weight, bias, int8=True)(x), linear_int8(x, weight, bias), rtol=0, atol=0
    )


def test_8_bit_products_are_close_to_those_of_the_weights():
    weight, bias = layer(512, 300)
    x = torch.randn(50, 512)
    exact = F.linear(x, weight, bias)
    error = (ops.pack_linear(weight, bias, int8=True)(x) - exact).norm() / exact.norm()
    assert 0.001 < error < 0.02


def test_the_largest_numbers_do_not_saturate(instructions):
    """255 * 127 twice exceeds 16 bits, where some instructions saturate."""
    x, weight = torch.ones(3, 2048), torch.ones(20, 2048)
    x[1], weight[::2] = -1.0, -1.0
    found = ops.pack_linear(weight, None, int8=True)(x)
    torch.testing.assert_close(found, x @ weight.T, rtol=1e-6, atol=0)


def test_rows_that_are_not_finite_do_not_touch_others(instructions):
    weight, bias = layer(40, 18)
    x = torch.randn(9, 40)
    packed = ops.pack_linear(weight, bias, int8=True)
    expected = packed(x)
    x[2, 7], x[4, 0], x[6, 39] = float("nan"), float("inf"), -float("inf")
    x[8] = 0.0
    found = packed(x)
    assert found[[2, 4, 6]].isnan().all()
    torch.testing.assert_close(found[8], bias, rtol=0, atol=0)
    torch.testing.assert_close(found[[0, 1, 3, 5, 7]], expected[[0, 1, 3, 5, 7]], rtol=0, atol=0)


def test_quantised_rows_keep_their_largest_number():
    x = torch.tensor([[0.5, -2.0, 1.0], [0.0, 0.0, 0.0], [float("inf"), 1.0, 1.0]])
    numbers, scale = quantised(x)
    assert numbers.tolist() == [[32, -127, 64], [0, 0, 0], [0, 0, 0]]
    assert scale[:2, 0].tolist() == [pytest.approx(2.0 / 127), 0.0] and scale[2].isnan()


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        ops.pack_linear(torch.tensor([[float("nan")]]), None, int8=True)
    packed = ops.pack_linear(*layer(8, 16))
    with pytest.raises(RuntimeError, match="not packed for 9 inputs"):
        packed(torch.zeros(1, 9))
    with pytest.raises(RuntimeError, match="bias"):
        replace(packed, bias=torch.zeros(3))(torch.zeros(1, 8))
    with pytest.raises(RuntimeError, match="scale"):
        replace(packed, weight=torch.zeros(1, 2, 16, 4, dtype=torch.int8))(torch.zeros(1, 8))
    assert packed(torch.zeros(0, 8)).shape == (0, 16)


@pytest.mark.parametrize("int8", [False, True])
def test_nothing_in_gives_nothing_out(int8):
    assert ops.pack_linear(torch.randn(0, 8), None, int8)(torch.randn(3, 8)).shape == (3, 0)
    assert ops.pack_linear(torch.randn(5, 8), None, int8)(torch.randn(0, 8)).shape == (0, 5)


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("chosen", [[0], [3, 17, 40], list(range(41)), [40, 0, 16, 16]])
def test_some_outputs_are_those_of_the_whole_layer(int8, chosen):
    torch.manual_seed(3)
    layer = ops.pack_linear(torch.randn(41, 37), torch.randn(41) if len(chosen) != 3 else None, int8)
    x = torch.randn(7, 37)
    some = layer.outputs_of(torch.tensor(chosen))
    assert some.outputs == len(chosen) and torch.equal(some(x), layer(x)[:, chosen])
