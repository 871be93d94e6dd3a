"""Sentence-aligned search: as many lines out as in, whatever the model, the strategy and the batch."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq import search
from fairseq.data import Dictionary
from fairseq.sequence_generator import SequenceGenerator
from helpers import SMALL

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel
from fairseq_lasformer.search.alignment import LineAlignment, SentenceLimits
from fairseq_lasformer.search.generator import AlignedGenerator, Alignment
from fairseq_lasformer.search.processors import ProcessedSearch, Scores
from fairseq_lasformer.search.repair import NoRepetition, flawed, loops, split

PAD, EOS = 1, 2
SEPARATOR = 4
A, B = 1.5, 2


@pytest.fixture(scope="module")
def words() -> Dictionary:
    dictionary = Dictionary()
    for word in ("<sep>", *(f"w{i}" for i in range(40))):
        dictionary.add_symbol(word)
    assert dictionary.index("<sep>") == SEPARATOR
    return dictionary


@pytest.fixture(scope="module")
def model(words) -> LasformerModel:
    torch.manual_seed(5)
    task = SimpleNamespace(source_dictionary=words, target_dictionary=words, run_options=RunOptions("reference"))
    model = LasformerModel.build_model(LasformerConfig(**SMALL), task)
    with torch.no_grad():  # certain enough for searches to differ
        model.decoder.output_projection.weight.mul_(4)
    return model.eval()


SENTENCES = ((3, 5, 2), (4,), (1, 1, 1, 1, 6), (2, 7))


def batch(*documents: tuple[int, ...]) -> dict:
    """Return a batch of documents with sentences of the given lengths, padded on the left."""
    rows = []
    for lengths in documents:
        row: list[int] = []
        for n in lengths:
            row += [*torch.randint(5, 45, (n,)).tolist(), SEPARATOR]
        rows.append(torch.tensor([*row[:-1], EOS]))
    width = max(map(len, rows))
    source = torch.stack([torch.nn.functional.pad(row, (width - len(row), 0), value=PAD) for row in rows])
    lengths = source.ne(PAD).sum(1)
    # numbers as fairseq's datasets give them: not those of the rows
    return {"id": torch.arange(len(rows)) + 90, "net_input": {"src_tokens": source, "src_lengths": lengths}}


def lines_of(hypothesis: dict) -> list[list[int]]:
    tokens = hypothesis["tokens"].tolist()
    assert tokens[-1] == EOS and EOS not in tokens[:-1] and PAD not in tokens
    return split(tokens[:-1], SEPARATOR)


def generator(models, words, strategy=None, **options) -> AlignedGenerator:
    alignment = Alignment((SEPARATOR, SEPARATOR), A, B, 0)
    return AlignedGenerator(models, words, alignment=alignment, search_strategy=strategy, **options)


STRATEGIES = {
    "beam": (lambda d: search.BeamSearch(d), 5),
    "greedy": (lambda d: search.BeamSearch(d), 1),
    "sampling": (lambda d: search.Sampling(d), 3),
    "top-k": (lambda d: search.Sampling(d, sampling_topk=3), 2),
    "top-p": (lambda d: search.Sampling(d, sampling_topp=0.7), 2),
    "diverse": (lambda d: search.DiverseBeamSearch(d, 2, 0.5), 4),
    "siblings": (lambda d: search.DiverseSiblingsSearch(d, 0.5), 4),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("ensemble", [1, 2])
def test_every_strategy_gives_a_line_for_a_line(model, words, strategy, ensemble):
    build, beam = STRATEGIES[strategy]
    found = generator([model] * ensemble, words, build(words), beam_size=beam).generate([], batch(*SENTENCES))
    assert len(found) == len(SENTENCES)
    for hypotheses, lengths in zip(found, SENTENCES):
        assert hypotheses
        for hypothesis in hypotheses:
            lines = lines_of(hypothesis)
            assert len(lines) == len(lengths)
            for line, n in zip(lines, lengths):
                assert 1 <= len(line) <= math.floor(A * n + B)
            assert math.isfinite(hypothesis["score"])


class Recounting(search.BeamSearch):
    """The definition: counts again in every step, in Python."""

    def __init__(self, dictionary, documents):
        super().__init__(dictionary)
        self.documents = documents

    def step(self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None, candidate_multiple=2):
        beam = lprobs.size(1)
        for i, item in enumerate(original_batch_idxs.tolist()):
            lengths = self.documents[item - 90]
            for j in range(beam):
                lines = split(prev_output_tokens[i * beam + j, 1:].tolist(), SEPARATOR)
                n, last = len(lines[-1]), len(lines) >= len(lengths)
                allowed = torch.ones(lprobs.size(2), dtype=torch.bool)
                allowed[SEPARATOR], allowed[EOS] = n > 0 and not last, n > 0 and last
                if n >= math.floor(A * lengths[len(lines) - 1] + B):
                    allowed[:] = False
                    allowed[EOS if last else SEPARATOR] = True
                lprobs[i, j].masked_fill_(~allowed, -math.inf)
        return super().step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)


@pytest.mark.parametrize("beam", [1, 4])
def test_counting_with_the_beam_is_counting_anew(model, words, beam):
    """Also while documents of the batch finish at different steps, and hypotheses change their places."""
    sample = batch(*SENTENCES)
    aligned = generator([model], words, beam_size=beam).generate([], sample)
    definition = SequenceGenerator(
        [model], words, beam_size=beam, max_len_b=100, search_strategy=Recounting(words, SENTENCES)
    ).generate([], sample)
    for mine, other in zip(aligned, definition):
        assert [h["tokens"].tolist() for h in mine] == [h["tokens"].tolist() for h in other]
        assert [float(h["score"]) for h in mine] == pytest.approx([float(h["score"]) for h in other])


def test_documents_of_a_batch_do_not_see_each_other(model, words):
    sample = batch(*SENTENCES)
    together = generator([model], words, beam_size=3).generate([], sample)
    for i in range(len(SENTENCES)):
        length = int(sample["net_input"]["src_lengths"][i])
        source = sample["net_input"]["src_tokens"][i : i + 1, -length:]
        alone = generator([model], words, beam_size=3).generate(
            [], {"net_input": {"src_tokens": source, "src_lengths": torch.tensor([length])}}
        )[0]
        assert alone[0]["tokens"].tolist() == together[i][0]["tokens"].tolist()


def test_a_prefix_takes_precedence(model, words):
    sample = batch((3, 3), (2, 2))
    # longer than a line may be, and a line without a word
    prefix = torch.tensor([[9] * 20, [SEPARATOR, 11] + [PAD] * 18])
    found = generator([model], words, beam_size=3).generate([], sample, prefix_tokens=prefix)
    first, second = lines_of(found[0][0]), lines_of(found[1][0])
    assert first[0] == [9] * 20 and len(first) == 2 and len(first[1]) >= 1
    assert second[0] == [] and second[1][0] == 11 and len(second) == 2
    whole = torch.tensor([[9, SEPARATOR, 10, EOS], [9, SEPARATOR, 10, EOS]])
    found = generator([model], words, beam_size=3).generate([], sample, prefix_tokens=whole)
    assert [h[0]["tokens"].tolist() for h in found] == whole.tolist()


def test_lines_are_kept_where_there_is_hardly_room(model, words):
    """The user's maximum length counts; too short for a word per line is a mistake."""
    sample = batch((3,) * 6)
    tight = generator([model], words, beam_size=3, own_length=True, max_len_b=11)
    assert [len(line) for line in lines_of(tight.generate([], sample)[0][0])] == [1] * 6
    for room in (12, 14, 17):
        found = generator([model], words, beam_size=3, own_length=True, max_len_b=room).generate([], sample)
        assert len(lines_of(found[0][0])) == 6 and len(found[0][0]["tokens"]) <= room + 1
    with pytest.raises(InputError, match="6 lines cannot be translated line by line in at most 10 tokens"):
        generator([model], words, beam_size=3, own_length=True, max_len_b=10).generate([], sample)
    # rules that would forbid an end do not apply where it has to be
    for option in ({"min_len": 100}, {"no_repeat_ngram_size": 1}):
        found = generator([model], words, beam_size=2, **option).generate([], sample)
        assert len(lines_of(found[0][0])) == 6


