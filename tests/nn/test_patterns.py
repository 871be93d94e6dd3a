"""Attention patterns: adaptive sparsity (eq 7) by hand-computed steps, and which keys each pattern keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection

import pytest
import torch
from helpers import assert_beams_decode_alike, assert_steps_are_a_full_pass, tokens

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.nn.patterns import PatternOptions, build_pattern
from fairseq_lasformer.nn.patterns.learned import Selector, SparsityRule
from fairseq_lasformer.nn.selection import MaskSelection
from fairseq_lasformer.ops import KAPPA_ONE, AttentionMask

Definition = Callable[[int, int], Collection[int]]
RULE = SparsityRule(threshold=0.95, step=0.001, minimum=0.01, freeze_above=0.5)


@pytest.mark.parametrize(
    "kappa, mass, expected",
    [
        (1.0, 0.99, 0.999),  # enough mass: fewer keys
        (1.0, 0.95, 1.0),  # not above the threshold, and no growth above 0.5
        (0.501, 0.2, 0.501),
        (0.5, 0.2, 0.501),  # at 0.5 it may still grow
        (0.3, 0.9, 0.301),
        (0.3, 0.951, 0.299),
        (0.0105, 0.99, 0.01),  # never below the minimum
    ],
)
def test_kappa_steps_by_hand(kappa, mass, expected):
    assert RULE.next(round(kappa * KAPPA_ONE), mass) == round(expected * KAPPA_ONE)


def test_kappa_comes_down_and_turns_where_the_mass_does():
    kappa, seen = KAPPA_ONE, []
    for _ in range(1200):
        kappa = RULE.next(kappa, 0.96 if kappa > 0.2 * KAPPA_ONE else 0.9)
        seen.append(kappa)
    assert seen[:3] == [999_000, 998_000, 997_000]
    assert {k for k in seen[900:]} == {200_000, 201_000}


def test_kappa_survives_half_precision_and_copies():
    selector = Selector(8, 8, 4, RULE)
    selector.kappa.fill_(123_457)
    for other in (copy.deepcopy(selector).half(), copy.deepcopy(selector).bfloat16()):
        assert int(other.kappa) == 123_457 and other.kappa.dtype == torch.int64
    fresh = Selector(8, 8, 4, RULE)
    fresh.load_state_dict(selector.state_dict())
    assert fresh.share == 0.123457


def nearest(size: int) -> Definition:
    """The ``size`` keys nearest to the query, earlier ones first."""
    return lambda p, n: sorted(range(n), key=lambda j: (abs(j - p), j))[:size]


# What is asked for, and by definition which of n allowed keys the query at position p among them keeps.
CASES: list[tuple[str, Definition]] = [
    ("full", lambda p, n: range(n)),
    *((f"window:{size}", nearest(size)) for size in (1, 4, 5, 20)),
]


@pytest.mark.parametrize(("spec", "definition"), CASES, ids=[spec for spec, _ in CASES])
@pytest.mark.parametrize("padding", ["left", "right", None])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_a_full_pass_keeps_the_keys_of_the_definition(spec, definition, padding, kind):
    key_padding = torch.zeros(2, 13, dtype=torch.bool)
    key_padding[1, slice(0, 4) if padding == "left" else slice(9, 13)] = padding is not None
    keys = torch.zeros(2, 13, 8)
    queries = torch.zeros(2, 17, 8) if kind == "cross" else keys
    mask = AttentionMask(key_padding if padding else None, kind == "causal")
    selection = build_pattern(spec, PatternOptions(8, 8, 4, RULE))(queries, keys, mask)
    allowed = mask.full(2, queries.size(1), 13, keys.device)
    keep_mask = selection.keep_mask if isinstance(selection, MaskSelection) else allowed
    for b in range(2):
        for i in range(queries.size(1)):
            if kind != "cross" and key_padding[b, i]:
                continue  # padding asks nothing
            seen = allowed[b, i].nonzero()[:, 0].tolist()
            position = i if kind == "cross" else int((~key_padding[b, :i]).sum())
            expected = sorted(seen[j] for j in definition(position, len(seen)))
            assert keep_mask[b, i].nonzero()[:, 0].tolist() == expected, (b, i)


@pytest.mark.parametrize("spec", ["learned", *(spec for spec, _ in CASES)])
def test_decoding_steps_keep_what_a_full_pass_keeps(build, spec):
    model = build(0.3, select_pattern=spec).eval()
    for i, (_, selector) in enumerate(model.selectors()):  # each layer keeps a share of its own
        selector.kappa.fill_(200_000 + 100_000 * i)
    for padding in ({"pad_left": (0, 6)}, {"pad_right": (0, 6)}):
        assert_steps_are_a_full_pass(model, tokens(2, 15, **padding), tokens(2, 25))


@pytest.mark.parametrize("spec", ["learned", *(spec for spec, _ in CASES)])
@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("longest", [5, 40])
def test_beams_keep_what_a_full_pass_keeps(build, spec, backend, longest):
    """Of a kept-key list the reference reads the indices, kernels the counts: both must be right."""
    models = [build(0.3, name, select_pattern=spec).eval() for name in (backend, "reference")]
    assert_beams_decode_alike(*models, longest)


@pytest.mark.parametrize(("spec", "definition"), CASES, ids=[spec for spec, _ in CASES])
def test_the_cost_is_the_mean_share_of_the_definition(spec, definition):
    for length in (1, 7, 100):
        kept = sum(len(definition(p, length)) for p in range(length)) / length**2
        assert build_pattern(spec, PatternOptions(8, 8, 4, RULE)).cost(length).kept == pytest.approx(kept)


@pytest.mark.parametrize("spec", ["learned", *(spec for spec, _ in CASES)])
def test_the_cost_is_a_share_of_the_keys(spec):
    pattern = build_pattern(spec, PatternOptions(8, 8, 4, RULE))
    for length in (1, 7, 100, 4096):
        cost = pattern.cost(length)
        assert 0 < cost.kept <= 1 and cost.scores >= 0 and cost.projections >= 0
    assert pattern.supervised == pattern.adaptive == (spec == "learned")


@pytest.mark.parametrize("spec", ["nonsense", "window", "window:0", "window:x", "full:3", "learned:3"])
def test_patterns_that_make_no_sense_are_refused_in_one_line(build, spec):
    with pytest.raises(InputError, match=f"--select-pattern {spec}: "):
        build(select_pattern=spec)


def test_both_ways_to_ask_for_a_window_are_one(build):
    one, other = build(select_window=7), build(select_pattern="window:7")
    src, prev = tokens(2, 30), tokens(2, 20)
    assert torch.equal(one(src, None, prev)[0], other(src, None, prev)[0])
    with pytest.raises(InputError, match="--select-window 7 and --select-pattern window:8: choose one"):
        build(select_window=7, select_pattern="window:8")
