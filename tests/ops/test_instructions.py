"""Every operator of the CPU kernels gives the same bits with every instruction set."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from fairseq_lasformer import ops
from fairseq_lasformer.base import machine
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.ops import cpu

pytestmark = pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")
KERNELS = torch.ops.fairseq_lasformer


def of_decoding(dtype: torch.dtype, width: int) -> list[torch.Tensor]:
    """Compute selection and attention of 5 rows over 1,500 cached keys."""
    torch.manual_seed(width)
    q, keys, values = torch.randn(5, 4 * width), *torch.randn(2, 1, 1500, 4 * width).to(dtype)
    start, count = torch.tensor([3]), torch.tensor([1490])
    slots, kept = KERNELS.topk_indices(q, keys, None, start, count, 61_000)
    out = KERNELS.attend_kept(q, keys, values, slots, kept, 4)
    (keys, key_scales), (values, value_scales) = (ops.quantise_heads(t.float(), 4) for t in (keys, values))
    eight = KERNELS.attend_kept(q, keys, values, slots, kept, 4, key_scales, value_scales)
    return [slots, kept, out, keys, key_scales, eight]


def of_training(dtype: torch.dtype, width: int) -> list[torch.Tensor]:
    """Compute attention over kept keys, forward and backward, with dropout."""
    torch.manual_seed(width)
    q, k, v, d_out = torch.randn(4, 2, 3, 70, width).to(dtype)
    kept = torch.randint(0, 24, (2 * 70,), dtype=torch.int32)
    slots = torch.rand(2 * 70, 70).argsort(1)[:, :24].int()
    found = []
    for p in (0.0, 0.3):
        out, lse = KERNELS.gather_forward(q, k, v, slots, kept, p, 5)
        found += [out, lse, *KERNELS.gather_backward(d_out.transpose(1, 2), q, k, v, slots, kept, out, lse, p, 5)]
    return found


def of_rows(n: int) -> list[torch.Tensor]:
    """Compute the operators over rows of scores, and the rest of a step."""
    torch.manual_seed(n)
    scores, d = torch.randn(2, 2, 3, 5, n) * 5
    mask, lse, delta = torch.rand(2, 5, n) < 0.5, torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    mean = torch.zeros(2, 5, n)
    softmax, kept, d_kept = scores.clone(), scores.clone(), d.clone()
    norms = KERNELS.row_softmax(softmax, mask, mean, 0.3)
    KERNELS.kept_gradient(kept, d_kept, lse, delta, mask)
    gradient = KERNELS.mask_gradient(scores, lse, d, delta, mask, 1.0)
    found = [softmax, mean, norms, kept, d_kept, gradient]
    KERNELS.softmax_gradient(softmax, mean)
    best, places = KERNELS.top_candidates(scores[0], scores[0, :, :, 0], min(7, n))
    packed = [ops.pack_linear(torch.randn(n, 37), torch.randn(n), int8=int8) for int8 in (False, True)]
    x, keys = torch.randn(9, 37), torch.randn(2, n, 36)
    start, count = torch.tensor([0, n // 2]), torch.tensor([n, n - n // 2])
    found += [KERNELS.dense_attention(torch.randn(2, 7, 36), keys, keys.flip(1), start, count, 2)]
    found += [KERNELS.layer_norm(scores, torch.randn(n), torch.randn(n), 1e-5), KERNELS.log_softmax(scores.view(-1, n))]
    found += [KERNELS.dropout(scores, added, 0.3, 2**31 - n) for added in (None, d)]
    found += [KERNELS.activate(scores, activation) for activation in range(5)]
    return [*found, softmax, best, places, *(layer(x) for layer in packed)]


CASES = {
    **{
        f"decoding, {t}, {w}": (of_decoding, t, w)
        for t in (torch.float32, torch.bfloat16, torch.float16)
        for w in (64, 20)
    },
    **{f"training, {t}, {w}": (of_training, t, w) for t in (torch.float32, torch.bfloat16) for w in (64, 19)},
    **{f"rows of {n}": (of_rows, n) for n in (1, 16, 37, 200)},
}


@pytest.mark.parametrize("case", CASES)
def test_all_instruction_sets_give_the_same_bits(case, instructions):
    work, *arguments = CASES[case]
    found = work(*arguments)
    cpu.use_instructions()
    for mine, best in zip(found, work(*arguments), strict=True):
        if instructions == "plain" and mine.is_floating_point():  # products are not fused there
            close = 0.05 if mine.dtype == torch.bfloat16 else 1e-4
            torch.testing.assert_close(mine, best, rtol=close, atol=close)
        else:
            assert torch.equal(mine, best)


ARITHMETIC = {"score", "attend", "gather_forward", "gather_backward", "row_softmax", "mask_gradient", "kept_gradient"}
"""Functions that are many times slower with fused multiply-adds in software."""


EVERY = {*ARITHMETIC, "candidates", "softmax_gradient"}
"""All functions that are measured."""


@pytest.fixture
def two_sets():
    if not {"plain_fused", "avx2"} <= set(cpu.instruction_sets()):
        pytest.skip("needs a processor with AVX2")
    yield
    cpu.use_instructions()


def test_functions_are_borrowed_where_they_are_faster(two_sets):
    assert cpu.use_instructions("plain_fused+avx2") == "plain_fused"
    assert set(cpu.borrowed_functions()) >= {f"avx2.{name}" for name in ARITHMETIC}
    assert cpu.use_instructions("avx2+plain_fused") == "avx2"
    assert not set(cpu.borrowed_functions()) & {f"plain_fused.{name}" for name in (*ARITHMETIC, "product")}
    assert cpu.use_instructions("avx2") == "avx2" and cpu.borrowed_functions() == []
    best = cpu.use_instructions()
    known = {*(f"avx2.{name}" for name in EVERY), "avx512_vnni.product"}
    assert best == cpu.instruction_sets()[0] and set(cpu.borrowed_functions()) < known
    assert best.startswith("avx512") or cpu.borrowed_functions() == []
    assert best == "avx512_amx" or "avx512_vnni.product" not in cpu.borrowed_functions()
    for wrong in ("avx2+nonsense", "nonsense+avx2", "avx2+", "+avx2"):
        with pytest.raises(InputError, match="not available on this machine"):
            cpu.use_instructions(wrong)


def test_an_8_bit_product_is_borrowed_only_where_numbers_have_the_same_form(two_sets):
    """``plain_fused`` has 8 bits from -127, ``avx2`` 16 bits: with the other's product, results would be nonsense."""
    layer, x = ops.pack_linear(torch.randn(48, 64), int8=True), torch.randn(40, 64)
    expected = layer(x)
    for sets in ("plain_fused+avx2", "avx2+plain_fused", "plain+plain_fused"):
        cpu.use_instructions(sets)
        assert not any(name.endswith(".product") for name in cpu.borrowed_functions()) or sets == "plain+plain_fused"
        assert torch.equal(layer(x), expected)


