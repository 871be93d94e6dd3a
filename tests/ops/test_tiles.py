"""Tiles with a bitmask against the definition: selection, attention, gradients."""

from __future__ import annotations

import pytest
import torch
from helpers import HERE
from tiers import thinned

from fairseq_lasformer import ops
from fairseq_lasformer.ops import EVERY_ROW, AttentionMask, RowSample, backends, reference
from fairseq_lasformer.ops.dropout import factors
from fairseq_lasformer.ops.types import DropoutMask, StraightThrough

pytestmark = [pytest.mark.skipif(not HERE["triton"], reason="Triton is not installed"), pytest.mark.triton]


@pytest.fixture(autouse=True)
def poisoned():
    """Fresh memory is NaN (floats) or the largest integer, so reads of unwritten memory show."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


SHAPES = [(1, 1, False, 24), (63, 111, False, 24), (70, 200, False, 24), (40, 70, False, 300)]
SHAPES += [(40, 70, True, 40), (50, 130, True, 64), (129, 129, True, 8)]
# every shape padded on the left; every padding, with and without a causal mask
CASES = [(*shape, "left") for shape in SHAPES]
CASES += [(*shape, padding) for shape in (SHAPES[1], SHAPES[4]) for padding in (None, "all", "between")]


def case(n_queries, n_keys, causal, width, padding):
    torch.manual_seed(n_keys)
    key_padding = None
    if padding:
        key_padding = torch.zeros(2, n_keys, dtype=torch.bool)
        key_padding[1, : n_keys // 3 if padding == "left" else n_keys] = True
        if padding == "between":
            key_padding[1] = torch.arange(n_keys) % 3 == 1
    leaves = [torch.randn(2, 3, n, width, requires_grad=True) for n in (n_queries, n_keys, n_keys)]
    leaves += [torch.randn(2, n, 8, requires_grad=True) for n in (n_queries, n_keys)]
    return leaves, AttentionMask(key_padding, causal)


@pytest.mark.parametrize("n_queries,n_keys,causal,width,padding", thinned(CASES, (40, 70, True, 40, "left")))
def test_bits_are_those_of_the_definition(n_queries, n_keys, causal, width, padding):
    kappa = 1_000_000 if padding == "between" else 200_000
    (*_, sel_q, sel_k), mask = case(n_queries, n_keys, causal, width, padding)
    # sums of quarters are exact in any order, on every processor: ties are ties
    sel_q, sel_k = (torch.round(x.detach() * 4) / 4 for x in (sel_q, sel_k))
    sel_k[0, 7:9] = sel_k[0, 3:4].clone()
    expected = reference.topk_mask(sel_q, sel_k, mask, kappa)
    found = ops.topk_bitmask(sel_q, sel_k, mask, kappa)
    assert torch.equal(ops.mask_of(found, n_keys), expected)


LARGE = [(2147, 10**6), (2148, 10**6), (4096, 10**6), (4296, 500_000), (8192, 262_145), (43_000, 50_000)]


@pytest.mark.parametrize("n_keys, kappa", LARGE)
@pytest.mark.parametrize("padding", [False, True])
def test_a_share_of_more_keys_than_fit_32_bits_in_millionths(n_keys, kappa, padding):
    key_padding = torch.zeros(1, n_keys, dtype=torch.bool) if padding else None
    sel_q, sel_k = torch.randn(1, 1, 8), torch.randn(1, n_keys, 8)
    bits = ops.topk_bitmask(sel_q, sel_k, AttentionMask(key_padding, False), kappa)
    expected = reference.keep_counts(torch.tensor(n_keys), kappa)
    assert int(ops.mask_of(bits, n_keys).sum()) == int(expected) == -(-n_keys * kappa // 10**6)


@pytest.mark.sweep
def test_mixed_precision_selects_in_float32():
    (*_, sel_q, sel_k), mask = case(20, 70, True, 24, "left")
    found = ops.topk_bitmask(sel_q, sel_k, mask, 200_000)
    with torch.autocast(sel_q.device.type, dtype=torch.bfloat16):
        assert torch.equal(ops.topk_bitmask(sel_q, sel_k, mask, 200_000), found)


@pytest.mark.sweep
def test_blocks_of_queries_and_of_keys_select_the_same(monkeypatch):
    (*_, sel_q, sel_k), mask = case(20, 70, True, 24, "left")
    found = ops.topk_bitmask(sel_q, sel_k, mask, 200_000)
    monkeypatch.setattr("fairseq_lasformer.ops.gpu.tiles.BLOCK_ELEMENTS", {"cpu": 1})
    monkeypatch.setattr("fairseq_lasformer.ops.gpu.tiles.MINIMUM_ROWS", 9)
    monkeypatch.setattr("fairseq_lasformer.ops.gpu.kernels.bits.BLOCKS", {64: 1})
    assert torch.equal(ops.topk_bitmask(sel_q, sel_k, mask, 200_000), found)


@pytest.mark.parametrize("n_queries,n_keys,causal,width,padding", thinned(CASES, (40, 70, True, 40, "left")))
def test_tiles_are_the_definition_and_so_are_their_gradients(n_queries, n_keys, causal, width, padding):
    leaves, mask = case(n_queries, n_keys, causal, width, padding)
    q, k, v, sel_q, sel_k = leaves
    bounded = padding != "left"
    keep = ops.topk_mask(sel_q, sel_k, mask, 200_000)
    words = torch.nn.functional.pad(keep, (0, -n_keys % 32)).unflatten(2, (-1, 32)).long() << torch.arange(32)
    bits = words.sum(-1).to(torch.int32)
    assert torch.equal(ops.mask_of(bits, n_keys), keep)
    through = StraightThrough(sel_q, sel_k, bounded)
    expected = reference.selected_attention(q, k, v, ops.mask_of(bits, n_keys), mask, through)
    found = ops.tiled_attention(q, k, v, bits, mask, through)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    d_out = torch.randn_like(expected)
    for name, ours, theirs in zip(
        ("q", "k", "v", "sel_q", "sel_k"),
        torch.autograd.grad(found, leaves, d_out),
        torch.autograd.grad(expected, leaves, d_out),
    ):
        scale = float(theirs.abs().max())
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * max(1.0, scale), msg=f"{name}, {scale}")


@pytest.mark.sweep
def test_dropout_is_the_same_in_both_passes_and_that_of_the_definition():
    leaves, mask = case(70, 70, True, 16, "left")
    q, k, v, sel_q, sel_k = leaves
    bits = ops.topk_bitmask(sel_q, sel_k, mask, 300_000)
    torch.manual_seed(5)
    found = ops.tiled_attention(q, k, v, bits, mask, dropout_p=0.3)
    torch.manual_seed(5)
    seed = int(torch.randint(2**31, (1,)))
    dropped = factors(DropoutMask(0.3, seed), torch.arange(2 * 3 * 70).view(2, 3, 70, 1), torch.arange(70))
    assert 0.25 < float(dropped.eq(0).float().mean()) < 0.35
    weights = reference.masked_softmax(reference.attention_scores(q, k), ops.mask_of(bits, 70)[:, None])
    expected = torch.matmul(weights * dropped, v)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    d_out = torch.randn_like(expected)
    for ours, theirs in zip(
        torch.autograd.grad(found, (q, k, v), d_out), torch.autograd.grad(expected, (q, k, v), d_out)
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("blocks", [1, 3])
def test_the_mean_of_all_samples_is_the_whole_gradient(blocks, monkeypatch):
    leaves, mask = case(60, 60, True, 16, "left")
    q, k, v, sel_q, sel_k = leaves
    bits = ops.topk_bitmask(sel_q, sel_k, mask, 200_000)
    d_out = torch.randn(2, 3, 60, 16)

    def gradients(sample):
        torch.manual_seed(2)
        out = ops.tiled_attention(q, k, v, bits, mask, StraightThrough(sel_q, sel_k, sample=sample), 0.1)
        return torch.autograd.grad(out, leaves, d_out)

    whole = gradients(EVERY_ROW)
    if blocks > 1:
        monkeypatch.setattr("fairseq_lasformer.ops.gpu.teacher.BLOCK_ELEMENTS", {"cpu": 1})
        monkeypatch.setattr("fairseq_lasformer.ops.gpu.teacher.MINIMUM_ROWS", 5)
    parts = [gradients(RowSample(offset, 4)) for offset in range(4)]
    for i, expected in enumerate(whole):
        mean = sum(part[i] for part in parts) / 4
        torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    assert torch.equal(parts[0][0], whole[0]) and not torch.equal(parts[0][3], whole[3])


@pytest.fixture
def forgotten():
    backends.triton_kernels.cache_clear()
    yield
    backends.triton_kernels.cache_clear()


def test_without_a_compiler_plain_pytorch_runs_instead(forgotten, monkeypatch, caplog):
    """Triton builds its launcher when the first kernel starts."""

    def fail(device):
        raise RuntimeError("gcc: not found\nmore")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("fairseq_lasformer.ops.gpu.kernels.decode.try_out", fail)
    gpu = torch.device("cuda")
    assert backends.backend_for(gpu) == backends.backend_for(gpu) == "reference"
    assert backends.triton_kernels("tiles") is None
    assert [r.message for r in caplog.records] == [
        "no Triton kernels; using plain PyTorch, which is slower: gcc: not found"
    ]
    with pytest.raises(RuntimeError, match="do not run here"):
        backends.backend_for(gpu, "triton")
