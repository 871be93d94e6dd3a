"""Attention patterns: adaptive sparsity (eq 7) by hand-computed steps, and which keys each pattern keeps."""

from __future__ import annotations

import copy
import importlib
import re
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import SMALL
from helpers import assert_beams_decode_alike, assert_steps_are_a_full_pass, skip_unless_here, tokens

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.nn import patterns
from fairseq_lasformer.nn.patterns import PATTERNS, PatternOptions, build_pattern
from fairseq_lasformer.nn.patterns.learned import Selector
from fairseq_lasformer.nn.patterns.relational import LINE
from fairseq_lasformer.nn.selection import BitmaskSelection, MaskSelection, SlotSelection
from fairseq_lasformer.nn.sparsity import SparsityRule
from fairseq_lasformer.ops import KAPPA_ONE, AttentionMask, KeptKeys, bitmask_of, cpu, mask_of
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel

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


def example(page: Path = Path(__file__).parents[2] / "CONTRIBUTING.md") -> str:
    """The pattern that the recipe shows."""
    (block,) = re.findall(r"```text\n# fairseq_lasformer/nn/patterns/strided.py\n(.*?)```", page.read_text(), re.S)
    return block


# as a new contributor would write it, with nothing but the recipe
DILATED = '''
"""Keys a step apart on both sides of the query."""
import torch

from fairseq_lasformer.nn.patterns.positional import Positional


class Dilated(Positional):
    name = "dilated"
    usage = "dilated:SIZE,STEP"

    def __init__(self, size, apart):
        super().__init__()
        self.size, self.apart = size, apart

    @classmethod
    def build(cls, argument, options):
        size, _, apart = argument.partition(",")
        if not (size.isdecimal() and apart.isdecimal() and int(size) and int(apart)):
            raise ValueError("expected a number of keys and a distance, as in dilated:9,4")
        return cls(int(size), int(apart))

    def positions(self, query, n_keys, longest):
        return query[..., None] + (torch.arange(self.size, device=query.device) - self.size // 2) * self.apart
'''

SCATTERED = '''
"""In no order, some twice, some out of range."""
import torch

from fairseq_lasformer.nn.patterns.positional import Positional


class Scattered(Positional):
    name = usage = "scattered"

    @classmethod
    def build(cls, argument, options):
        return cls()

    def positions(self, query, n_keys, longest):
        both = torch.stack([n_keys - 1, query * 0, query - 2, query * 0 + 3, n_keys + 1, query * 0 - 5, query], -1)
        return both.flip(-1)
'''


@pytest.fixture(scope="module", autouse=True)
def contributed(tmp_path_factory):
    """Patterns that are written by a recipe, in files of the patterns' package."""
    folder = tmp_path_factory.mktemp("contributed")
    for name, text in (("strided", example()), ("dilated", DILATED), ("scattered", SCATTERED)):
        (folder / f"{name}.py").write_text(text)
    before = dict(PATTERNS)
    patterns.__path__.append(str(folder))
    for name in ("strided", "dilated", "scattered"):
        importlib.import_module(f"{patterns.__name__}.{name}")
    yield
    patterns.__path__.remove(str(folder))
    for name in PATTERNS.keys() - before.keys():
        del PATTERNS[name], sys.modules[f"{patterns.__name__}.{name}"]


