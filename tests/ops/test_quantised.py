"""Decoding in 8 bits on GPUs: kernels against their definitions, to the last bit where these are sums of integers."""

from __future__ import annotations

import pytest
import torch
from helpers import HERE, skip_unless_here

from fairseq_lasformer import ops
from fairseq_lasformer.ops import EightBit, KeptKeys, KeyIndex, reference

BACKENDS = ["reference", "triton"]
TYPES = [torch.float32, torch.float16, torch.bfloat16]


def rows_of(n: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw rows of very different sizes; from seven on, some are not finite, and one is zero."""
    x = torch.randn(n, width) * torch.logspace(-2, 2, n)[:, None]
    if n >= 7:
        x[2, width // 2], x[4, 0], x[5] = float("nan"), -float("inf"), 0.0
    return x.to(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows, inputs, outputs", [(1, 1, 1), (5, 64, 48), (7, 130, 33), (20, 300, 150), (70, 37, 17)])
@pytest.mark.parametrize("with_bias", [True, False], ids=["bias", "plain"])
def test_products_are_the_definition_to_the_bit(backend, dtype, rows, inputs, outputs, with_bias):
    skip_unless_here(backend)
    weight, bias = torch.randn(outputs, inputs), torch.randn(outputs) if with_bias else None
    x = rows_of(rows, inputs, dtype)
    found = ops.quantise_linear(weight, bias, backend)(x[None])
    expected = reference.linear_int8(x.float(), weight, bias).to(dtype)
    assert found.dtype == dtype and found.shape == (1, rows, outputs)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=0, equal_nan=True)
    positive = ops.quantise_linear(weight, bias, backend)(x, relu=True)
    torch.testing.assert_close(positive, expected.relu(), rtol=0, atol=0, equal_nan=True)
    if rows >= 7:
        assert bool(found[0, [2, 4]].isnan().all()) and bool(found[0, [0, 1, 3, 5, 6]].isfinite().all())


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels on this machine")
def test_the_rule_is_the_cpus():
    weight, bias, x = torch.randn(40, 60), torch.randn(40), torch.randn(6, 60)
    assert torch.equal(ops.quantise_linear(weight, bias)(x), ops.pack_linear(weight, bias, int8=True)(x))


def test_joined_layers_are_the_layers_one_after_another():
    x, layers = torch.randn(3, 8), [ops.quantise_linear(torch.randn(n, 8) * n, torch.randn(n)) for n in (5, 1, 7)]
    assert torch.equal(ops.joined_quantised(layers)(x), torch.cat([layer(x) for layer in layers], 1))
    plain = [ops.quantise_linear(torch.randn(n, 8)) for n in (2, 3)]
    assert torch.equal(ops.joined_quantised(plain)(x), torch.cat([layer(x) for layer in plain], 1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_some_outputs_are_those_of_the_whole(backend):
    skip_unless_here(backend)
    layer, x = ops.quantise_linear(torch.randn(40, 60), torch.randn(40), backend), torch.randn(6, 60)
    chosen = torch.tensor([39, 0, 7])
    assert torch.equal(layer.outputs_of(chosen)(x), layer(x)[:, chosen])


def test_weights_that_are_not_finite_are_refused():
    weight = torch.randn(4, 4)
    weight[1, 2] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        ops.quantise_linear(weight)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n_heads, width", [(1, 16), (3, 20), (4, 64)])
def test_keys_and_values_are_written_where_they_belong(backend, dtype, n_heads, width):
    skip_unless_here(backend)
    n_items, beam, capacity = 3, 4, 9
    newest = torch.tensor([2, 8, 0, 5])
    key, value = rows_of(n_items * beam, n_heads * width, dtype), torch.randn(n_items * beam, n_heads * width).to(dtype)
    stores = [
        EightBit(
            torch.full((n_items, capacity, n_heads * width), 99, dtype=torch.int8),
            torch.full((n_items, capacity, n_heads), -1.0),
        )
        for _ in range(2)
    ]
    ops.append_heads(key, value, newest, *stores, backend)
    for new, (numbers, scale) in zip((key, value), stores):
        their_numbers, their_scale = reference.quantised_heads(new, n_heads)
        assert torch.equal(numbers[:, newest].flatten(0, 1), their_numbers)
        torch.testing.assert_close(scale[:, newest].flatten(0, 1), their_scale, rtol=0, atol=0, equal_nan=True)
        others = torch.tensor([1, 3, 4, 6, 7])
        assert bool((numbers[:, others] == 99).all()) and bool((scale[:, others] == -1).all())


def kept_in_8_bits(n_items: int, capacity: int, n_heads: int, width: int) -> tuple[EightBit, EightBit]:
    sizes = torch.logspace(-1, 1, capacity)[:, None]
    keys, values = (torch.randn(n_items, capacity, n_heads * width) * sizes for _ in range(2))
    return EightBit(*reference.quantised_heads(keys, n_heads)), EightBit(*reference.quantised_heads(values, n_heads))


def exact(store: EightBit) -> torch.Tensor:
    n_heads = store.scale.size(2)
    return (store.numbers.unflatten(2, (n_heads, -1)) * store.scale[..., None]).flatten(2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n_heads, width", [(1, 16), (3, 20), (4, 64)])
def test_attention_is_that_over_what_the_numbers_stand_for(backend, dtype, n_heads, width):
    skip_unless_here(backend)
    keys, values = kept_in_8_bits(2, 90, n_heads, width)
    q = torch.randn(6, n_heads * width).to(dtype)
    slots = torch.stack([torch.randperm(90)[:70] for _ in range(6)]).int()
    counts = torch.tensor([70, 1, 0, 33, 32, 64], dtype=torch.int32)
    slots[torch.arange(70)[None] >= counts[:, None]] = -1
    found = ops.attend_kept(q, keys, values, None, KeptKeys(slots, counts), n_heads, backend)
    expected = reference.attend_kept(q.float(), exact(keys), exact(values), KeptKeys(slots, counts), n_heads)
    assert found.dtype == dtype and bool((found[2] == 0).all())
    torch.testing.assert_close(found.float(), expected, rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("start, count", [([0, 0], [80, 80]), ([0, 13], [80, 67]), ([5, 0], [0, 40])])
def test_every_key_of_a_source_is_read(backend, start, count):
    skip_unless_here(backend)
    keys, values = kept_in_8_bits(2, 80, 2, 20)
    paths = KeyIndex(None, torch.tensor(start), torch.tensor(count), 80)
    q = torch.randn(6, 40)
    found = ops.attend_kept(q, keys, values, paths, None, 2, backend)
    expected = ops.attend_kept(q, exact(keys), exact(values), paths, None, 2, "reference")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_position_of_a_translation_is_read(backend):
    skip_unless_here(backend)
    keys, values = kept_in_8_bits(2, 80, 2, 20)
    table = torch.stack([torch.randperm(80)[:50] for _ in range(6)]).int()
    paths = KeyIndex(table, torch.zeros(2, dtype=torch.long), torch.tensor([45, 12]), 45)
    q = torch.randn(6, 40)
    found = ops.attend_kept(q, keys, values, paths, None, 2, backend)
    expected = ops.attend_kept(q, exact(keys), exact(values), paths, None, 2, "reference")
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
