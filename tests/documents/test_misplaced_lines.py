"""Misaligned lines: detected, and retranslated with less context."""

from __future__ import annotations

import math

import pytest
import torch

from fairseq_lasformer.documents import placing
from fairseq_lasformer.documents.misplaced_lines import AROUND, SHARE, Checked, all_misplaced, first_misplaced
from fairseq_lasformer.documents.source import Line, Source, rest_of, runs
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.text.documents import Span


def exact(pairs):
    """Return a model that knows every line: line 100 + n translates line n."""
    return [-0.1 if int(target[0]) == int(source[0]) + 100 else -6.0 for source, target in pairs]


def document(n: int, *lines: int):
    """Return n source lines, and the lines of a translation, by default the right ones."""
    source = [torch.tensor([i]) for i in range(n)]
    return source, [torch.tensor([100 + i]) for i in (lines or range(n))]


def looked_at(sources, lines, scores, starts=None):
    return first_misplaced(list(map(Checked, sources, lines, scores)), starts or [0] * len(sources), exact)


def test_a_lost_line_is_found_where_the_model_was_unsure():
    fine, shifted = document(30), document(30, *range(12), 77, *range(14, 30), 29)
    scores = [[-0.1] * 30, [-0.1] * 30]
    scores[1][12] = -0.5
    # 12 was left out and line 12 made up; from line 13 on, each is paired with the source line before its own
    assert looked_at([fine[0], shifted[0]], [fine[1], shifted[1]], scores) == [None, 12]
    # detected only much later: traced back to where it began
    scores = [[-0.1] * 30]
    scores[0][25] = -0.5
    assert looked_at([shifted[0]], [shifted[1]], scores) == [12]
    assert looked_at([shifted[0]], [shifted[1]], scores, starts=[20]) == [20]  # settled lines are not examined


def test_a_line_that_fits_nowhere_is_not_out_of_place():
    odd = document(20, *range(10), 99, *range(11, 20))
    scores = [[-0.1] * 20]
    scores[0][10] = -2.0
    assert looked_at([odd[0]], [odd[1]], scores) == [None]


def test_few_lines_are_looked_at():
    source, lines = document(200)
    seen = []

    def counting(pairs):
        seen.extend(pairs)
        return exact(pairs)

    torch.manual_seed(0)
    first_misplaced([Checked(source, lines, (-torch.rand(200) / 2).tolist())], [0], counting)
    assert 0 < len(seen) <= math.ceil(SHARE * 200) * len(AROUND)


@pytest.mark.parametrize(
    "place, context, expected",
    [
        (4, 3, [Span(0, 4, 6, 3), Span(0, 10, 5, 2)]),
        (4, 10, [Span(0, 4, 6, 4), Span(0, 10, 5, 2)]),
        (11, 0, [Span(0, 11, 4, 0)]),
        (11, 10, [Span(0, 11, 4, 3)]),  # no more than the part and its own context contained
        (10, 10, [Span(0, 10, 5, 2)]),
    ],
)
def test_what_is_left_of_the_parts(place, context, expected):
    assert rest_of([Span(0, 0, 10), Span(0, 10, 5, 2)], place, context) == expected


class Losing(Translator):
    """Translator that loses its place at line 12 if it began before line 10, or always, and recovers with less context.

    A hopeless one also loses it at line 20, even alone.
    """

    places_lines, by_lines = True, False
    tags = None, None

    def __init__(self, hopeless: bool = False, begin: int = 10) -> None:
        self.hopeless, self.begin = hopeless, begin
        self.tries: list[tuple[int, int]] = []

    def translate_in_order(self, documents, parts, found, device, done=None):
        for i, document in enumerate(documents):
            for part in parts[i]:
                first = part.start - part.context
                self.tries.append((part.start, part.context))
                for j in range(part.start, part.start + part.size):
                    lost = (first < self.begin and j >= 12) or (self.hopeless and first <= 20 == j)
                    known = int(document.sentences[min(j + lost, len(document.sentences) - 1)][0])
                    unsure = j in (12, 20) and lost
                    found[i].append(Line(torch.tensor([100 + known]), -0.5 if unsure else -0.1, False, False))

    def translate_parts(self, tasks, device, observe=()):
        found = [list(before) for _, _, before in tasks]
        self.translate_in_order([document for document, _, _ in tasks], [[part] for _, part, _ in tasks], found, device)
        return [lines[part.start :] for lines, (_, part, _) in zip(found, tasks)]


def place(translator, monkeypatch, given=None):
    def scores(model, dictionary, examples, *_):
        return [torch.tensor([s]) for s in exact(examples)]

    monkeypatch.setattr(placing, "log_probabilities", scores)
    translator.models, translator.eos = [None], (2, 2)
    translator.task = type("Task", (), {"target_dictionary": None})
    source = Source(document(30)[0], [Span(0, 0, 30)], given=given)
    return translator.translate([source], "cpu")[0]


def test_lines_are_translated_again_from_where_the_place_was_lost(monkeypatch):
    translator = Losing(begin=2)
    lines = place(translator, monkeypatch)
    assert [int(line.tokens[0]) for line in lines] == list(range(100, 130))
    assert translator.tries == [(0, 0), (12, 3), (22, 3)]  # ten lines at a time, while the next ones do not fit
    assert [line.repaired for line in lines] == [False] * 12 + [True] * 17 + [False]
    assert not any(line.flawed for line in lines)


def test_lines_that_some_context_misleads_are_translated_alone(monkeypatch):
    translator = Losing()
    lines = place(translator, monkeypatch)
    assert [int(line.tokens[0]) for line in lines] == list(range(100, 130))
    assert translator.tries[:2] == [(0, 0), (12, 3)]
    assert sorted(translator.tries[2:]) == [(line, 0) for line in range(12, 29)]
    assert [line.repaired for line in lines] == [False] * 12 + [True] * 17 + [False]


def test_what_cannot_be_placed_is_reported(monkeypatch):
    translator = Losing(hopeless=True)
    lines = place(translator, monkeypatch)
    assert [int(line.tokens[0]) for line in lines] == [*range(100, 120), 121, *range(121, 130)]
    assert [i for i, line in enumerate(lines) if line.flawed] == [20]


def given_at(line: int, token: int):
    return [torch.tensor([token]) if i == line else None for i in range(30)]


def test_given_lines_stay_where_they_are(monkeypatch):
    translator = Losing()
    lines = place(translator, monkeypatch, given_at(13, 114))
    assert [int(line.tokens[0]) for line in lines] == [*range(100, 113), 114, *range(114, 130)]
    assert 13 not in [start for start, _ in translator.tries] and not lines[13].flawed


def test_given_lines_stay_in_the_context(monkeypatch):
    translator = Losing()
    place(translator, monkeypatch, given_at(13, 113))
    after = [(start, context) for start, context in translator.tries if start > 13]
    assert after and all(start - context <= 13 for start, context in after)


def test_a_given_line_is_never_out_of_place():
    odd = document(20, *range(10), 110 - 99, *range(11, 20))
    checked = Checked(*odd, [*[-0.1] * 10, -2.0, *[-0.1] * 9])
    assert first_misplaced([checked], [0], exact) == [10] and list(all_misplaced([checked], [0], exact)) == [(0, 10)]
    given = checked._replace(given=[10])
    assert first_misplaced([given], [0], exact) == [None] and not all_misplaced([given], [0], exact)


def test_runs_of_lines():
    assert runs([1, 3, 6, 10, 11, 20], 3) == [(1, 6), (10, 11), (20, 20)]
    assert runs([], 3) == []
