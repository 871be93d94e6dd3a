"""Decoding steps: kernels against their definitions, the cache against one that copies."""

from __future__ import annotations

import logging
import random

import pytest
import torch
from helpers import BACKENDS, CUDA, HERE, skip_unless_here
from tiers import thinned

from fairseq_lasformer import ops
from fairseq_lasformer.ops import KeptKeys, KeyIndex, cpu, reference
from fairseq_lasformer.ops.cpu import build, loading


def paths_for(n_items: int, beam: int, n_keys: int, kind: str) -> KeyIndex:
    """Build the index of rows through 2 * n_keys slots (``table``), or over a source padded on one side."""
    rows = n_items * beam
    start, count = torch.zeros(n_items, dtype=torch.long), torch.full((n_items,), n_keys)
    if kind == "table":
        table = torch.stack([torch.randperm(2 * n_keys)[:n_keys].sort().values for _ in range(rows)])
        return KeyIndex(torch.cat([table, torch.zeros(rows, 3)], 1).int(), start, count, n_keys)
    cut = torch.arange(n_items) * (n_keys // (n_items + 1))
    if kind == "empty":
        cut[-1] = n_keys
    return KeyIndex(None, cut if kind == "left" else start, count - cut, n_keys)


def slots_case(**change):
    """Return arguments of the CPU's selection and attention for 6 rows of 2 items, with something changed."""
    n, rows, width, capacity = 2, 6, 16, 40
    table = torch.arange(capacity, dtype=torch.int32).repeat(rows, 1)
    given = {"q": torch.randn(rows, width), "keys": torch.randn(n, capacity, width), "table": table}
    given |= {"start": torch.zeros(n, dtype=torch.long), "count": torch.full((n,), capacity), "kappa": 300_000}
    return list((given | change).values())


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels on this machine")
@pytest.mark.parametrize(
    "change, message",
    [
        ({"q": torch.randn(5, 16)}, "multiple of the keys' N"),
        ({"q": torch.randn(6, 15)}, "as wide as q"),
        ({"q": torch.randn(6, 16).double()}, "float32"),
        ({"keys": torch.randn(0, 40, 16)}, "multiple of the keys' N"),
        ({"table": torch.full((6, 40), 40, dtype=torch.int32)}, "slots: beyond the 40"),
        ({"table": torch.full((6, 40), -1, dtype=torch.int32)}, "slots: beyond the 40"),
        ({"table": torch.zeros(6, 40)}, "int32"),
        ({"table": torch.zeros(5, 40, dtype=torch.int32)}, "fewer rows"),
        ({"count": torch.full((2,), 41)}, "positions beyond the 40"),
        ({"count": torch.full((2,), -1)}, "positions beyond the 40"),
        ({"start": torch.full((2,), 2**62)}, "positions beyond the 40"),
        ({"start": torch.zeros(3, dtype=torch.long)}, "one number for each of N"),
        ({"kappa": 0}, "kappa"),
        ({"kappa": 1_000_001}, "kappa"),
    ],
)
def test_kernels_refuse_what_would_reach_beyond_memory(change, message):
    with pytest.raises(RuntimeError, match=message):
        torch.ops.fairseq_lasformer.topk_indices(*slots_case(**change))


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels on this machine")
@pytest.mark.parametrize(
    "change, message",
    [
        ({"heads": 0}, "heads: must divide"),
        ({"heads": 3}, "heads: must divide"),
        ({"values": torch.randn(2, 39, 16)}, "the keys' shape"),
        ({"kept": torch.full((6,), 12, dtype=torch.int32)}, "exceeds the number of slots"),
        ({"kept": torch.full((6,), -1, dtype=torch.int32)}, "exceeds the number of slots"),
        ({"kept": torch.zeros(5, dtype=torch.int32)}, "int32 .R."),
        ({"slots": torch.full((6, 11), 40, dtype=torch.int32)}, "slots: beyond the 40"),
    ],
)
def test_attention_refuses_what_would_reach_beyond_memory(change, message):
    given = {"q": torch.randn(6, 16), "keys": torch.randn(2, 40, 16), "values": torch.randn(2, 40, 16)}
    given |= {
        "slots": torch.zeros(6, 11, dtype=torch.int32),
        "kept": torch.full((6,), 11, dtype=torch.int32),
        "heads": 4,
    }
    with pytest.raises(RuntimeError, match=message):
        torch.ops.fairseq_lasformer.attend_kept(*(given | change).values())


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels on this machine")
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_number_of_threads_changes_nothing(threads):
    torch.manual_seed(2)
    q, keys, table, start, count, kappa = slots_case(count=torch.tensor([40, 33]))
    paths, before = KeyIndex(table, start, count, 40), torch.get_num_threads()
    expected = reference.topk_indices(q, keys, paths, kappa)
    try:
        torch.set_num_threads(threads)
        slots = ops.topk_indices(q, keys, paths, kappa, "cpu")
        out = ops.attend_kept(q, keys, keys, None, slots, 4, "cpu")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(slots.indices, expected.indices) and torch.equal(slots.counts, expected.counts)
    torch.testing.assert_close(out, reference.attend_kept(q, keys, keys, expected, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_that_are_not_contiguous_give_the_same(backend):
    def strided(t):
        wide = torch.zeros(*t.shape[:-1], 2 * t.size(-1), dtype=t.dtype)
        wide[..., ::2] = t
        return wide[..., ::2]

    q, keys, table, start, count, kappa = slots_case()
    paths = KeyIndex(table, start, count, 40)
    whole = ops.topk_indices(q, keys, paths, kappa, backend)
    again = ops.topk_indices(strided(q), strided(keys), paths._replace(table=strided(table)), kappa, backend)
    assert all(torch.equal(a, b) for a, b in zip(whole, again))
    out = ops.attend_kept(q, keys, keys * 2, None, whole, 4, backend)
    pieces = KeptKeys(strided(whole.indices), strided(whole.counts))
    seen = ops.attend_kept(strided(q), strided(keys), strided(keys * 2), None, pieces, 4, backend)
    torch.testing.assert_close(seen, out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_are_not_finite_rank_behind_all_others_but_before_padding(backend):
    q, keys, *_ = slots_case()
    keys[:, 5:] = float("nan")
    keys[:, 7] = -float("inf") * q[0].sign()
    paths = KeyIndex(None, torch.full((2,), 3), torch.full((2,), 30), 40)
    slots = ops.topk_indices(q, keys, paths, 900_000, backend)
    assert slots.counts.tolist() == [27] * 6
    assert all(sorted(row[:27]) == row[:27] and row[0] >= 3 and row[26] < 33 for row in slots.indices.tolist())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["table", "left", "right", "empty"])
@pytest.mark.parametrize("n_keys", [1, 7, 63, 300, 1111, 5000])
@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
def test_selected_slots_are_those_of_a_sort(backend, kind, n_keys, ties):
    torch.manual_seed(n_keys)
    paths = paths_for(2, 3, n_keys, kind)
    q, keys = torch.randn(6, 16), torch.randn(2, 2 * n_keys, 16)
    if ties:
        q, keys = q.sign(), keys.clamp(-1, 1).round()  # scores are small integers, exact in any order of summation
    if n_keys > 100:
        keys[0, 5] = float("nan")
    slots = ops.topk_indices(q, keys, paths, 70_000, backend)
    if slots is None:
        assert n_keys <= ops.MIN_KEYS
        return
    for r in range(6):
        s = r // 3
        position = range(int(paths.start[s]), int(paths.start[s] + paths.n_keys[s]))
        slot = [j if paths.table is None else int(paths.table[r, j]) for j in position]
        scores = [float((keys[s, i] * q[r]).sum()) for i in slot]
        best = sorted(range(len(slot)), key=lambda j: (-scores[j] if scores[j] == scores[j] else 1e9, j))
        keep = min(len(slot), max(10, -(-len(slot) * 70_000 // 1_000_000)))
        expected = [slot[j] for j in sorted(best[:keep])]
        assert int(slots.counts[r]) == keep
        assert slots.indices[r].tolist() == expected + [-1] * (slots.indices.size(1) - keep)


@pytest.mark.parametrize("parents", [[0, 0, 0, 0], [0, 0, 1, 3], [3, 2, 1, 0]], ids=["one", "some", "all"])
@pytest.mark.parametrize("n_keys", [100, 300])
def test_rows_of_an_item_that_are_scored_together_select_what_each_alone_does(monkeypatch, parents, n_keys):
    """On a GPU, hypotheses read the keys of the past that they share once."""
    skip_unless_here("triton")
    from fairseq_lasformer.ops.gpu.kernels import decode as kernels

    torch.manual_seed(n_keys)
    q, keys = torch.randn(8, 16), torch.randn(2, 5 * n_keys, 16)
    past = torch.arange(4 * n_keys).view(4, n_keys)[parents].repeat(2, 1).int()  # of each hypothesis, slots of its own
    past[2, 5] = 4 * n_keys  # one position of one hypothesis
    start, count = torch.tensor([0, 7]), torch.tensor([n_keys, n_keys - 10])
    kernel, programs = kernels._score, []

    class Counted:
        def __getitem__(self, grid):
            programs.append(grid[0])
            return kernel[grid]

    monkeypatch.setattr(kernels, "_score", Counted())
    for table in (past, None):
        paths = KeyIndex(table, start, count, n_keys)
        expected = reference.topk_indices(q, keys, paths, 200_000)
        for enough in (0, 10**6):
            monkeypatch.setattr(kernels, "SCORE_PROGRAMS", enough)
            slots = ops.topk_indices(q, keys, paths, 200_000, "triton")
            assert torch.equal(slots.counts, expected.counts)
            assert torch.equal(slots.indices[:, : expected.indices.size(1)], expected.indices)
    assert programs == [2, 8, 2, 8]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads,width", [(1, 16), (3, 24), (8, 512)])
def test_attention_over_slots_equals_dense_attention_with_a_mask(backend, dtype, heads, width):
    torch.manual_seed(width)
    q, keys, values = (torch.randn(*shape).to(dtype) for shape in ((6, width), (2, 90, width), (2, 90, width)))
    kept = torch.tensor([1, 90, 33, 0, 17, 10], dtype=torch.int32)
    slot = torch.full((6, 90), -1, dtype=torch.int32)
    mask = torch.zeros(6, 90, dtype=torch.bool)
    for r, n in enumerate(kept.tolist()):
        slot[r, :n] = torch.randperm(90)[:n].sort().values
        mask[r, slot[r, :n].long()] = True
    seen = ops.attend_kept(q, keys, values, paths_for(2, 3, 90, "right"), KeptKeys(slot, kept), heads, backend)
    for r in range(6):
        query, key, value = (
            t.double().view(1, -1, heads, width // heads).transpose(1, 2) for t in (q[r], keys[r // 3], values[r // 3])
        )
        scores = reference.attention_scores(query, key)
        expected = (reference.masked_softmax(scores, mask[r]) @ value).transpose(1, 2).reshape(-1)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(seen[r].double(), expected, rtol=tolerance, atol=tolerance)
    assert (seen[3] == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["table", "left", "right", "empty"])
def test_without_a_selection_every_allowed_key_is_attended_to(backend, kind):
    paths, (q, keys, values) = paths_for(2, 3, 30, kind), (torch.randn(*s) for s in ((6, 8), (2, 60, 8), (2, 60, 8)))
    if paths.table is None:
        keys, values = keys[:, :30], values[:, :30]
    slots, allowed = paths.slots(6)
    order = allowed.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    every = KeptKeys(slots.gather(1, order).masked_fill(~allowed.gather(1, order), -1).int(), allowed.sum(1).int())
    expected = reference.attend_kept(q, keys, values, every, 2)
    torch.testing.assert_close(ops.attend_kept(q, keys, values, paths, None, 2, backend), expected)


@pytest.mark.parametrize("backend", thinned([b for b in BACKENDS if b != "reference"], "cpu"))
def test_random_steps_are_those_of_the_reference(backend):
    """Odd lengths, few keys, ties, empty rows, padding, shared and distinct paths, any kappa and head width."""
    draw = random.Random(5)
    for case in range(120 if backend == "triton" and not CUDA else 1000):  # Triton's interpreter is slow
        torch.manual_seed(case)
        n_items, beam, heads = draw.randint(1, 2), draw.randint(1, 3), draw.choice([1, 2, 3, 8])
        few, some, many = draw.randint(1, 12), draw.randint(13, 70), draw.randint(71, 400)
        n_keys = draw.choice([few] * 5 + [some] * 4 + [many])
        paths = paths_for(n_items, beam, n_keys, draw.choice(["table", "table", "left", "right", "empty"]))
        rows, held, width = n_items * beam, 2 * n_keys, heads * draw.choice([2, 5, 16])
        # small integers, a power of four of them: ties, and scores that are exact in any order of summation
        q, keys = torch.randn(rows, 16).round(), torch.randn(n_items, held, 16).round()
        kappa = draw.randint(10_000, 999_999)
        seen = ops.topk_indices(q, keys, paths, kappa, backend)
        expected = reference.topk_indices(q, keys, paths, kappa)
        if n_keys > ops.MIN_KEYS:
            most = expected.indices.size(1)
            assert torch.equal(seen.indices[:, :most], expected.indices) and (seen.indices[:, most:] == -1).all(), case
            assert torch.equal(seen.counts, expected.counts), case
        else:
            assert seen is None, case
        query, key, value = torch.randn(rows, width), *torch.randn(2, n_items, held, width)
        out = ops.attend_kept(query, key, value, paths, expected, heads, backend)
        defined = reference.attend_kept(query, key, value, expected, heads)
        torch.testing.assert_close(out, defined, rtol=1e-5, atol=1e-5)


def test_without_a_compiler_plain_pytorch_decodes_and_says_so_once(monkeypatch, caplog, tmp_path):
    def fail(*_):
        raise OSError("no C++ compiler")

    monkeypatch.setattr(build, "build", fail)
    monkeypatch.setattr(loading, "_registered", lambda: False)  # as in a process that has not loaded any
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    cpu.kernels.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            paths, q, keys = paths_for(1, 2, 50, "table"), torch.randn(2, 8), torch.randn(1, 100, 8)
            slots = ops.topk_indices(q, keys, paths, 300_000)
            ops.attend_kept(q, keys, keys, paths, slots, 2)
        assert torch.equal(slots.indices, reference.topk_indices(q, keys, paths, 300_000).indices)
        assert sum("plain PyTorch" in r.message for r in caplog.records) == 1
    finally:
        cpu.kernels.cache_clear()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_keys, kappa", [(2148, 10**6), (4296, 500_000), (43_000, 50_000)])
def test_a_share_of_more_keys_than_fit_32_bits_in_millionths(backend, n_keys, kappa):
    q, keys, index = torch.randn(2, 8), torch.randn(1, n_keys, 8), paths_for(1, 2, n_keys, "right")
    kept = ops.topk_indices(q, keys, index, kappa, backend)
    expected = -(-n_keys * kappa // 10**6)
    if kappa == 10**6:
        assert kept is None or kept.counts.tolist() == [n_keys, n_keys]
    else:
        assert kept is not None and kept.counts.tolist() == [expected, expected]


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels on this machine")
def test_attention_of_no_rows_and_to_no_slots():
    call, n = torch.ops.fairseq_lasformer.attend_kept, torch.ones(1, dtype=torch.int32)
    keys, slot = torch.randn(1, 4, 8), torch.zeros(1, 1, dtype=torch.int32)
    assert call(torch.randn(0, 8), keys, keys, slot[:0], n[:0], 2).shape == (0, 8)
    empty = keys[:, :0]
    with pytest.raises(RuntimeError, match="slots: beyond the 0"):
        call(torch.randn(1, 8), empty, empty, slot, n, 2)


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels on this machine")
@pytest.mark.parametrize("width", [64, 20])
def test_attention_to_8_bit_keys_and_values_is_that_of_their_numbers(width, instructions):
    n_heads, paths = 3, paths_for(2, 3, 200, "table")
    q, keys, values = torch.randn(6, 3 * width), *torch.randn(2, 2, 400, 3 * width)
    counts = torch.tensor([70, 0, 1, 7, 70, 65], dtype=torch.int32)
    kept = KeptKeys(paths.table[:, :70].masked_fill(torch.arange(70) >= counts[:, None], -1), counts)
    eight, scales, exact = [], [], []
    for t in (keys, values):
        numbers, scale = reference.quantised(t.view(-1, width))
        found = ops.quantise_heads(t, n_heads)
        assert torch.equal(found[0].view(-1, width), numbers.to(torch.int8))
        assert torch.equal(found[1].view(-1, 1), scale)
        eight.append(found[0])
        scales.append(found[1])
        exact.append((numbers.float() * scale).view(t.shape))
    out = torch.ops.fairseq_lasformer.attend_kept(q, *eight, *kept, n_heads, *scales)
    torch.testing.assert_close(out, reference.attend_kept(q, *exact, kept, n_heads, 0.0), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels on this machine")
def test_8_bit_keys_without_their_scales_are_refused_and_what_is_not_finite_stays_so():
    keys = torch.randn(1, 4, 8)
    slots, one = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)
    call, q = torch.ops.fairseq_lasformer.attend_kept, torch.randn(1, 8)
    eight, scales = ops.quantise_heads(keys, 2)
    for wrong in ((), (scales,), (scales, scales[:, :3].contiguous()), (scales.double(), scales)):
        with pytest.raises(RuntimeError, match="expected contiguous float32"):
            call(q, eight, eight, slots, one, 2, *wrong)
    keys[0, 0, 5] = float("inf")
    eight, scales = ops.quantise_heads(keys, 2)
    out = call(q, eight, eight, slots, one, 2, scales, scales)
    assert out[0, 4:].isnan().all() and out[0, :4].isfinite().all()
