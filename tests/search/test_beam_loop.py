"""Our own loop against fairseq's: the same hypotheses, bit for bit, however often the host looks."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.search import BeamSearch, DiverseBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from helpers import tokens

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.search.beam_loop import BeamGenerator, Beams, advance
from fairseq_lasformer.search.beam_search import fast
from fairseq_lasformer.search.generator import AlignedGenerator, Alignment
from fairseq_lasformer.search.histories import Histories, Step
from fairseq_lasformer.search.processors import Candidates, Scores

END, UNKNOWN, SEPARATOR = 2, 3, 7


@pytest.fixture
def model(build):
    """A model some of whose hypotheses end in every step."""
    model = build(kappa=0.3, backend="reference").eval()
    real = model.get_normalized_probs

    def with_ends(*args, **kwargs):
        scores = real(*args, **kwargs)
        scores[..., 1] = 0.0  # padding must never be chosen
        best = scores.max(-1).values
        scores[..., END] = torch.where((200 * scores[..., 9]).floor() % 7 == 0, best - 0.01, scores[..., END])
        return scores

    model.get_normalized_probs = with_ends
    return model


def batch(n: int = 6, length: int = 14) -> dict:
    source = tokens(n, length, pad_left=tuple(range(n)))
    source[:, length // 2 :: 4] = SEPARATOR
    return {"id": torch.arange(n) + 70, "net_input": {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}}


def same(ours: list, theirs: list, rtol: float = 0.0) -> int:
    """Compare all hypotheses; return their number."""
    assert [len(hypotheses) for hypotheses in ours] == [len(hypotheses) for hypotheses in theirs]
    pairs = list(zip(sum(ours, []), sum(theirs, [])))
    for a, b in pairs:
        assert a["tokens"].tolist() == b["tokens"].tolist()
        assert a["tokens"].dtype == b["tokens"].dtype and a["score"].shape == b["score"].shape
        for name in ("score", "positional_scores"):
            torch.testing.assert_close(a[name], b[name], rtol=rtol, atol=rtol)
        assert a["attention"].numel() == a["alignment"].numel() == 0
    return len(pairs)


OPTIONS = {
    "plain": {},
    "greedy": {"beam_size": 1},
    "short": {"max_len_b": 3},
    "none": {"max_len_a": 0, "max_len_b": 0, "min_len": 0},
    "long": {"min_len": 12},
    "sum": {"normalize_scores": False},
    "penalties": {"len_penalty": 0.6, "unk_penalty": 1.5, "temperature": 0.7},
    "no-bonus": {"unk_penalty": -3.0},
    "suppressed": {"tokens_to_suppress": ("w1", "w39", "w59")},
    "wide": {"beam_size": 70},  # all words except one
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("n_models", [1, 2])
def test_hypotheses_are_fairseqs(model, small_task, options, n_models):
    options = {"beam_size": 4, "max_len_a": 1.0, "max_len_b": 25} | options
    given = [model] * n_models, small_task.target_dictionary
    sample = batch()
    theirs = SequenceGenerator(*given, **options)
    theirs.search = fast(theirs.search)  # equal scores in the same order
    theirs = theirs.generate([], sample)
    found = same(BeamGenerator(*given, **options).generate([], sample), theirs)
    assert found > len(theirs) or 1 in (options["beam_size"], options["max_len_b"] + 1)


def test_the_first_word_can_be_chosen(model, small_task):
    given, sample = ([model], small_task.target_dictionary), batch()
    theirs = SequenceGenerator(*given, beam_size=2).generate([], sample, bos_token=9)
    assert same(BeamGenerator(*given, beam_size=2).generate([], sample, bos_token=9), theirs)
    with pytest.raises(AssertionError):
        same(BeamGenerator(*given, beam_size=2).generate([], sample), theirs)


PREFIXES = {
    "words": [[9, 10, 11, 12]] * 6,
    "some": [[9, 10, 11], [12, 1, 1], [1, 1, 1], [5, 6, 1], [7, 7, 7], [1, 1, 1]],
    "end": [[9, 2, 1], [12, 1, 1], [1, 1, 1], [5, 6, 1], [7, 7, 7], [9, 9, 2]],
    "too-long": [[9] * 30] * 6,
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
def test_prefixes_are_kept_as_in_fairseqs_loop(model, small_task, prefix):
    given, options = ([model], small_task.target_dictionary), {"beam_size": 3, "max_len_b": 25, "min_len": 6}
    theirs = SequenceGenerator(*given, **options)
    theirs.search = fast(theirs.search)
    ours, sample = BeamGenerator(*given, **options), batch()
    prefix = torch.tensor(prefix)
    found = ours.generate([], sample, prefix_tokens=prefix.clone())
    # a long prefix is read in one pass, which rounds differently
    same(found, theirs.generate([], sample, prefix_tokens=prefix.clone()), 1e-5 if prefix.size(1) > 8 else 0.0)
    for hypotheses, words in zip(found, prefix.tolist()):
        wanted = [word for word in words if word != 1][:25]
        assert hypotheses[0]["tokens"][: len(wanted)].tolist() == wanted


@pytest.mark.parametrize("options", [{}, {"min_len": 10}], ids=["plain", "long"])
@pytest.mark.parametrize("given", [0, 4, 12])
def test_limits_of_their_own_give_each_item_what_it_has_alone(build, small_task, options, given):
    model = build(kappa=0.3, backend="reference").eval()
    options = {"beam_size": 3, "max_len_a": 1.0, "max_len_b": 1, "own_limits": True} | options
    generator, sample = BeamGenerator([model], small_task.target_dictionary, **options), batch()
    prefix = tokens(6, given) if given else None
    together = generator.generate([], sample, prefix_tokens=prefix)
    source = sample["net_input"]["src_tokens"]
    limits = (source.ne(1).sum(1) + 1).tolist()
    for i, (hypotheses, limit) in enumerate(zip(together, limits, strict=True)):
        row = source[i : i + 1, i:]
        one = {"id": torch.tensor([0]), "net_input": {"src_tokens": row, "src_lengths": torch.tensor([limit - 1])}}
        alone = generator.generate([], one, prefix_tokens=None if prefix is None else prefix[i : i + 1])
        same([hypotheses], alone, 1e-5)
        assert max(len(h["tokens"]) for h in hypotheses) <= limit + 1
    with pytest.raises(InputError, match=f"--min-len 99: more than the {min(limits)} tokens"):
        BeamGenerator([model], small_task.target_dictionary, **(options | {"min_len": 99})).generate([], sample)


def test_an_unknown_word_that_is_given_costs_its_penalty(build, small_task):
    model = build(kappa=0.3, backend="reference").eval()
    given, options = ([model], small_task.target_dictionary), {"beam_size": 3, "max_len_b": 25, "unk_penalty": 2.0}
    prefix = tokens(6, 12)
    prefix[:, 5] = UNKNOWN
    theirs = SequenceGenerator(*given, **options)
    theirs.search = fast(theirs.search)
    sample = batch()
    found = BeamGenerator(*given, **options).generate([], sample, prefix_tokens=prefix)
    same(found, theirs.generate([], sample, prefix_tokens=prefix), 1e-5)


def test_words_that_must_not_come_next(model, small_task):
    generator = BeamGenerator([model], small_task.target_dictionary, min_len=2, tokens_to_suppress=("w1",))
    scores = torch.full((1, 2, 64), -1.0)
    scores[0, 0, 9], scores[0, 1, 9] = math.nan, math.inf
    excluded, device = scores.clone(), torch.device("cpu")
    (rule,) = generator._exclusions(5, None, device)
    rule.step(Scores(1, excluded, None))
    assert {*zip(*(excluded[0] == -math.inf).nonzero().T.tolist())} == {
        (0, 9),
        *((i, j) for i in (0, 1) for j in (1, 2, 5)),
    }
    rule.step(Scores(5, scores, None))
    assert (scores[0] > -math.inf).nonzero().tolist() == [[0, END], [1, END]]


@pytest.mark.parametrize("every", [1, 3, 16, 1000])
def test_it_does_not_matter_when_the_host_looks(model, small_task, every):
    given = [model], small_task.target_dictionary
    options = {"beam_size": 4, "max_len_b": 60}
    sample = batch()
    theirs = SequenceGenerator(*given, **options).generate([], sample)
    ours = BeamGenerator(*given, **options)
    ours.look_every = every
    lengths, of_source = [], []
    real = ours.model.forward_decoder

    def forward(so_far, encoded, *args):
        lengths.append(tuple(so_far.shape))
        of_source.append(encoded)
        return real(so_far, encoded, *args)

    ours.model.forward_decoder = forward
    found = ours.generate([], sample)
    assert [[h["tokens"].tolist() for h in f] for f in found] == [[h["tokens"].tolist() for h in f] for f in theirs]
    for a, b in zip(sum(found, []), sum(theirs, [])):  # the rows of a product may change its last bits
        torch.testing.assert_close(a["score"], b["score"], rtol=1e-5, atol=1e-5)
    assert [n for _, n in lengths] == list(range(1, len(lengths) + 1))
    rows = [n for n, _ in lengths]
    assert [encoded[0]["encoder_padding_mask"][0].size(0) * 4 for encoded in of_source] == rows
    assert all(of_source[i] is of_source[i - 1] for i in range(1, len(rows)) if rows[i] == rows[i - 1])
    assert all(rows[i] == rows[i - 1] for i in range(1, len(rows)) if i % every)
    if every < 16:
        assert len({*rows}) > 2
    ends = [max(len(h["tokens"]) for h in hypotheses) for hypotheses in found]
    assert rows == [4 * sum(end > i // every * every for end in ends) for i in range(len(rows))]


@pytest.mark.parametrize("every", [1, 4])
def test_lines_are_aligned_as_in_fairseqs_loop(model, small_task, every, monkeypatch):
    sample = batch()
    ours = AlignedGenerator(
        [model], small_task.target_dictionary, alignment=Alignment((SEPARATOR, SEPARATOR), 1.2, 1, 0), beam_size=3
    )
    ours.look_every = every
    found = ours.generate([], sample)
    monkeypatch.setattr(ours, "is_plain", lambda: False)
    theirs = ours.generate([], sample)
    assert [[h["tokens"].tolist() for h in f] for f in found] == [[h["tokens"].tolist() for h in f] for f in theirs]
    assert [[h["flawed"] for h in f] for f in found] == [[h["flawed"] for h in f] for f in theirs]


def test_what_needs_the_host_takes_fairseqs_loop(model, small_task):
    words = small_task.target_dictionary
    plain = BeamGenerator([model], words)
    assert plain.is_plain()
    for options in (
        {"no_repeat_ngram_size": 2},
        {"match_source_len": True},
        {"lm_model": model},
        {"search_strategy": DiverseBeamSearch(words, 2, 0.5)},
    ):
        assert not BeamGenerator([model], words, **options).is_plain()
    assert BeamGenerator([model], words, search_strategy=BeamSearch(words)).is_plain()
    del plain.model.models[0].decoder
    assert not plain.is_plain()


def continued(beams, candidates, ends_exhausted=False):
    return advance(beams, candidates, END, ends_exhausted, "auto")


def test_an_items_hypotheses_are_counted_and_the_best_others_go_on():
    unused = torch.tensor([[0, 0, 0], [0, 1, 0]]).bool()
    beams = Beams(torch.zeros(2, 3).long(), torch.zeros(2, 3), unused, torch.tensor([[1], [2]]))
    scores = torch.tensor([[-1.0, -2, -3, -4, -5, -math.inf], [-1.0, -2, -3, -4, -5, -6]])
    words = torch.tensor([[END, 5, END, END, 6, END], [8, END, END, 9, 10, 11]])
    parents = torch.tensor([[2, 1, 0, 0, 1, 2], [0, 0, 1, 1, 2, 2]])
    after, record, chosen, rows = continued(beams, Candidates(scores, words, parents))
    assert rows.tolist() == [[1, 1, 2], [3, 4, 5]]
    # one place of the last item is unused: its content is ignored, even an end
    assert record.ended.tolist() == [[2, -1, 0], [-1, -1, 1]]
    assert record.final.tolist() == scores[:, :3].tolist()
    assert after.n_ended.tolist() == [[3], [3]]
    # an end without a chance does not count; an end after the first three is lost
    assert chosen.tolist() == [[1, 4, 5], [0, 3, 4]]
    assert after.words.tolist() == [[5, 6, END], [8, 9, 10]] and not after.unused.any()
    assert record.parents.tolist() == [[1, 1, 2], [0, 1, 2]]
    assert after.scores.tolist() == [[-2, -5, -math.inf], [-1, -4, -5]]
    full = beams._replace(n_ended=torch.tensor([[2], [3]]))
    after, record, *_ = continued(full, Candidates(scores, words, parents))
    assert record.ended.tolist() == [[2, -1, -1], [-1, -1, -1]]  # no more than three, and none after them
    # an unused place stays unused, whatever it contains; too many ends leave new ones
    words = torch.tensor([[END, 5, END, END, END, 6], [8, 7, END, END, END, 11]])
    scores[0, 5] = -6.0
    after, _, chosen, _ = continued(beams, Candidates(scores, words, parents))
    assert chosen.tolist() == [[1, 5, 0], [0, 5, 1]]
    assert after.unused.tolist() == [[False, False, True]] * 2


def test_an_exhausted_item_is_finished_once_a_hypothesis_ends():
    beams = Beams.first(torch.full((3,), END), 2)
    words = torch.tensor([[END, END, 6, 7], [END, 5, 6, 7], [5, 6, 7, END]])
    scores = -torch.arange(4.0).repeat(3, 1)
    scores[0, 2:] = -math.inf  # nothing goes on
    scores[2] = -math.inf  # nothing ends, either
    candidates = Candidates(scores, words, torch.zeros(3, 4).long())
    assert continued(beams, candidates, True)[0].n_ended.tolist() == [[2], [1], [0]]
    scores[0, 1] = -math.inf
    assert continued(beams, candidates, True)[0].n_ended.tolist() == [[2], [1], [0]]
    assert continued(beams, candidates, False)[0].n_ended.tolist() == [[1], [1], [0]]


def test_histories_are_followed_back_through_items_that_are_removed():
    histories, device = Histories(3), torch.device("cpu")
    none = torch.full((3, 2), -1)
    histories.add(Step(torch.tensor([[10, 11], [20, 21], [30, 31]]), none * 0, none, -torch.ones(3, 2), none.float()))
    ended = torch.tensor([[-1, -1], [1, 0], [-1, -1]])
    words, parents = torch.tensor([[12, 13], [22, 23], [32, 33]]), torch.tensor([[1, 0]] * 3)
    histories.add(Step(words, parents, ended, -2 * torch.ones(3, 2), -4 * torch.ones(3, 2)))
    histories.remove([0, 2])
    ended = torch.tensor([[1, -1], [0, 1]])
    final = torch.tensor([[-6.0, 0.0], [-9.0, -3.0]])
    histories.add(Step(words[:2], parents[:2], ended, -3 * torch.ones(2, 2), final))
    found = histories.hypotheses(END, 1.0, device)
    assert [[h["tokens"].tolist() for h in f] for f in found] == [
        [[10, 13, END]],
        [[21, END], [20, END]],  # equally good: in the order of the candidates
        [[30, 33, END], [31, 32, END]],
    ]
    assert [[float(h["score"]) for h in f] for f in found] == [[-2.0], [-2.0, -2.0], [-1.0, -3.0]]
    assert found[2][1]["positional_scores"].tolist() == [-1.0, -1.0, -7.0]
    assert float(histories.hypotheses(END, None, device)[0][0]["score"]) == -6.0


def test_a_search_without_an_end_has_no_hypotheses():
    assert Histories(2).hypotheses(END, 1.0, torch.device("cpu")) == [[], []]