def test_a_step_takes_the_same_operations_at_every_length(words, monkeypatch):
    """No work grows with the document: the strategy looks at none of the tokens so far."""
    strategy = ProcessedSearch(words, search.BeamSearch(words))
    limits = SentenceLimits(torch.tensor([3]), torch.tensor([[4, 4, 4]]))
    strategy.begin([LineAlignment(limits, SEPARATOR, EOS, PAD, 20)], 1, 2, torch.device("cpu"))
    scores = torch.randn(1, 2, len(words)).log_softmax(-1)
    unread = SimpleNamespace()  # any use of it fails
    strategy.step(0, scores, torch.zeros(1, 2, 0), unread, unread)


def test_limits_follow_each_line():
    source = torch.tensor([[PAD, 7, 8, SEPARATOR, 9, EOS], [7, SEPARATOR, 8, SEPARATOR, 9, EOS]])
    limits = SentenceLimits.of(source, SEPARATOR, (PAD, EOS), 1.5, 2)
    assert limits.sentences.tolist() == [2, 3] and limits.longest.tolist() == [[5, 3, 0], [3, 3, 3]]
    assert limits.total() == 11


@pytest.mark.parametrize(
    "tokens, expected",
    [
        ([7] * 4, True),
        ([7] * 3, False),
        ([5, 6] * 4, True),
        ([5, 6] * 3 + [5], False),
        ([9, *[5, 6, 7] * 4, 9], True),
        (list(range(5, 14)) * 4, False),  # a block of nine tokens
        ([5, 6, 5, 7, 5, 8, 5, 9], False),
        ([], False),
    ],
)
def test_loops(tokens, expected):
    assert loops(tokens) is expected


