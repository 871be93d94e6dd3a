"""One softmax over the own line and the selected keys: the definition against the formula, then all forms."""

import math

import pytest
import torch
from helpers import HERE
from tiers import thinned

from fairseq_lasformer import ops
from fairseq_lasformer.ops import (
    EVERY_ROW,
    AttentionMask,
    KeyIndex,
    OwnLines,
    OwnShift,
    RowSample,
    StraightThrough,
    Teachers,
    reference,
)
from fairseq_lasformer.ops.cpu import kernels
from fairseq_lasformer.ops.dropout import factors
from fairseq_lasformer.ops.types import DropoutMask

B, H, D, S = 2, 3, 4, 3
ENDS = [0, 3, 4, 11, 19, 25, 37]  # lines of a text, of 1 to 12 keys
WITH_TRITON = pytest.mark.skipif(not HERE["triton"], reason="Triton is not installed")
WITH_KERNELS = pytest.mark.skipif(kernels() is None, reason="no CPU kernels")


def case(causal, padded, dtype=torch.float64, n=37):
    """Projections of heads and selector, biases, and a mask with own lines, some of them empty."""
    torch.manual_seed(3)
    line = torch.bucketize(torch.arange(n), torch.tensor(ENDS[1:]), right=True)
    first = torch.tensor(ENDS)[line].expand(B, n).clone()
    count = (torch.arange(n) + 1 - first) if causal else torch.tensor(ENDS)[line + 1] - first
    padding = None
    if padded:
        padding = torch.zeros(B, n, dtype=torch.bool)
        padding[1, -12:] = True
        count = count.masked_fill(padding, 0)
    elif not causal:
        count[1, 5:9] = 0
    mask = AttentionMask(padding, causal, own=OwnLines(first, count))
    heads = [torch.randn(B, H, n, D, dtype=dtype, requires_grad=True) for _ in range(3)]
    selector = [torch.randn(B, n, S, dtype=dtype, requires_grad=True) for _ in range(2)]
    bias = torch.tensor([-2.0, 0.5, 1.0], dtype=dtype, requires_grad=True)
    return heads, selector, bias, mask


def independent(q, k, v, bias, mask, keep):
    """The same query by query, from the formula: sums over the own line and over the kept others."""
    out = torch.zeros_like(q)
    for b in range(q.size(0)):
        for i in range(q.size(2)):
            last = i if mask.causal else k.size(2) - 1
            allowed = [j for j in range(last + 1) if mask.key_padding is None or not mask.key_padding[b, j]]
            first, count = int(mask.own.first[b, i]), int(mask.own.n_keys[b, i])
            own = [j for j in allowed if first <= j < first + count]
            others = [j for j in allowed if j not in own]
            kept = [j for j in others if keep[b, i, j]]
            for h in range(q.size(1)):
                scores = {j: q[b, h, i] @ k[b, h, j] / math.sqrt(q.size(3)) for j in own}
                scores |= {
                    j: q[b, h, i] @ k[b, h, j] / math.sqrt(q.size(3)) + bias[h] - math.log(len(others)) for j in kept
                }
                if scores:
                    weights = torch.stack([*scores.values()]).exp()
                    out[b, h, i] = (weights / weights.sum()) @ v[b, h, [*scores]]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_the_definition_is_the_formula_and_so_are_its_gradients(causal, padded):
    (q, k, v), selector, bias, mask = case(causal, padded, n=20)
    keep = reference.topk_mask(*selector, mask, 200_000)
    found = reference.selected_attention(q, k, v, keep, mask, bias=bias)
    expected = independent(q, k, v, bias, mask, keep)
    words = slice(None) if mask.key_padding is None else ~mask.key_padding
    torch.testing.assert_close(found.transpose(1, 2)[words], expected.transpose(1, 2)[words], rtol=1e-10, atol=1e-12)
    weights = torch.randn_like(found).transpose(1, 2)
    theirs = torch.autograd.grad((expected.transpose(1, 2) * weights)[words].sum(), (q, k, v, bias))
    ours = torch.autograd.grad((found.transpose(1, 2) * weights)[words].sum(), (q, k, v, bias))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_own_keys_are_kept_besides_the_share_of_the_others():
    _, selector, _, mask = case(False, True)
    keep = reference.topk_mask(*selector, mask, 500_000)
    own, allowed = mask.own.among(37), mask.full(B, 37, 37, torch.device("cpu"))
    assert keep[own].all() and not (keep & ~allowed).any()
    others = (allowed & ~own).sum(-1)
    assert torch.equal((keep & ~own).sum(-1), reference.keep_counts(others, 500_000))


