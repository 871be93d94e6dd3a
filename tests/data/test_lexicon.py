"""The lexicon of word translations, against Model 1 word by word."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest

from fairseq_lasformer.data import lexicon as module
from fairseq_lasformer.data.lexicon import MINIMUM, ROUNDS, lexicon, line_pairs

WORDS = (40, 50)


def lines_of(n: int, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return lines in which s + 5 translates word s, in a different order, with words that occur everywhere."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(n):
        source = draw.integers(4, 40, draw.integers(1, 8)).astype(np.uint16)
        target = draw.permutation(np.concatenate([source + 5, draw.integers(4, 7, draw.integers(0, 3))]))
        found.append((source, target.astype(np.uint16)))
    return [*found, (np.array([7], np.uint16), np.array([], np.uint16)), (np.array([], np.uint16), np.array([12]))]


def model_1(lines: list[tuple[np.ndarray, np.ndarray]]) -> dict[int, dict[int, float]]:
    """Return P(t | s) as the paper defines it, one pair of words at a time; the empty word is -1."""
    p: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(ROUNDS):
        counts: Counter[tuple[int, int]] = Counter()
        for source, target in lines:
            for t in target.tolist():
                those = [*source.tolist(), -1]
                total = sum(p[s, t] for s in those)
                for s in those:
                    counts[s, t] += p[s, t] / total
        sums: Counter[int] = Counter()
        for (s, _), count in counts.items():
            sums[s] += count
        p = defaultdict(float, {pair: count / sums[pair[0]] for pair, count in counts.items()})
    found: dict[int, dict[int, float]] = defaultdict(dict)
    for (s, t), probability in p.items():
        if s >= 0 and probability >= MINIMUM:
            found[s][t] = probability
    return found


@pytest.mark.parametrize("at_a_time", [1, 97, 10**6])
def test_translations_are_those_of_model_1(monkeypatch, at_a_time):
    monkeypatch.setattr(module, "_AT_A_TIME", at_a_time)
    lines = lines_of(60)
    expected, found = model_1(lines), lexicon(lines, WORDS, 50)
    for s in range(WORDS[0]):
        words = found.words[found.starts[s] : found.starts[s + 1]].tolist()
        close = {t for t, p in expected[s].items() if p > 1.01 * MINIMUM}
        assert close <= set(words) <= set(expected[s])
        likely = [expected[s][t] for t in words]
        assert all(a >= b * (1 - 1e-5) for a, b in zip(likely, likely[1:]))
    assert (found.read, found.lines) == (62, 62)


def test_the_best_translation_is_found_and_only_so_many_are_kept():
    found = lexicon(lines_of(800), WORDS, 3)
    assert found.starts[-1] == found.words.size and (np.diff(found.starts) <= 3).all()
    assert [found.words[found.starts[s]] for s in range(4, 40)] == list(range(9, 45))
    assert found.starts[4] == 0  # words that do not occur have none


def test_of_too_many_lines_every_nth_is_read(monkeypatch):
    lines = lines_of(200)
    monkeypatch.setattr(module, "MOST", sum((s.size + 1) * t.size for s, t in lines) // 4 + 1)
    found, of_those = lexicon(lines, WORDS, 5), lexicon(lines[::4], WORDS, 5)
    assert (found.read, found.lines) == (51, 202) and np.array_equal(found.words, of_those.words)


def test_nothing_to_learn_from_gives_nothing():
    found = lexicon([], WORDS, 5)
    assert found.words.size == 0 and found.starts.tolist() == [0] * 41


def test_lines_correspond_where_there_are_as_many():
    source, target = np.array([5, 9, 6, 7, 2]), np.array([8, 4, 4, 2])
    pairs = line_pairs(source, np.array([8, 4, 5, 2]), (9, 4))
    assert [(s.tolist(), t.tolist()) for s, t in pairs] == [([5], [8]), ([6, 7], [5])]
    assert line_pairs(source, target, (9, 4)) == []
    assert [(s.tolist(), t.tolist()) for s, t in line_pairs(source, target, (None, None))] == [
        ([5, 9, 6, 7], [8, 4, 4])
    ]
