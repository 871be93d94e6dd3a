"""Selection on GPUs: whole rows, rows of several blocks, and rows that are split among programs."""

from __future__ import annotations

import pytest
import torch
from helpers import skip_unless_here
from tiers import thinned

from fairseq_lasformer.ops import AttentionMask, KeyIndex, mask_of, reference
from fairseq_lasformer.ops.reference import keep_counts

SPECIAL = [0.0, -0.0, float("nan"), float("inf"), float("-inf"), 1e-40, -1e-40, 3e38, -3e38]


def scores_of(kind: str, *shape: int) -> torch.Tensor:
    scores = torch.randn(shape)
    if kind == "ties":  # including ties of the first digits only
        return (scores * 2).round() / 2
    if kind == "close":  # only the last digit differs
        return 1.0 + torch.randint(0, 200, shape) * 2.0**-23
    return torch.where(torch.rand(shape) < 0.5, torch.tensor(SPECIAL)[torch.randint(0, len(SPECIAL), shape)], scores)


def aligned(scores: torch.Tensor) -> torch.Tensor:
    """Return the scores with a distance between rows as the kernels require; what is between is not looked at."""
    rows = torch.full((*scores.shape[:-1], -(-scores.size(-1) // 16) * 16), 1e30)
    rows[..., : scores.size(-1)] = scores
    return rows[..., : scores.size(-1)]


def expected(scores: torch.Tensor, index: KeyIndex, beam: int, kappa: int) -> list[list[int]]:
    slots, allowed = index.slots(scores.size(0))
    ranked = scores.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    found = []
    for r in range(scores.size(0)):
        of_row = allowed[r].nonzero()[:, 0].tolist()
        keep = int(keep_counts(torch.tensor(len(of_row)), kappa))
        best = sorted(of_row, key=lambda j: (-float(ranked[r, j]), j))
        found.append([int(slots[r, j]) for j in sorted(best[:keep])])
    return found


@pytest.mark.parametrize(("block", "most", "full"), [(4096, 64, 132), (32, 64, 132), (32, 2, 132), (32, 64, 1)])
@pytest.mark.parametrize(
    ("kind", "kappa"),
    thinned(
        [("ties", 400_000), ("close", 400_000), ("special", 400_000), ("ties", 50_000), ("special", 999_999)],
        ("ties", 400_000),
        ("special", 400_000),
    ),
)
def test_a_steps_selection_is_a_sort(monkeypatch, kind, block, most, full, kappa):
    """In one block; split among programs; or, with too many of them or enough rows, block by block in one program."""
    skip_unless_here("triton")
    from fairseq_lasformer.ops.gpu.kernels import select as triton_select

    for name, value in (("BLOCKS", {block: 4}), ("CHUNK", block), ("CHUNKS", most), ("FULL", full)):
        monkeypatch.setattr(triton_select, name, value)
    torch.manual_seed(kappa)
    scores, start = scores_of(kind, 6, 150), torch.tensor([0, 40, 3])
    index = KeyIndex(torch.stack([torch.randperm(200)[:150] for _ in range(6)]).int(), start, 150 - start * 2, 150)
    if kind == "ties":
        index = index._replace(table=None, n_keys=torch.tensor([150, 0, 7]))
    kept = triton_select.select(aligned(scores), index, 2, kappa)
    assert [row[: int(n)].tolist() for row, n in zip(kept.indices, kept.counts)] == expected(scores, index, 2, kappa)
    assert all(bool((row[int(n) :] == -1).all()) for row, n in zip(kept.indices, kept.counts))


@pytest.mark.parametrize(("kind", "block"), [("ties", 4096), ("close", 4096), ("ties", 32)])
@pytest.mark.parametrize(("causal", "padded"), [(False, False), (True, True)])
def test_a_passs_selection_is_a_sort(monkeypatch, kind, block, causal, padded):
    skip_unless_here("triton")
    from fairseq_lasformer.ops.gpu.kernels import bits as triton_bits

    monkeypatch.setattr(triton_bits, "BLOCKS", {block: 4})
    scores, padding = scores_of(kind, 2, 4, 70), torch.zeros(2, 70, dtype=torch.bool)
    padding[1, :7] = padding[0, 64:] = True
    mask = AttentionMask(padding if padded else None, causal)
    allowed = mask.full(2, 4, 70, scores.device)
    counts = allowed.sum(-1)
    bits = torch.zeros(2, 4, 3, dtype=torch.int32)
    kappa = torch.tensor(300_000)
    triton_bits.store_bits(aligned(scores), mask.key_padding, 66 if causal else triton_bits.ANY, kappa, bits)
    theirs = reference.select(scores.masked_fill(~allowed, float("-inf")), keep_counts(counts, 300_000)) & allowed
    assert torch.equal(mask_of(bits, 70), theirs)