def dilated(p: int, n: int, size: int, apart: int) -> list[int]:
    return [j for j in range(p - size // 2 * apart, p + (size + 1) // 2 * apart, apart) if 0 <= j < n]


def scattered(p: int, n: int) -> set[int]:
    return {j for j in (n - 1, 0, p - 2, 3, p) if 0 <= j < n}


def ends_at(n: int) -> list[bool]:
    """Lines of 25 tokens, as costs are counted."""
    return [j % LINE == LINE - 1 for j in range(n)]


def longformer(p: int, n: int, size: int, ends: list[bool], crossed: bool = False) -> set[int]:
    """Section 3.1 of arXiv 2004.05150: a window, and tokens that all attend to and that attend to all."""
    if not crossed and ends[p]:
        return set(range(n))
    return set(nearest(size)(p, n)) | {j for j in range(n) if ends[j]}


def etc(p: int, n: int, size: int, ends: list[bool], crossed: bool = False) -> set[int]:
    """Section 3.1 of arXiv 2004.08483: global tokens attend to each other and to their line."""
    every_end = {j for j in range(n) if ends[j]}
    if crossed or not ends[p]:
        return set(nearest(size)(p, n)) | every_end
    first = max((j + 1 for j in range(p) if ends[j]), default=0)
    return every_end | set(range(first, min(n, p + 1)))


def bigbird(p: int, n: int, size: int, of_all: int, random: int) -> set[int]:
    """A window, the first tokens both ways, and keys that a generator draws for the position."""
    if p < of_all:
        return set(range(n))
    drawn = set()
    for i in range(random):
        x = p * random + i
        for factor, shift in ((2_654_435_761, 15), (2_246_822_519, 13)):
            x = x * factor % 2**32
            x ^= x >> shift
        drawn.add(x % n)
    return set(nearest(size)(p, n)) | set(range(min(n, of_all))) | drawn


BLOCKS = ((1, 1), (4, 1), (5, 3), (50, 2))
SHARES = ((1, 1, 1), (4, 2, 3), (30, 20, 1))


def strided_heads(p: int, n: int, stride: int) -> set[int]:
    """A1 and A2 of "strided" in section 4.2 of arXiv 1904.10509, to both sides."""
    return {j for j in range(n) if abs(p - j) < stride or (p - j) % stride == 0}


def fixed_heads(p: int, n: int, stride: int, summary: int) -> set[int]:
    """A1 and A2 of "fixed" there."""
    return {j for j in range(n) if j // stride == p // stride or j % stride >= stride - summary}


# What is asked for, and by definition which of n allowed keys the query at position p among them keeps.
CASES: list[tuple[str, Definition]] = [
    ("full", lambda p, n: range(n)),
    *((f"window:{size}", nearest(size)) for size in (1, 4, 5, 20)),
    *((f"strided:{n}", lambda p, k, n=n: [j for j in range(k) if (p - j) % n == 0]) for n in (1, 3, 50)),
    *((f"dilated:{a},{b}", lambda p, k, a=a, b=b: dilated(p, k, a, b)) for a, b in ((1, 1), (3, 2), (60, 3))),
    ("scattered", scattered),
    *((f"sparse_strided:stride={n}", lambda p, k, n=n: strided_heads(p, k, n)) for n in (1, 4, 50)),
    *((f"sparse_fixed:stride={n},summary={c}", lambda p, k, n=n, c=c: fixed_heads(p, k, n, c)) for n, c in BLOCKS),
    *((f"bigbird:window={w},global={g},random={r}", lambda p, k, n=(w, g, r): bigbird(p, k, *n)) for w, g, r in SHARES),
]
OF_LINES = {
    "longformer:window=4": longformer,
    "longformer:window=30": longformer,
    "etc:window=1": etc,
    "etc:window=6": etc,
}
EVERY = ["learned", "reformer:buckets=4", *(spec for spec, _ in CASES), *OF_LINES]


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


@pytest.mark.parametrize("spec", EVERY)
def test_decoding_steps_keep_what_a_full_pass_keeps(build, spec):
    model = build(0.3, select_pattern=spec).eval()
    for i, (_, selector) in enumerate(model.selectors()):  # each layer keeps a share of its own
        selector.kappa.fill_(200_000 + 100_000 * i)
    for padding in ({"pad_left": (0, 6)}, {"pad_right": (0, 6)}):
        assert_steps_are_a_full_pass(model, tokens(2, 15, **padding), tokens(2, 25))


@pytest.mark.parametrize("spec", EVERY)
@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("longest", [5, 40])
def test_beams_keep_what_a_full_pass_keeps(build, spec, backend, longest):
    """Of a kept-key list the reference reads the indices, kernels the counts: both must be right."""
    models = [build(0.3, name, select_pattern=spec).eval() for name in (backend, "reference")]
    assert_beams_decode_alike(*models, longest)


@pytest.mark.parametrize("spec", OF_LINES)
@pytest.mark.parametrize("padding", ["left", "right", None])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_global_tokens_are_the_ends_of_lines(spec, padding, kind):
    key_padding, ends = torch.zeros(2, 13, dtype=torch.bool), torch.rand(2, 13) < 0.3
    key_padding[1, slice(0, 4) if padding == "left" else slice(9, 13)] = padding is not None
    ends &= ~key_padding
    keys = torch.zeros(2, 13, 8)
    queries = torch.zeros(2, 17, 8) if kind == "cross" else keys
    mask = AttentionMask(key_padding if padding else None, kind == "causal", ends)
    kept = build_pattern(spec, PatternOptions(8, 8, 4, RULE))(queries, keys, mask).keep_mask
    allowed, size = mask.full(2, queries.size(1), 13, keys.device), int(spec.partition("=")[2])
    for b in range(2):
        for i in range(queries.size(1)):
            if kind != "cross" and key_padding[b, i]:
                continue
            seen = allowed[b, i].nonzero()[:, 0].tolist()
            position = i if kind == "cross" else int((~key_padding[b, :i]).sum())
            its_ends = ends[b, seen].tolist()
            expected = sorted(seen[j] for j in OF_LINES[spec](position, len(seen), size, its_ends, kind == "cross"))
            assert kept[b, i].nonzero()[:, 0].tolist() == expected, (b, i)


@pytest.mark.parametrize("spec", OF_LINES)
def test_the_cost_of_lines_is_that_of_25_tokens(spec):
    size = int(spec.partition("=")[2])
    for length in (1, 7, 100):
        kept = sum(len(OF_LINES[spec](p, length, size, ends_at(length))) for p in range(length)) / length**2
        assert build_pattern(spec, PatternOptions(8, 8, 4, RULE)).cost(length).kept == pytest.approx(kept)


def test_separators_of_the_data_end_lines(small_task, build):
    """Those of the source are seen by the cross-attention, too; a pass and steps see the same."""
    task = SimpleNamespace(**vars(small_task), separator_in=lambda dictionary: 7)
    with_lines = LasformerModel.build_model(LasformerConfig(**SMALL, select_pattern="longformer:window=1"), task).eval()
    without = build(select_pattern="longformer:window=1").eval()
    without.load_state_dict(with_lines.state_dict())
    src, prev = tokens(2, 30), tokens(2, 20)
    src[:, 5::6] = prev[:, 4::5] = 7
    assert not torch.allclose(with_lines(src, None, prev)[0], without(src, None, prev)[0])
    assert_steps_are_a_full_pass(with_lines, src, prev)
    with_lines.decoder.make_generation_fast_()
    encoded = with_lines.encoder(src)
    whole = with_lines.decoder.read(prev, encoded) if with_lines.decoder.packed else None
    if whole is not None:
        torch.testing.assert_close(whole[0], with_lines.decoder(prev, encoded)[0], rtol=1e-4, atol=1e-5)


def test_one_bucket_is_dense_and_more_are_those_of_the_hash(build):
    one, dense = build(select_pattern="reformer:buckets=1").eval(), build(select_pattern="full").eval()
    dense.load_state_dict({k: v for k, v in one.state_dict().items() if "rotations" not in k})
    src, prev = tokens(2, 30, pad_left=(0, 5)), tokens(2, 20)
    torch.testing.assert_close(one(src, None, prev)[0], dense(src, None, prev)[0], rtol=1e-4, atol=1e-5)
    pattern = build_pattern("reformer:buckets=6,rounds=2", PatternOptions(8, 8, 4, RULE))
    x = torch.randn(1, 20, 8)
    kept = pattern(x, x, AttentionMask(None, False)).keep_mask[0]
    turned = [x[0] @ r for r in pattern.rotations]
    buckets = [[max(range(6), key=lambda b: float(torch.cat([t, -t], 1)[i, b])) for i in range(20)] for t in turned]
    for i in range(20):
        assert kept[i].nonzero()[:, 0].tolist() == [j for j in range(20) if any(b[i] == b[j] for b in buckets)]
    assert 0.1 < float(kept.float().mean()) < 0.9


@pytest.mark.parametrize(("spec", "definition"), CASES, ids=[spec for spec, _ in CASES])
def test_the_cost_is_the_mean_share_of_the_definition(spec, definition):
    for length in (1, 7, 100):
        kept = sum(len(definition(p, length)) for p in range(length)) / length**2
        assert build_pattern(spec, PatternOptions(8, 8, 4, RULE)).cost(length).kept == pytest.approx(kept)


@pytest.mark.parametrize("spec", EVERY)
def test_the_cost_is_a_share_of_the_keys(spec):
    pattern = build_pattern(spec, PatternOptions(8, 8, 4, RULE))
    for length in (1, 7, 100, 4096):
        cost = pattern.cost(length)
        assert 0 < cost.kept <= 1 and cost.scores >= 0 and cost.projections >= 0
    assert pattern.supervised == pattern.adaptive == (spec == "learned")


@pytest.mark.parametrize(
    "spec",
    [
        "window:20",
        "strided:8",
        "dilated:9,4",
        "scattered",
        "sparse_strided:stride=8",
        "sparse_fixed:stride=30,summary=2",
        "bigbird:window=8",
        "longformer:window=8",
    ],
)
@pytest.mark.parametrize("padding", ["left", "right", None])
def test_long_passes_read_the_kept_keys_alone(build, spec, padding):
    """As with the definition, values and gradients; also with dropout there is no mask."""
    if cpu.kernels() is None:
        pytest.skip("no CPU kernels")
    pattern, definition = (build_pattern(spec, PatternOptions(8, 8, 4, RULE, backend=b)) for b in ("auto", "reference"))
    key_padding = torch.zeros(2, 300, dtype=torch.bool)
    key_padding[1, slice(0, 40) if padding == "left" else slice(260, 300)] = padding is not None
    states = torch.zeros(2, 300, 8)
    for causal in (False, True):
        mask = AttentionMask(key_padding if padding else None, causal)
        some, exact = pattern(states, states, mask), definition(states, states, mask)
        assert isinstance(some, SlotSelection) and isinstance(exact, MaskSelection)
        assert torch.equal(some.kept()[~key_padding], exact.kept()[~key_padding])
        grads = []
        for selection in (some, exact):
            torch.manual_seed(1)
            q, k, v = (torch.randn(2, 2, 300, 8).requires_grad_() for _ in range(3))
            out = selection.attend(*(t.contiguous() for t in (q, k, v)), 0.0, "auto")
            out.transpose(1, 2)[~key_padding].square().sum().backward()
            grads.append([out.transpose(1, 2)[~key_padding].detach(), q.grad, k.grad, v.grad])
        for a, b in zip(*grads):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert some.supervise(None) is exact.supervise(None) is None


@pytest.mark.parametrize("spec", ["window:7", "scattered", "bigbird:window=4"])
def test_tiles_read_the_kept_keys_as_bits(build, spec):
    """On GPUs; here in Triton's interpreter."""
    skip_unless_here("triton")
    pattern, definition = (
        build_pattern(spec, PatternOptions(8, 8, 4, RULE, backend=b)) for b in ("triton", "reference")
    )
    states = torch.zeros(2, 40, 8)
    mask = AttentionMask(torch.arange(40).expand(2, 40) >= torch.tensor([[40], [31]]), True)
    some, exact = pattern(states, states, mask), definition(states, states, mask)
    assert isinstance(some, BitmaskSelection) and some.supervise(None) is None
    assert torch.equal(some.kept()[~mask.key_padding], exact.kept()[~mask.key_padding])
    q, k, v = torch.randn(3, 2, 2, 40, 16)
    ours, theirs = (s.attend(q, k, v, 0.0, "auto").transpose(1, 2)[~mask.key_padding] for s in (some, exact))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_bitmask_holds_the_kept_keys():
    kept = torch.rand(6, 70) < 0.4
    most = int(kept.sum(1).max())
    slots = torch.where(kept, torch.arange(70), 999).sort(1).values[:, :most]
    bits = bitmask_of(KeptKeys(slots.masked_fill(slots == 999, -1).int(), kept.sum(1).int()), 2, 70)
    assert bits.dtype == torch.int32 and bits.shape == (2, 3, 3)
    assert torch.equal(mask_of(bits, 70).flatten(0, 1), kept)


@pytest.mark.parametrize(
    "spec",
    [
        *("strided:3", "dilated:9,2", "scattered", "window:5", "full", "sparse_strided:stride=4"),
        *("sparse_fixed:stride=5", "bigbird:window=4", "longformer:window=4", "etc:window=4"),
    ],
)
@pytest.mark.parametrize("int8", [False, True])
def test_every_pattern_decodes_fast_and_in_8_bits(build, spec, int8):
    if cpu.kernels() is None:
        pytest.skip("no CPU kernels")
    plain, packed = (build(0.3, select_pattern=spec).eval() for _ in range(2))
    for part in (packed.encoder, packed.decoder):
        part.run_options = part.run_options._replace(int8=int8)
    packed.decoder.make_generation_fast_()
    assert packed.decoder.packed is not None
    src, prev, scores = tokens(2, 30), tokens(2, 25), []
    for model in (plain, packed):
        encoded, state = plain.encoder(src), {}
        steps = [model.decoder(prev[:, : i + 1], encoded, state)[0][:, -1] for i in range(25)]
        scores.append(torch.stack(steps).detach())
    close = 0.1 if int8 else 1e-4
    torch.testing.assert_close(*scores, rtol=close, atol=close)


@pytest.mark.parametrize("spec", ["strided", "strided:0", "dilated:3", "dilated:0,1"])
def test_contributed_patterns_refuse_what_makes_no_sense(build, spec):
    with pytest.raises(InputError, match=f"--select-pattern {spec}: expected"):
        build(select_pattern=spec)


NO_NUMBERS = [
    *("sparse_strided", "sparse_strided:16", "sparse_strided:stride=0", "sparse_strided:stride=x"),
    *("sparse_strided:stride=4,stride=5", "sparse_strided:width=4", "sparse_fixed:summary=2"),
    *("sparse_fixed:stride=2,summary=3", "sparse_fixed:stride=²", "longformer", "etc:global=2", "bigbird:random=2"),
    *("reformer:buckets=3", "reformer:rounds=2"),
]


def test_the_recipe_is_short():
    assert len(example().strip().splitlines()) <= 25 and len(DILATED.strip().splitlines()) <= 25


@pytest.mark.parametrize("spec", ["nonsense", "window", "window:0", "window:x", "full:3", "learned:3", *NO_NUMBERS])
def test_patterns_that_make_no_sense_are_refused_in_one_line(build, spec):
    with pytest.raises(InputError, match=f"--select-pattern {spec}: "):
        build(select_pattern=spec)


def test_both_ways_to_ask_for_a_window_are_one(build):
    one, other = build(select_window=7), build(select_pattern="window:7")
    src, prev = tokens(2, 30), tokens(2, 20)
    assert torch.equal(one(src, None, prev)[0], other(src, None, prev)[0])
    with pytest.raises(InputError, match="--select-window 7 and --select-pattern window:8: choose one"):
        build(select_window=7, select_pattern="window:8")