def test_without_keys_in_its_line_a_query_reads_what_the_paper_does():
    (q, k, v), selector, bias, mask = case(False, False)
    none = mask._replace(own=OwnLines(mask.own.first, torch.zeros_like(mask.own.n_keys)))
    keep, plain = (reference.topk_mask(*selector, m, 300_000) for m in (none, AttentionMask(None, False)))
    assert torch.equal(keep, plain)
    found = reference.selected_attention(q, k, v, keep, none, bias=bias)
    expected = reference.selected_attention(q, k, v, keep, AttentionMask(None, False))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    teachers = Teachers([q], [k], line_biases=[bias])
    ours, theirs = (reference.supervise(*selector, teachers, keep, m) for m in (none, AttentionMask(None, False)))
    torch.testing.assert_close(ours.kl, theirs.kl)
    for sums in ((ours.mass, theirs.mass), (ours.elsewhere, theirs.elsewhere), (theirs.elsewhere, theirs.queries)):
        torch.testing.assert_close(*sums, check_dtype=False)


def test_with_a_low_bias_a_line_is_read_alone_and_with_a_high_one_not_at_all():
    (q, k, v), selector, bias, mask = case(False, False)
    keep = reference.topk_mask(*selector, mask, 300_000)
    lonely = reference.selected_attention(q, k, v, keep, mask, bias=torch.full_like(bias, -60.0))
    own = mask.own.among(37)
    expected = reference.selected_attention(q, k, v, own, AttentionMask(None, False))
    lines = own.any(-1)
    torch.testing.assert_close(lonely.transpose(1, 2)[lines], expected.transpose(1, 2)[lines])
    away = reference.selected_attention(q, k, v, keep, mask, bias=torch.full_like(bias, 60.0))
    torch.testing.assert_close(away, reference.selected_attention(q, k, v, keep & ~own, AttentionMask(None, False)))


def mean_attention(q, k, bias, mask):
    scores = reference.attention_scores(q, k)
    allowed = mask.full(B, q.size(2), k.size(2), q.device)
    others = allowed & ~mask.own.among(k.size(2))
    scores = (
        scores + (bias[:, None, None] - others.sum(-1).clamp(min=1).double().log()[:, None, :, None]) * others[:, None]
    )
    return scores.masked_fill(~allowed[:, None], -1e30).softmax(-1).mul(allowed[:, None]).mean(1), others


@pytest.mark.parametrize("kl", ["forward", "reverse"])
def test_a_selector_learns_most_where_most_is_read_elsewhere(kl):
    (q, k, _), selector, bias, mask = case(True, False)
    keep = reference.topk_mask(*selector, mask, 200_000)
    found = reference.supervise(*selector, Teachers([q], [k], None, kl, "live", [bias]), keep, mask)
    attention, others = mean_attention(q, k, bias.detach(), mask)
    soft = (selector[0] @ selector[1].transpose(1, 2) / math.sqrt(S)).masked_fill(~others, -1e30).softmax(-1) * others
    total, mass, recall, elsewhere = 0.0, 0.0, 0.0, 0.0
    for b in range(B):
        for i in range(37):
            r = others[b, i]
            m = float(attention[b, i, r].detach().sum())
            if m > 0:
                p, s = attention[b, i, r] / attention[b, i, r].sum(), soft[b, i, r]
                total = total + m * (p * (p / s).log() if kl == "forward" else s * (s / p).log()).sum()
            mass += m * float(soft[b, i, keep[b, i] & r].detach().sum())
            recall += float(attention[b, i, keep[b, i] & r].detach().sum())
            elsewhere += m
    torch.testing.assert_close(found.kl, total, rtol=1e-9, atol=1e-9)
    assert (float(found.mass), float(found.recall)) == pytest.approx((mass, recall), rel=1e-9)
    assert int(found.queries) == B * 37 and float(found.elsewhere) == pytest.approx(elsewhere, rel=1e-9)
    ours = torch.autograd.grad(found.kl, (*selector, q, k))
    for a, b in zip(ours, torch.autograd.grad(total, (*selector, q, k))):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    assert not bias.grad