@pytest.mark.parametrize("case", [case for case in CASES if "float32" in case or "rows of 37" in case])
def test_a_mixture_gives_the_same_bits(case, two_sets):
    work, *arguments = CASES[case]
    expected = work(*arguments)
    cpu.use_instructions("plain_fused+avx2")
    assert all(torch.equal(*pair) for pair in zip(work(*arguments), expected, strict=True))


def test_fused_multiply_adds_round_once(instructions):
    """1 + 2^-24 (1 + 2^-30) lies just above the middle between two numbers; as a double, it is the middle."""
    a, b = 25 * 13 * 41 * 61 * 2.0**-44, 1321 * 2.0**-10  # their product is 2^-24 + 2^-54
    values = [
        (a, b, 1.0),
        (-a, b, -1.0),
        (a, -b, 1.0),
        (2.0**-80, 2.0**-69, 0.0),
        (1e30, 1e30, -1.0),
        (0.1, 0.3, -0.03),
    ]
    x, w = torch.tensor([[c, a] for a, _, c in values]), torch.tensor([[1.0, b] for _, b, _ in values])
    found = ops.pack_linear(w)(x).diagonal()
    if instructions == "plain":
        assert found[0] == 1.0 != 1.0 + 2.0**-23
        return
    exact = [Fraction(float(x)) * Fraction(float(w)) + Fraction(float(c)) for (c, x), (_, w) in zip(x, w)]
    for mine, sum_of in zip(found.tolist(), exact, strict=True):
        if math.isinf(mine):
            assert abs(sum_of) > Fraction(3.4e38)
            continue
        near = torch.tensor(mine)
        others = [near.nextafter(torch.tensor(to)) for to in (-math.inf, math.inf)]
        assert all(abs(Fraction(mine) - sum_of) <= abs(Fraction(float(other)) - sum_of) for other in others)


def test_figures_name_the_instructions_that_the_kernels_use(monkeypatch):
    monkeypatch.delenv("LASFORMER_ISA", raising=False)
    assert machine.instructions() == cpu.instruction_sets()[0]
    monkeypatch.setenv("LASFORMER_ISA", "plain")
    assert machine.instructions() == "plain"
