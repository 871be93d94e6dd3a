"""A first word that every translation begins with, as in multilingual models."""

from __future__ import annotations

import pytest
import torch
from fairseq import search
from test_shortlist import DOCUMENTS, EOS, SEPARATOR, aligned, batch, model, shortlist, words  # noqa: F401

from fairseq_lasformer.search.beam_loop import BeamGenerator

TAG = 55
MAKE = {"aligned": aligned, "free": BeamGenerator}


def tokens(found):
    return [[hypothesis["tokens"].tolist() for hypothesis in hypotheses] for hypotheses in found]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("kind", MAKE)
def test_it_is_the_search_behind_that_word(model, words, kind, listed):  # noqa: F811
    options = {"beam_size": 1, "shortlist": shortlist(best=3) if listed else None}
    prefix = torch.full((len(DOCUMENTS), 1), TAG)
    plain = MAKE[kind]([model], words, **options).generate([], batch(*DOCUMENTS), prefix_tokens=prefix)
    tagged = MAKE[kind]([model], words, tag=TAG, **options)
    found = tagged.generate([], batch(*DOCUMENTS))
    if kind == "aligned":  # there, the word counts as one of the first line
        assert [[line.count(SEPARATOR) for line in its] for its in tokens(found)] == [[len(d) - 1] for d in DOCUMENTS]
    else:
        assert tokens(found) == [[line[1:] for line in its] for its in tokens(plain)]
    assert tokens(tagged.generate([], batch(*DOCUMENTS), prefix_tokens=prefix)) == tokens(found)
    begun = torch.tensor([[its[0][0]] for its in tokens(found)])
    assert tokens(tagged.generate([], batch(*DOCUMENTS), prefix_tokens=begun)) == tokens(found)


@pytest.mark.parametrize("strategy", [None, search.DiverseBeamSearch])
@pytest.mark.parametrize("kind", MAKE)
def test_it_costs_nothing(model, words, kind, strategy):  # noqa: F811
    made = strategy(words, 1, 0.5) if strategy else None
    options = {"strategy": made} if kind == "aligned" else {"search_strategy": made}
    found = MAKE[kind]([model], words, tag=TAG, beam_size=3, **options).generate([], batch(*DOCUMENTS))
    for hypothesis in (h for hypotheses in found for h in hypotheses):
        n, scores = len(hypothesis["tokens"]), hypothesis["positional_scores"]
        assert len(scores) == n
        torch.testing.assert_close(hypothesis["score"], scores.sum() / (n + 1), rtol=1e-5, atol=1e-5)


def test_no_line_is_longer_or_empty_for_it(model, words):  # noqa: F811
    """A limit of one word per line leaves each line exactly one, including the first."""
    generator = aligned([model], words, tag=TAG, beam_size=2)
    generator.alignment = generator.alignment._replace(a=0, b=1)
    for hypotheses, document in zip(tokens(generator.generate([], batch(*DOCUMENTS))), DOCUMENTS):
        for line in hypotheses:
            assert (
                len(line) == 2 * len(document) and line[-1] == EOS and line[1:-1:2] == [SEPARATOR] * (len(document) - 1)
            )