def gradients(out, leaves):
    return torch.autograd.grad((out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum(), leaves)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_blocks_are_the_definition_forward_and_backward(causal, padded, dtype):
    heads, selector, bias, mask = case(causal, padded, dtype)
    keep = ops.topk_mask(*selector, mask, 300_000)
    assert torch.equal(keep, reference.topk_mask(*selector, mask, 300_000))
    for sample in (EVERY_ROW, RowSample(1, 3)):
        through = StraightThrough(*selector, sample=sample)
        ours = ops.selected_attention(*heads, keep, mask, through, bias=bias)
        theirs = reference.selected_attention(*heads, keep, mask, through, bias=bias)
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(gradients(ours, (*heads, bias, *selector)), gradients(theirs, (*heads, bias, *selector))):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@WITH_KERNELS
@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gathered_keys_are_the_definition_forward_and_backward(causal, padded, dropout, monkeypatch):
    heads, selector, bias, mask = case(causal, padded, torch.float32)
    index = KeyIndex.over(torch.zeros(B, 37, dtype=torch.bool) if mask.key_padding is None else mask.key_padding)
    kept = ops.topk_slots(*selector, index, mask, 300_000)
    keep = reference.topk_mask(*selector, mask, 300_000)
    assert torch.equal(ops.kept_mask(kept, B, 37), keep)
    through = StraightThrough(*selector, sample=RowSample(1, 2))
    torch.manual_seed(5)
    ours = ops.gathered_attention(*heads, kept, mask, through, dropout, bias)
    if dropout:  # the shares are those of the whole softmax: without dropout, the same result on average
        runs = [ops.gathered_attention(*heads, kept, mask, None, dropout, bias).detach() for _ in range(400)]
        whole = ops.gathered_attention(*heads, kept, mask, None, 0.0, bias)
        torch.testing.assert_close(torch.stack(runs).mean(0), whole, rtol=0.3, atol=0.15)
        return
    theirs = reference.selected_attention(*heads, keep, mask, through, bias=bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for a, b in zip(gradients(ours, (*heads, bias, *selector)), gradients(theirs, (*heads, bias, *selector))):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kl", ["forward", "reverse"])
@pytest.mark.parametrize("target", ["live", "detached"])
@pytest.mark.parametrize("causal, padded", [(True, False), (False, True)])
@pytest.mark.parametrize("sample", [EVERY_ROW, RowSample(2, 3)])
def test_supervision_in_blocks_is_the_definition(kl, target, causal, padded, sample):
    (q, k, _), selector, bias, mask = case(causal, padded)
    more = [torch.randn_like(t).requires_grad_() for t in (q, k)]
    keep = sample.of(reference.topk_mask(*selector, mask, 300_000), 1)
    teachers = Teachers([q, more[0]], [k, more[1]], mask.key_padding, kl, target, [bias, 2 * bias])
    ours, theirs = (f(*selector, teachers, keep, mask, sample) for f in (ops.supervise, reference.supervise))
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, check_dtype=False)
    leaves = (*selector, q, k, *more) if target == "live" else selector
    for a, b in zip(torch.autograd.grad(ours.kl, leaves), torch.autograd.grad(theirs.kl, leaves)):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def decoding(beam=3, table=True):
    """A step of R rows: keys and values by slot, an index, and each row's own line, some of them empty."""
    torch.manual_seed(4)
    n_items, n = 2, 37
    slots = 90 if table else n  # without a table, as in a source, position j is in slot j
    rows = n_items * beam
    keys, values = (torch.randn(n_items, slots, H * D) for _ in range(2))
    sel_keys, sel_q, q = torch.randn(n_items, slots, S), torch.randn(rows, S), torch.randn(rows, H * D)
    paths = torch.stack([torch.randperm(slots)[:n] for _ in range(rows)]).int() if table else None
    start = torch.tensor([0, 0]) if table else torch.tensor([2, 0])
    index = KeyIndex(paths, start, torch.tensor([n - 2, n - 6]), n)
    own = OwnLines(torch.tensor([30, 5, 2, 20, 0, 12])[:rows], torch.tensor([5, 3, 1, 11, 0, 7])[:rows])
    return (q, keys, values), (sel_q, sel_keys), index, own, torch.tensor([-2.0, 0.5, 1.0])


@WITH_KERNELS
@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("kappa", [100_000, 300_000, 1_000_000])
@pytest.mark.parametrize("int8", [False, True])
def test_a_step_reads_the_own_line_first_in_one_softmax(table, kappa, int8):
    (q, keys, values), selector, index, own, bias = decoding(table=table)
    kept = ops.topk_indices(*selector, index, kappa, "cpu", own)
    expected = reference.topk_indices(*selector, index, kappa, own)
    if kappa < 1_000_000:
        assert torch.equal(kept.counts, expected.counts) and torch.equal(kept.indices, expected.indices)
        first = (
            own.slots()
            if not table
            else ops.KeptKeys(index.table.gather(1, own.slots().indices.clamp_min(0).long()), own.slots().counts)
        )
        for r, n in enumerate(own.n_keys.tolist()):
            assert kept.indices[r, :n].tolist() == first.indices[r, :n].tolist()
    shift = OwnShift.of(own, bias, index, kept is not None)
    ours = ops.attend_kept(q, keys, values, index, kept, H, "cpu", 0.0, shift)
    all_keys = KeyIndex(index.table, index.start, index.n_keys, index.end)
    theirs = ops.attend_kept(q, keys, values, all_keys, kept, H, "reference", 0.0, shift)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    # the same in a full pass over the row's keys
    slots, allowed = index.slots(q.size(0))
    for r in range(q.size(0)):
        item = r // 3
        k, v = (t[item, slots[r]].view(1, -1, H, D).transpose(1, 2) for t in (keys, values))
        keep = torch.isin(slots[r], expected.indices[r][expected.indices[r] >= 0].long())[None, None] & allowed[r]
        mask = AttentionMask(
            ~allowed[r : r + 1], False, own=OwnLines(own.first[r : r + 1, None], own.n_keys[r : r + 1, None])
        )
        row = reference.selected_attention(q[r].view(1, H, 1, D), k, v, keep, mask, bias=bias)
        torch.testing.assert_close(ours[r], row.flatten(), rtol=1e-4, atol=1e-5)
    if int8:
        numbers = [ops.quantise_heads(t, H) for t in (keys, values)]
        slots8 = kept or ops.KeptKeys(slots.masked_fill(~allowed, 0).int(), allowed.sum(1).int())
        if kept is None and not table:
            return  # ranges in 8 bits are those of decoding steps, see test_packed_own_lines
        near = torch.ops.fairseq_lasformer.attend_kept(
            q, numbers[0][0], numbers[1][0], *slots8, H, numbers[0][1], numbers[1][1], shift.lines.pairs, shift.value
        )
        torch.testing.assert_close(near, ours, rtol=0.05, atol=0.05)


@WITH_KERNELS
@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("kappa", [200_000, 1_000_000])
def test_rows_with_fixed_sums_are_the_definition(kappa):
    heads, selector, bias, mask = case(False, True, torch.float32)
    index = KeyIndex.over(mask.key_padding)
    q, k, v = (t.detach() for t in heads)
    joined = [t.transpose(1, 2).flatten(2) for t in (q, k, v)]
    shift = mask.shift(bias.detach(), 37, 37)
    keep = reference.topk_mask(*selector, mask, kappa)
    if kappa == 1_000_000:
        out = ops.dense_attention(*joined, index, H, mask.own, shift)
    else:
        kept = ops.topk_of_rows(*(t.detach() for t in selector), index, kappa, mask.own)
        moved = OwnShift(mask.own.flattened().in_front(), shift.transpose(1, 2).flatten(0, 1))
        out = ops.attend_kept(joined[0].flatten(0, 1), *joined[1:], None, kept, H, "cpu", 0.0, moved).view(B, 37, -1)
    expected = reference.selected_attention(q, k, v, keep, mask, bias=bias.detach()).transpose(1, 2).flatten(2)
    words = ~mask.key_padding
    torch.testing.assert_close(out[words], expected[words], rtol=1e-4, atol=1e-5)


@WITH_KERNELS
def test_own_lines_beyond_the_keys_are_refused():
    (q, keys, values), selector, index, own, bias = decoding(table=False)
    beyond = own._replace(n_keys=own.n_keys + 30)
    with pytest.raises(RuntimeError, match="own: beyond"):
        ops.topk_indices(*selector, index, 100_000, "cpu", beyond)
    kept = ops.topk_indices(*selector, index, 100_000, "cpu", own)
    with pytest.raises(RuntimeError, match="own: beyond"):
        ops.attend_kept(q, keys, values, index, kept, H, "cpu", 0.0, OwnShift.of(beyond, bias, index, True))


def triton_case(causal, padded, width, dtype=torch.float32):
    heads, selector, bias, mask = case(causal, padded, dtype)
    heads = [torch.randn(B, H, 37, width).to(dtype).requires_grad_() for _ in heads]
    # sums of quarters are exact in any order: ties are ties
    return heads, [(torch.round(t.detach() * 4) / 4).requires_grad_() for t in selector], bias.float(), mask


@WITH_TRITON
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", thinned([False, True], True))
@pytest.mark.parametrize("width, kappa", thinned([(16, 200_000), (24, 600_000)]))
def test_tiles_are_the_definition_forward_and_backward(causal, padded, width, kappa):
    heads, selector, bias, mask = triton_case(causal, padded, width)
    bias = bias.detach().requires_grad_()
    bits = ops.topk_bitmask(*(t.detach() for t in selector), mask, kappa)
    keep = reference.topk_mask(*selector, mask, kappa)
    assert torch.equal(ops.mask_of(bits, 37), keep)
    through = StraightThrough(*selector, sample=RowSample(1, 2))
    ours = ops.tiled_attention(*heads, bits, mask, through, bias=bias)
    theirs = reference.selected_attention(*heads, keep, mask, through, bias=bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    for a, b in zip(gradients(ours, (*heads, bias, *selector)), gradients(theirs, (*heads, bias, *selector))):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    teachers = Teachers([heads[0]], [heads[1]], mask.key_padding, line_biases=[bias])
    seen = ops.tiled_supervise(*selector, teachers, bits, mask), reference.supervise(*selector, teachers, keep, mask)
    for a, b in zip(*seen):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, check_dtype=False)


@WITH_TRITON
def test_tiles_drop_the_same_weights_in_both_passes():
    heads, selector, bias, mask = triton_case(True, False, 16)
    heads, bias = [t.detach().requires_grad_() for t in heads], bias.detach().requires_grad_()
    bits = ops.topk_bitmask(*(t.detach() for t in selector), mask, 600_000)
    torch.manual_seed(7)
    out = ops.tiled_attention(*heads, bits, mask, None, 0.3, bias)
    d_bias, d_value = gradients(out, (bias, heads[2]))
    torch.manual_seed(7)
    drawn = DropoutMask.drawn_on(torch.device("cpu"), 0.3)
    rows = torch.arange(B * H * 37).view(B, H, 37, 1)
    noise = factors(drawn, rows, torch.arange(37))
    keep = ops.mask_of(bits, 37)
    scores = reference.attention_scores(heads[0], heads[1])
    scores = scores + reference.line_bias(bias, mask, mask.full(B, 37, 37, torch.device("cpu")))
    expected = torch.matmul(reference.masked_softmax(scores, keep[:, None]) * noise, heads[2])
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    theirs = gradients(expected, (bias, heads[2]))
    torch.testing.assert_close(d_bias, theirs[0], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(d_value, theirs[1], rtol=1e-3, atol=1e-4)


@WITH_TRITON
@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("kappa", [100_000, 600_000, 1_000_000])
def test_a_step_of_triton_is_the_definition(table, kappa):
    (q, keys, values), selector, index, own, bias = decoding(table=table)
    selector = [torch.round(t * 4) / 4 for t in selector]
    kept = ops.topk_indices(*selector, index, kappa, "triton", own)
    expected = reference.topk_indices(*selector, index, kappa, own)
    if kept is not None:
        assert torch.equal(kept.counts, expected.counts)
        most = expected.indices.size(1)
        assert torch.equal(kept.indices[:, :most], expected.indices) and (kept.indices[:, most:] == -1).all()
    shift = OwnShift.of(own, bias, index, kept is not None)
    ours, theirs = (
        ops.attend_kept(q, keys, values, index, kept, H, backend, 0.0, shift) for backend in ("triton", "reference")
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_own_keys_come_before_kept_ones_once():
    own = ops.KeptKeys(torch.tensor([[3, 4], [-1, -1]]).int(), torch.tensor([2, 0]).int())
    kept = ops.KeptKeys(torch.tensor([[1, 3, 7], [5, -1, -1]]).int(), torch.tensor([3, 1]).int())
    both = ops.own_first(kept, own)
    assert both.counts.tolist() == [4, 1]
    assert both.indices[:, :4].tolist() == [[3, 4, 1, 7], [5, -1, -1, -1]]