def test_lines_that_went_wrong_are_recognised():
    fine, loop = [5, 6, 7], [8] * 4
    assert flawed([fine] * 3, [fine, loop, fine], [9, 9, 9]) == [1]
    assert flawed([fine, loop, fine], [fine, loop, fine], [9, 9, 9]) == []  # the source also repeats itself
    assert flawed([fine] * 2, [fine, fine], [9, 3]) == [1]  # at its limit


def test_lines_that_went_wrong_are_reported(model, words):
    """This model's lines all reach their limits."""
    found = generator([model], words, beam_size=2).generate([], batch(*SENTENCES))
    for hypotheses, lengths in zip(found, SENTENCES):
        lines = lines_of(hypotheses[0])
        assert hypotheses[0]["flawed"] == [
            i for i, n in enumerate(lengths) if len(lines[i]) == math.floor(A * n + B) or loops(lines[i])
        ]


def test_single_lines_may_be_kept_from_repeating_themselves(model, words):
    def repeated(block: bool) -> int:
        found = generator([model], words, beam_size=2).generate([], batch((30,), (25,), (20,)) | {"block": block})
        rows = [h["tokens"].tolist() for hypotheses in found for h in hypotheses]
        trigrams = [[tuple(row[i : i + 3]) for i in range(len(row) - 2)] for row in rows]
        return sum(len(its) - len({*its}) for its in trigrams)

    assert repeated(False) > 10 and repeated(True) == 0


class Hasty(search.BeamSearch):
    """A search that ends whatever can be ended."""

    def step(self, step, lprobs, scores, prev_output_tokens=None, original_batch_idxs=None, candidate_multiple=2):
        lprobs[..., [SEPARATOR, EOS]] += 50.0
        return super().step(step, lprobs, scores, prev_output_tokens, original_batch_idxs)


def test_no_line_is_without_a_word(model, words):
    found = generator([model], words, Hasty(words), beam_size=3).generate([], batch(*SENTENCES))
    for hypotheses, lengths in zip(found, SENTENCES):
        assert [len(line) for line in lines_of(hypotheses[0])] == [1] * len(lengths)


def test_a_search_ends_where_only_one_hypothesis_is_left(model, words):
    """After a prefix there is one, and here it is at its limit: it ends, and nothing can take its place."""
    prefix = torch.tensor([[9, 10, 11, 12, 13, 14]])
    found = generator([model], words, beam_size=3).generate([], batch((3,)), prefix_tokens=prefix)
    assert found[0][0]["tokens"].tolist() == [9, 10, 11, 12, 13, 14, EOS]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_line_repeats_three_tokens_and_each_hypothesis_has_its_own_words(dtype):
    def excluded(*rows: list[int]) -> list[list[int]]:
        lprobs = torch.zeros(len(rows), 1, 12, dtype=dtype)
        tokens = torch.tensor([[EOS, *row] for row in rows])
        NoRepetition().step(Scores(tokens.size(1) - 1, lprobs, tokens))
        return [(row[0] < -1).nonzero()[:, 0].tolist() for row in lprobs]

    assert excluded([7, 8, 9, 7, 8], [7, 8, 9, 8, 7]) == [[9], []]
    assert excluded([7, 8, 9, 7, 8, 10, 7, 8]) == [[9, 10]]
    assert excluded([7]) == excluded([7, 7]) == [[]] and excluded([7, 7, 7]) == [[7]]
