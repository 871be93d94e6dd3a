"""The kernel's candidates against torch.topk's and fairseq's beam search."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.search import BeamSearch, DiverseBeamSearch

from fairseq_lasformer.ops import cpu
from fairseq_lasformer.search.beam_search import FastBeamSearch, fast

pytestmark = pytest.mark.skipif(cpu.kernels() is None, reason="no CPU kernels")


@pytest.mark.parametrize("n_items, beam, n_words", [(1, 5, 8000), (3, 4, 63), (2, 1, 5), (4, 3, 130)])
@pytest.mark.parametrize("step", [0, 3])
def test_candidates_are_those_of_fairseq(n_items, beam, n_words, step):
    lprobs = torch.randn(n_items, beam, n_words).log_softmax(-1)
    lprobs[:, :, 1] = -math.inf
    scores = -torch.rand(n_items, beam, 4)
    dictionary = Dictionary()
    expected = BeamSearch(dictionary).step(step, lprobs.clone(), scores)
    found = FastBeamSearch(dictionary).step(step, lprobs.clone(), scores)
    for e, f in zip(expected, found):
        torch.testing.assert_close(f, e, rtol=0, atol=0)


def test_other_searches_stay_as_they_are():
    dictionary = Dictionary()
    assert type(fast(BeamSearch(dictionary))) is FastBeamSearch
    diverse = DiverseBeamSearch(dictionary, 2, 0.5)
    assert fast(diverse) is diverse and type(diverse) is DiverseBeamSearch
