"""Every operator of the CPU kernels gives the same bits with every instruction set."""

from __future__ import annotations

import pytest
import torch

from fairseq_lasformer import machine, ops
from fairseq_lasformer.ops import cpu

pytestmark = pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")
KERNELS = torch.ops.fairseq_lasformer


def of_decoding(dtype: torch.dtype, width: int) -> list[torch.Tensor]:
    """Selection and attention of 5 rows over 1,500 cached keys."""
    torch.manual_seed(width)
    q, keys, values = torch.randn(5, 4 * width), *torch.randn(2, 1, 1500, 4 * width).to(dtype)
    start, count = torch.tensor([3]), torch.tensor([1490])
    slots, kept = KERNELS.topk_indices(q, keys, None, start, count, 61_000)
    out = KERNELS.attend_kept(q, keys, values, slots, kept, 4)
    (keys, key_scales), (values, value_scales) = (ops.quantise_heads(t.float(), 4) for t in (keys, values))
    eight = KERNELS.attend_kept(q, keys, values, slots, kept, 4, key_scales, value_scales)
    return [slots, kept, out, keys, key_scales, eight]


def of_training(dtype: torch.dtype, width: int) -> list[torch.Tensor]:
    """Attention over kept keys, forward and backward, with dropout."""
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
    """What is computed row by row over scores, and the rest of a step."""
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
    x = torch.randn(9, 37)
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


def test_figures_name_the_instructions_that_the_kernels_use(monkeypatch):
    monkeypatch.delenv("LASFORMER_ISA", raising=False)
    assert machine.instructions() == cpu.instruction_sets()[0]
    monkeypatch.setenv("LASFORMER_ISA", "plain")
    assert machine.instructions() == "plain"
