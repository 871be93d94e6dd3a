"""Steps of a beam search by every backend, against their definitions and fairseq's search."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.search import BeamSearch
from helpers import BACKENDS, skip_unless_here

from fairseq_lasformer import ops

SHAPES = [(1, 5, 9000), (3, 4, 63), (2, 1, 5), (4, 3, 130), (1, 1, 4097)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("n_words", [1, 70, 5000])
def test_log_probabilities_are_those_of_the_scores_as_they_are(backend, dtype, n_words):
    torch.manual_seed(n_words)
    scores = (torch.randn(3, 2, 2 * n_words) * 30).to(dtype)[..., ::2]
    scores[..., -1] += 100  # the largest is found last
    scores[0, :, 1:] = -math.inf  # nothing is possible but the first word
    found = ops.log_probabilities(scores, backend)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, scores.double().log_softmax(-1).float(), rtol=1e-6, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_items, beam, n_words", SHAPES)
@pytest.mark.parametrize("first", [True, False])
def test_candidates_are_those_of_fairseq(backend, n_items, beam, n_words, first):
    torch.manual_seed(n_words)
    lprobs, past = torch.randn(n_items, beam, n_words).log_softmax(-1), -torch.rand(n_items, beam, 4)
    lprobs[:, :, 1] = -math.inf
    expected = BeamSearch(Dictionary()).step(0 if first else 4, lprobs.clone(), past)
    given = (lprobs[:, ::beam], None) if first else (lprobs, past[:, :, 3])
    found = ops.top_candidates(*given, expected[0].size(1), backend)
    for ours, theirs in zip(found, expected):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_candidates_come_in_order_and_none_twice(backend):
    lprobs = torch.full((2, 3, 5000), -math.inf)
    lprobs[1, :, 4090:] = -1.0
    lprobs[1, 2, 4999] = math.nan  # as unlikely as can be
    scores, words, parents = ops.top_candidates(lprobs, torch.zeros(2, 3), 7, backend)
    assert scores[0].eq(-math.inf).all() and words[0].tolist() == [*range(7)] and not parents.any()
    assert words[1].tolist() == [*range(4090, 4097)] and scores[1].eq(-1).all()
    lprobs[1, 2, 4998] = -0.5
    _, words, parents = ops.top_candidates(lprobs, None, 2, backend)
    assert words[1].tolist() == [4998, 4090] and parents[1].tolist() == [2, 0]
    few = torch.tensor([[[math.nan, -3.0, math.nan, -1.0, -2.0]]])
    assert ops.top_candidates(few, None, 4, backend)[1].tolist() == [[3, 4, 1, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("beam, k", [(1, 2), (5, 10), (4, 7), (3, 6)])
@pytest.mark.parametrize("ends_exhausted", [False, True])
def test_hypotheses_that_go_on_are_those_of_the_definition(backend, beam, k, ends_exhausted):
    """Random steps in which much has ended, is unused or is impossible."""
    torch.manual_seed(beam)
    n, end = 40, 2
    scores = -torch.rand(n, k).sort(1)[0]
    scores[torch.rand(n, k) < 0.3] = -math.inf
    scores[1::8] = -math.inf  # nothing goes on, and nothing ends
    scores, words = scores.sort(1, descending=True)[0], torch.randint(2, 6, (n, k))
    words[::4] = end
    parents, unused = torch.randint(beam, (n, k)), torch.rand(n, beam) < 0.3
    n_ended = torch.randint(beam + 1, (n, 1))
    given = ((scores, words, parents), unused, n_ended, end, ends_exhausted)
    expected = ops.advance(*given, "reference")
    found = ops.advance(*given, backend)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    over = expected[3][:, 0] >= beam
    assert over.any() and not over.all()


@pytest.mark.parametrize("beam, n_words", [(65, 4200), (41, 16_400)])
def test_beams_that_one_program_cannot_hold_take_the_definition(monkeypatch, beam, n_words):
    skip_unless_here("triton")
    from fairseq_lasformer.ops.gpu.kernels import search as kernels

    monkeypatch.setattr(kernels, "_best_of_item", None)
    lprobs, past = torch.randn(1, beam, n_words), -torch.rand(1, beam)
    candidates = ops.top_candidates(lprobs, past, 2 * beam, "triton")
    assert all(map(torch.equal, candidates, ops.top_candidates(lprobs, past, 2 * beam, "reference")))
    if 2 * beam > kernels.MOST_KEPT:
        monkeypatch.setattr(kernels, "_advance", None)
    given = candidates, torch.zeros(1, beam, dtype=torch.bool), torch.zeros(1, 1, dtype=torch.int64), 2
    assert all(map(torch.equal, ops.advance(*given, False, "triton"), ops.advance(*given, False, "reference")))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_words", [12, 5000])
@pytest.mark.parametrize("steps", [0, 1, 6, 50])
@pytest.mark.parametrize("given", [False, True])
def test_lines_end_where_the_definition_ends_them(backend, n_words, steps, given):
    torch.manual_seed(steps)
    n, beam, separator, end = 6, 3, 4, 2
    sentences = torch.randint(1, 5, (n,))
    longest = torch.randint(1, 9, (n, 4)).masked_fill(torch.arange(4) >= sentences[:, None], 0)
    left = (torch.rand(n, beam + 1) * (sentences[:, None] + 1)).long()[:, 1:] - 1  # of a wider tensor
    lines = ops.LineEnds(left.clamp_min(0), torch.randint(-1, 9, (n, beam)), sentences, longest, separator, end)
    lprobs = torch.randn(n, beam, n_words) * 1e4
    lprobs[:, 0, [separator, end]] = -math.inf
    free = torch.arange(n)[:, None] % 2 == 0 if given else None
    expected, found = lprobs.clone(), lprobs.clone()
    ops.restrict_lines(expected, lines, steps, free, "reference")
    ops.restrict_lines(found, lines, steps, free, backend)
    assert torch.equal(found, expected)
    must = expected.isneginf().sum(2) >= n_words - 1
    assert must.any() and not must.all() and (free is None or torch.equal(expected[1::2], lprobs[1::2]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_lines_are_counted_with_their_hypotheses(backend):
    torch.manual_seed(2)
    n, beam, k = 5, 3, 6
    words, parents = torch.randint(4, 6, (n, k)), torch.randint(beam, (n, k))
    chosen = torch.stack([torch.randperm(k)[:beam] for _ in range(n)])
    first = torch.arange(n)[:, None].expand(n, beam)  # as a search begins
    lines = ops.LineEnds(first, torch.randint(9, (n, beam)), first[:, 0], first, 4, 2)
    left, length = ops.count_lines(lines, words, parents, chosen, backend)
    for i in range(n):
        for j in range(beam):
            candidate = chosen[i, j]
            parent, ended = parents[i, candidate], words[i, candidate] == 4
            assert left[i, j] == lines.left[i, parent] - int(ended)
            assert length[i, j] == (0 if ended else lines.length[i, parent] + 1)
