"""The decoding cache against one that copies."""

from __future__ import annotations

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_lasformer.nn.decoding.cache import DecodingCache, LineCache
from fairseq_lasformer.nn.decoding.fixed_cache import KEPT_BUFFERS, BufferPool, FixedCache, GraphBuffers, Size
from fairseq_lasformer.nn.lines import LineRanges
from fairseq_lasformer.nn.rotary import frequencies, rotations

POOL = BufferPool()


@settings(max_examples=60, deadline=None)
@given(
    beam=st.integers(1, 4),
    n_items=st.integers(1, 3),
    steps=st.integers(1, 300),
    seed=st.integers(0, 9),
    fixed=st.booleans(),
)
def test_the_cache_gives_what_one_that_copies_gives(beam, n_items, steps, seed, fixed):
    generator = torch.Generator().manual_seed(seed)
    rows = beam * n_items
    cache = DecodingCache(rows, n_items, torch.device("cpu"))
    if fixed:
        first = Size.first(rows, n_items, 5, torch.empty(0))
        small = first._replace(positions=64, capacity=64 * beam)
        for _ in range(1 + seed % 2):  # a second batch in the buffers of the first
            cache = FixedCache(small, POOL)
    copies = torch.zeros(rows, 0, 2)
    source = torch.arange(n_items, dtype=torch.float)[:, None, None].expand(-1, 5, 2)
    cache.index_source(torch.zeros(n_items, 5, dtype=torch.bool))
    places: dict[GraphBuffers, set] = {}
    for step in range(steps):
        new = torch.randn(copies.size(0), 2, generator=generator)
        paths = cache.advance()
        store = cache.append("key", torch.cat([new, torch.zeros(cache.table.size(0) - new.size(0), 2)]))
        copies = torch.cat([copies, new[:, None]], 1)
        held = cache.once("source", lambda x: x, source)
        assert held.size(0) == store.size(0) == cache.n_items
        n, memory = cache.n_live, cache.index_source(torch.empty(0))
        if fixed:
            tensors = (*paths[:3], store, held, memory.start, memory.n_keys, cache.newest)
            places.setdefault(cache.buffers, set()).add(tuple(t.data_ptr() for t in tensors))
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


def test_few_buffers_are_kept_and_the_last_ones_left():
    pool = BufferPool()
    sizes = [Size.first(2, 1, 16 << i, torch.empty(0)) for i in range(KEPT_BUFFERS + 2)]
    made = [pool.take(size) for size in sizes]
    pool.give(list(made))
    assert pool.free == made[2:]
    assert pool.take(sizes[-1]) is made[-1] and pool.take(sizes[0]) is not made[0]
    assert copy.deepcopy(pool).free == []


def test_buffers_that_another_thread_takes_meanwhile_are_not_taken_twice():
    size, pool = Size.first(2, 1, 9, torch.zeros(1)), BufferPool()
    first, second = GraphBuffers(size), GraphBuffers(size)

    class Taken(list):
        def remove(self, buffers):
            super().remove(second)  # by another thread, just before
            pool.free = [first]
            raise ValueError

    pool.free = Taken([first, second])
    assert pool.take(size) is first and pool.free == []


def test_buffers_of_a_batch_in_progress_are_not_used_again_once_parameters_have_moved(build):
    decoder = build().decoder
    size = Size.first(4, 2, 9, torch.zeros(1))
    cache = FixedCache(size, decoder.pool)
    old = cache.buffers
    decoder.double()
    del cache
    assert decoder.pool.take(size) is not old


def test_items_that_end_leave_the_storage_where_it_is():
    """Sentences of a batch end one after another: copying all of the storage each time took half of a translation."""
    cache = DecodingCache(12, 6, torch.device("cpu"))
    for _ in range(3):
        cache.advance()
        cache.append("keys", torch.rand(12, 4))
    store = cache.generated["keys"]
    before, place = store.clone(), store.data_ptr()
    store[:, cache.used :] = float("nan")
    cache.reorder(torch.tensor([0, 1, 4, 5, 6, 7, 10, 11]))
    kept = cache.generated["keys"]
    assert kept.shape[0] == 4 and kept.data_ptr() == place
    assert torch.equal(kept[:, : cache.used], before[[0, 2, 3, 5], : cache.used])


def test_items_that_change_places_take_their_sources_along():
    cache, memory = DecodingCache(6, 2, torch.device("cpu")), torch.randn(2, 5, 4)
    cache.once("keys", lambda x: x, memory)
    cache.reorder(torch.tensor([2, 0, 0, 5, 4, 3]))  # within their items
    assert torch.equal(cache.source["keys"], memory)
    cache.reorder(torch.tensor([3, 4, 5, 0, 1, 2]))
    assert torch.equal(cache.source["keys"], memory.flip(0))


def test_what_a_line_reads_follows_its_hypotheses():
    ranges = LineRanges(*(torch.tensor(t) for t in ([0, 0, 9], [9, 9, 4], [0, 5, 9], [5, 4, 4], [0, 1, 0])))
    cache, frequency = LineCache(9, ranges, 13, {}), frequencies()

    def check(*lines: int, beam: int) -> None:
        _, own = cache.own_lines(torch.empty(0), torch.empty(0))
        expected = ranges.take(torch.tensor(lines).repeat_interleave(beam))
        assert torch.equal(own.first, expected.own_start) and torch.equal(own.n_keys, expected.own_tokens)
        assert torch.equal(cache.rotation(frequency), rotations(expected.line, frequency))

    check(0, 1, 2, beam=3)
    cache.reorder(torch.tensor([0, 3, 6]))  # the best of each
    check(0, 1, 2, beam=1)
    cache.reorder(torch.tensor([2, 0, 1]))
    check(2, 0, 1, beam=1)
    cache.reorder(torch.tensor([0, 0, 2, 2]))
    check(2, 1, beam=2)
