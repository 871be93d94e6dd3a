"""Decoding steps: kernels against their definitions, the cache against one that copies."""

from __future__ import annotations

import logging
import random

import pytest
import torch
from conftest import tokens
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from fairseq_lasformer import model as model_module
from fairseq_lasformer import ops
from fairseq_lasformer.cache import DecodingCache
from fairseq_lasformer.ops import Allowed, Paths, Slots, backends, cpu, reference
from fairseq_lasformer.replay import ReplayedStep

CUDA = torch.cuda.is_available()
HERE = {
    "reference": True,
    "cpu": cpu.kernels() is not None,
    "triton": backends.triton_kernels("triton_decoding") is not None,
}
BACKENDS = [name for name, here in HERE.items() if here]


@pytest.fixture(autouse=True)
def poisoned():
    """Fresh memory is NaN (floats) or the largest integer: whatever is read unwritten shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def paths_for(n_sentences: int, beam: int, n_keys: int, kind: str) -> Paths:
    """Paths of rows through 2 * n_keys slots (``table``), or over a source padded on one side."""
    rows = n_sentences * beam
    start, count = torch.zeros(n_sentences, dtype=torch.long), torch.full((n_sentences,), n_keys)
    if kind == "table":
        table = torch.stack([torch.randperm(2 * n_keys)[:n_keys].sort().values for _ in range(rows)])
        return Paths(torch.cat([table, torch.zeros(rows, 3)], 1).int(), start, count, n_keys)
    cut = torch.arange(n_sentences) * (n_keys // (n_sentences + 1))
    if kind == "empty":
        cut[-1] = n_keys
    return Paths(None, cut if kind == "left" else start, count - cut, n_keys)


def slots_case(**change):
    """Arguments of the CPU's selection and attention for 6 rows of 2 items, with something changed."""
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
        torch.ops.fairseq_lasformer.select_slots(*slots_case(**change))


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels on this machine")
@pytest.mark.parametrize(
    "change, message",
    [
        ({"heads": 0}, "heads: must divide"),
        ({"heads": 3}, "heads: must divide"),
        ({"values": torch.randn(2, 39, 16)}, "the keys' shape"),
        ({"kept": torch.full((6,), 12, dtype=torch.int32)}, "more slots than there are"),
        ({"kept": torch.full((6,), -1, dtype=torch.int32)}, "more slots than there are"),
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
        torch.ops.fairseq_lasformer.attend_slots(*(given | change).values())


@pytest.mark.skipif(not HERE["cpu"], reason="no CPU kernels on this machine")
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_number_of_threads_changes_nothing(threads):
    torch.manual_seed(2)
    q, keys, table, start, count, kappa = slots_case(count=torch.tensor([40, 33]))
    paths, before = Paths(table, start, count, 40), torch.get_num_threads()
    expected = reference.select_slots(q, keys, paths, kappa)
    try:
        torch.set_num_threads(threads)
        slots = ops.select_slots(q, keys, paths, kappa, "cpu")
        out = ops.attend_slots(q, keys, keys, None, slots, 4, "cpu")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(slots.slot, expected.slot) and torch.equal(slots.kept, expected.kept)
    torch.testing.assert_close(out, reference.attend_slots(q, keys, keys, expected, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_that_are_not_contiguous_give_the_same(backend):
    def strided(t):
        wide = torch.zeros(*t.shape[:-1], 2 * t.size(-1), dtype=t.dtype)
        wide[..., ::2] = t
        return wide[..., ::2]

    q, keys, table, start, count, kappa = slots_case()
    paths = Paths(table, start, count, 40)
    whole = ops.select_slots(q, keys, paths, kappa, backend)
    again = ops.select_slots(strided(q), strided(keys), paths._replace(table=strided(table)), kappa, backend)
    assert all(torch.equal(a, b) for a, b in zip(whole, again))
    out = ops.attend_slots(q, keys, keys * 2, None, whole, 4, backend)
    pieces = Slots(strided(whole.slot), strided(whole.kept))
    seen = ops.attend_slots(strided(q), strided(keys), strided(keys * 2), None, pieces, 4, backend)
    torch.testing.assert_close(seen, out)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_are_not_finite_rank_behind_all_others_but_before_padding(backend):
    q, keys, *_ = slots_case()
    keys[:, 5:] = float("nan")
    keys[:, 7] = -float("inf") * q[0].sign()
    paths = Paths(None, torch.full((2,), 3), torch.full((2,), 30), 40)
    slots = ops.select_slots(q, keys, paths, 900_000, backend)
    assert slots.kept.tolist() == [27] * 6
    assert all(sorted(row[:27]) == row[:27] and row[0] >= 3 and row[26] < 33 for row in slots.slot.tolist())


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
    slots = ops.select_slots(q, keys, paths, 70_000, backend)
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
        assert int(slots.kept[r]) == keep
        assert slots.slot[r].tolist() == expected + [-1] * (slots.slot.size(1) - keep)


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
    seen = ops.attend_slots(q, keys, values, paths_for(2, 3, 90, "right"), Slots(slot, kept), heads, backend)
    for r in range(6):
        query, key, value = (
            t.double().view(1, -1, heads, width // heads).transpose(1, 2) for t in (q[r], keys[r // 3], values[r // 3])
        )
        scores = reference.attention_scores(query, key)
        expected = (reference.masked_softmax(scores, mask[r]) @ value).transpose(1, 2).reshape(-1)
        tolerance = 1e-5 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(seen[r].double(), expected, rtol=tolerance, atol=tolerance)
    assert (seen[3] == 0).all()


@pytest.mark.skipif(not HERE["triton"], reason="Triton is not installed")
@pytest.mark.parametrize(
    "n_queries,n_keys,causal,width",
    [(1, 1, False, 24), (63, 111, False, 24), (111, 111, True, 24), (70, 200, False, 24), (40, 70, False, 300)],
)
@pytest.mark.parametrize("padding", [None, "left", "all"])
def test_tiles_with_a_mask_of_bits_equal_masked_attention(n_queries, n_keys, causal, width, padding):
    from fairseq_lasformer.ops import triton_encoder

    torch.manual_seed(n_keys)
    key_padding = None
    if padding:
        key_padding = torch.zeros(2, n_keys, dtype=torch.bool)
        key_padding[1, : n_keys // 3 if padding == "left" else n_keys] = True
    allowed = Allowed(key_padding, causal)
    sel_q, sel_k = torch.randn(2, n_queries, 8), torch.randn(2, n_keys, 8)
    q, k, v = (torch.randn(2, 3, n, width) for n in (n_queries, n_keys, n_keys))
    mask = ops.select_mask(sel_q, sel_k, allowed, 200_000)
    bits = triton_encoder.select_bits(sel_q, sel_k, allowed, 200_000)
    j = torch.arange(n_keys)
    assert torch.equal((bits[..., j // 32] >> (j % 32)) & 1, mask.int())
    full = allowed.full(2, n_queries, n_keys, q.device)
    expected = reference.selected_attention(q, k, v, mask, full)
    torch.testing.assert_close(triton_encoder.attend_tiles(q, k, v, bits), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["table", "left", "right", "empty"])
def test_without_a_selection_every_allowed_key_is_attended_to(backend, kind):
    paths, (q, keys, values) = paths_for(2, 3, 30, kind), (torch.randn(*s) for s in ((6, 8), (2, 60, 8), (2, 60, 8)))
    if paths.table is None:
        keys, values = keys[:, :30], values[:, :30]
    slots, allowed = paths.slots(6)
    order = allowed.to(torch.int8).argsort(dim=1, descending=True, stable=True)
    every = Slots(slots.gather(1, order).masked_fill(~allowed.gather(1, order), -1).int(), allowed.sum(1).int())
    expected = reference.attend_slots(q, keys, values, every, 2)
    torch.testing.assert_close(ops.attend_slots(q, keys, values, paths, None, 2, backend), expected)


@pytest.mark.slow
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "reference"])
def test_random_steps_are_those_of_the_reference(backend):
    """Odd lengths, few keys, ties, empty rows, padding, shared and distinct paths, any kappa and head width."""
    draw = random.Random(5)
    for case in range(250 if backend == "triton" and not CUDA else 1000):  # Triton's interpreter is slow
        torch.manual_seed(case)
        n_sentences, beam, heads = draw.randint(1, 2), draw.randint(1, 3), draw.choice([1, 2, 3, 8])
        few, some, many = draw.randint(1, 12), draw.randint(13, 70), draw.randint(71, 400)
        n_keys = draw.choice([few] * 5 + [some] * 4 + [many])
        paths = paths_for(n_sentences, beam, n_keys, draw.choice(["table", "table", "left", "right", "empty"]))
        rows, held, width = n_sentences * beam, 2 * n_keys, heads * draw.choice([2, 5, 16])
        # small integers, a power of four of them: ties, and scores that are exact in any order of summation
        q, keys = torch.randn(rows, 16).round(), torch.randn(n_sentences, held, 16).round()
        kappa = draw.randint(10_000, 999_999)
        seen = ops.select_slots(q, keys, paths, kappa, backend)
        expected = reference.select_slots(q, keys, paths, kappa)
        if n_keys > ops.MIN_KEYS:
            most = expected.slot.size(1)
            assert torch.equal(seen.slot[:, :most], expected.slot) and (seen.slot[:, most:] == -1).all(), case
            assert torch.equal(seen.kept, expected.kept), case
        else:
            assert seen is None, case
        query, key, value = torch.randn(rows, width), *torch.randn(2, n_sentences, held, width)
        out = ops.attend_slots(query, key, value, paths, expected, heads, backend)
        defined = reference.attend_slots(query, key, value, expected, heads)
        torch.testing.assert_close(out, defined, rtol=1e-5, atol=1e-5)


def ending(model):
    """The model with an end symbol that now and then is as likely as the likeliest word: hypotheses finish at
    different steps."""
    probabilities = model.get_normalized_probs

    def with_ends(net_output, log_probs, sample=None):
        scores = probabilities(net_output, log_probs, sample)
        best, words = scores.topk(5)
        scores[..., 2] = torch.where(words.sum(-1) % 16 == 0, best[..., 0], scores[..., 2])
        return scores

    model.get_normalized_probs = with_ends
    return model


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_beam_search_finds_what_it_finds_without_any_cache(build, small_task, kappa):
    """Hypotheses and scores on 50 documents, in batches whose documents finish at different steps."""
    model = ending(build(kappa=kappa).eval())
    generator = SequenceGenerator([model], small_task.target_dictionary, beam_size=4, max_len_a=1.0, max_len_b=20)
    batches = [tokens(10, 12 + 7 * i, pad_left=tuple(range(10))) for i in range(5)]

    def search() -> list:
        found = []
        for src in batches:
            sample = {"net_input": {"src_tokens": src, "src_lengths": src.ne(1).sum(1)}}
            found += generator.generate([model], sample)
        return found

    cached = search()
    history: list[torch.Tensor] = []
    real = model.decoder.extract_features

    def extract(prev, *args, **kwargs):
        history.append(prev)
        return real(prev, *args, **kwargs)

    def whole(newest, positions, encoder_out, incremental_state):
        """The step without a state: all positions anew, the source repeated for every hypothesis."""
        beam = history[-1].size(0) // encoder_out["encoder_out"][0].size(1)
        own = encoder_out | {
            "encoder_out": [t.repeat_interleave(beam, 1) for t in encoder_out["encoder_out"]],
            "encoder_padding_mask": [t.repeat_interleave(beam, 0) for t in encoder_out["encoder_padding_mask"]],
        }
        out, extra = real(history[-1], own)
        return out[:, -1:], extra

    model.decoder.extract_features, model.decoder._step = extract, whole
    anew = search()
    assert len(cached) == len(anew) == 50 and history
    for a, b in zip(cached, anew):
        assert [h["tokens"].tolist() for h in a] == [h["tokens"].tolist() for h in b]
        for x, y in zip(a, b):
            torch.testing.assert_close(x["positional_scores"], y["positional_scores"], rtol=1e-4, atol=1e-5)


class TracedStep(ReplayedStep):
    """Records a step without a GPU: PyTorch operations with all else frozen, and no value asked from a tensor."""

    def __call__(self, function, x, version, n_rows):
        if version != self.version:
            self.trace, self.replays = None, getattr(self, "replays", 0)
            return super().__call__(function, x, version, n_rows)
        if self.trace is None:
            self.trace = make_fx(function)(self.x)
            self.function = self.trace
        self.replays += 1
        return super().__call__(self.trace, x, version, n_rows)


@pytest.mark.parametrize(
    ("backend", "kappa", "step", "n_documents"),
    [("cpu", 0.3, TracedStep, 10), ("cpu", 1.0, ReplayedStep, 10), ("triton", 0.3, ReplayedStep, 10 if CUDA else 2)],
)
def test_a_recorded_step_finds_the_same_translations(build, small_task, monkeypatch, backend, kappa, step, n_documents):
    """What a CUDA graph replays: fixed tensors, nothing decided on the host. Storage, table and sentences change."""
    if backend not in BACKENDS:
        pytest.skip(f"no {backend} kernels here")
    steps: list[ReplayedStep] = []
    monkeypatch.setattr(model_module, "ReplayedStep", lambda: steps.append(step()) or steps[-1])
    model = ending(build(kappa=kappa).eval())
    for module in model.modules():
        if hasattr(module, "backend"):
            module.backend = backend
    device = "cuda" if backend == "triton" and CUDA else "cpu"
    longest = 8 if backend == "triton" and device == "cpu" else 140  # the interpreter is slow
    generator = SequenceGenerator([model], small_task.target_dictionary, beam_size=3, max_len_a=0.0, max_len_b=longest)
    src = tokens(n_documents, 33, pad_left=tuple(range(n_documents))).to(device)
    model.to(device)
    sample = {"net_input": {"src_tokens": src, "src_lengths": src.ne(1).sum(1)}}
    regular = generator.generate([model], sample)
    model.decoder.cfg.cuda_graph = True
    versions = set()
    advance = DecodingCache.advance

    def counted(cache):
        paths = advance(cache)
        versions.add((cache.version, cache.capacity, cache.n_sentences))
        return paths

    monkeypatch.setattr(DecodingCache, "advance", counted)
    recorded = generator.generate([model], sample)
    for a, b in zip(regular, recorded, strict=True):
        assert [h["tokens"].tolist() for h in a] == [h["tokens"].tolist() for h in b]
        for x, y in zip(a, b):
            torch.testing.assert_close(x["positional_scores"], y["positional_scores"], rtol=1e-4, atol=1e-5)
    assert len(steps) == 1
    if longest > 100:
        assert len({capacity for _, capacity, _ in versions}) > 1 and len({n for _, _, n in versions}) > 1
    if step is TracedStep:
        assert steps[0].replays > 90


@settings(max_examples=60, deadline=None)
@given(
    beam=st.integers(1, 4),
    n_sentences=st.integers(1, 3),
    steps=st.integers(1, 300),
    seed=st.integers(0, 9),
    fixed=st.booleans(),
)
def test_the_cache_gives_what_one_that_copies_gives(beam, n_sentences, steps, seed, fixed):
    generator = torch.Generator().manual_seed(seed)
    rows = beam * n_sentences
    cache = DecodingCache(rows, n_sentences, torch.device("cpu"), fixed)
    copies = torch.zeros(rows, 0, 2)
    source = torch.arange(n_sentences, dtype=torch.float)[:, None, None].expand(-1, 5, 2)
    cache.source_paths(torch.zeros(n_sentences, 5, dtype=torch.bool))
    places: dict[int, set] = {}
    for step in range(steps):
        new = torch.randn(copies.size(0), 2, generator=generator)
        paths = cache.advance()
        store = cache.append("key", torch.cat([new, torch.zeros(cache.table.size(0) - new.size(0), 2)]))
        copies = torch.cat([copies, new[:, None]], 1)
        held = cache.once("source", lambda x: x, source)
        assert held.size(0) == store.size(0) == cache.n_sentences
        n, memory = cache.n_live, cache.source_paths(torch.empty(0))
        if fixed:
            tensors = (*paths[:3], store, held, memory.start, memory.n_keys, cache.newest)
            places.setdefault(cache.version, set()).add(tuple(t.data_ptr() for t in tensors))
            assert (paths.n_keys[n:] == 0).all() and (memory.n_keys[n:] == 0).all()
        assert paths.end == (cache.table.size(1) if fixed else copies.size(1))
        slots, allowed = (t[: copies.size(0)] for t in paths.slots(cache.table.size(0)))
        assert allowed[:, : copies.size(1)].all() and not allowed[:, copies.size(1) :].any()
        sentence = torch.arange(copies.size(0)) // cache.beam
        assert torch.equal(store[sentence[:, None], slots[:, : copies.size(1)]], copies)
        order = torch.randint(cache.beam, (n, cache.beam), generator=generator) + torch.arange(n)[:, None] * cache.beam
        if step % 50 == 49 and n > 1:  # a sentence is finished
            order = order[torch.randperm(n, generator=generator)[: n - 1].sort().values]
        cache.reorder(order.view(-1))
        copies = copies[order.view(-1)]
    assert all(len(p) == 1 for p in places.values())
    if beam > 2 and steps > 200:  # dropped hypotheses make room
        assert cache.capacity < 2.7 * (steps + 30)


def test_rows_that_leave_their_sentence_are_followed():
    cache = DecodingCache(4, 2, torch.device("cpu"))
    cache.advance()
    cache.append("key", torch.arange(4.0)[:, None])
    cache.once("source", lambda x: x, torch.tensor([[[10.0]], [[20.0]]]))
    cache.reorder(torch.tensor([3, 0, 1]))
    slots, _ = cache.advance().slots(3)
    held = cache.append("key", torch.zeros(3, 1))
    sentence = torch.arange(3) // cache.beam
    assert held[sentence, slots[:, 0], 0].tolist() == [3, 0, 1]
    assert cache.source["source"][sentence, 0, 0].tolist() == [20, 10, 10]


def test_without_a_compiler_plain_pytorch_decodes_and_says_so_once(monkeypatch, caplog, tmp_path):
    from torch.utils import cpp_extension

    def fail(*_, **__):
        raise RuntimeError("Error building extension: no compiler")

    monkeypatch.setattr(cpp_extension, "load", fail)
    monkeypatch.setattr(cpu, "_registered", lambda: False)  # as in a process that has not loaded any
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    cpu.kernels.cache_clear()
    try:
        with caplog.at_level(logging.WARNING):
            paths, q, keys = paths_for(1, 2, 50, "table"), torch.randn(2, 8), torch.randn(1, 100, 8)
            slots = ops.select_slots(q, keys, paths, 300_000)
            ops.attend_slots(q, keys, keys, paths, slots, 2)
        assert torch.equal(slots.slot, reference.select_slots(q, keys, paths, 300_000).slot)
        assert sum("plain PyTorch" in r.message for r in caplog.records) == 1
    finally:
        cpu.kernels.cache_clear()
