"""Attention patterns: the keys that each keeps, in passes and steps, and their cost."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from definitions import OF_LINES, RULE, Definition, bigbird, fixed_heads, nearest, segments, strided_heads
from helpers import assert_beams_decode_alike, assert_steps_are_a_full_pass, recipe, skip_unless_here, tokens
from tiers import thinned

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn import others
from fairseq_lasformer.nn.forms import BitmaskSelection, MaskSelection, SlotSelection
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns import PATTERNS, PatternOptions, build_pattern
from fairseq_lasformer.ops import AttentionMask, KeptKeys, bitmask_of, cpu, mask_of


def example() -> str:
    """Return the pattern that the recipe shows."""
    return recipe("nn/others/strided.py")


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
    """Patterns written by a recipe, in files of the package of others."""
    folder = tmp_path_factory.mktemp("contributed")
    for name, text in (("strided", example()), ("dilated", DILATED), ("scattered", SCATTERED)):
        (folder / f"{name}.py").write_text(text)
    before = dict(PATTERNS)
    others.__path__.append(str(folder))
    for name in ("strided", "dilated", "scattered"):
        importlib.import_module(f"{others.__name__}.{name}")
    yield
    others.__path__.remove(str(folder))
    for name in PATTERNS.keys() - before.keys():
        del PATTERNS[name], sys.modules[f"{others.__name__}.{name}"]


def dilated(p: int, n: int, size: int, apart: int) -> list[int]:
    return [j for j in range(p - size // 2 * apart, p + (size + 1) // 2 * apart, apart) if 0 <= j < n]


def scattered(p: int, n: int) -> set[int]:
    return {j for j in (n - 1, 0, p - 2, 3, p) if 0 <= j < n}


BLOCKS = ((1, 1), (4, 1), (5, 3), (50, 2))
SHARES = ((1, 1, 1), (4, 2, 3), (30, 20, 1))


# A pattern, and by definition which of n allowed keys the query at position p among them keeps.
CASES: list[tuple[str, Definition]] = [
    ("full", lambda p, n: range(n)),
    *((f"window:{size}", nearest(size)) for size in (1, 4, 5, 20)),
    *((f"strided:{n}", lambda p, k, n=n: [j for j in range(k) if (p - j) % n == 0]) for n in (1, 3, 50)),
    *((f"dilated:{a},{b}", lambda p, k, a=a, b=b: dilated(p, k, a, b)) for a, b in ((1, 1), (3, 2), (60, 3))),
    ("scattered", scattered),
    *((f"sparse_strided:stride={n}", lambda p, k, n=n: strided_heads(p, k, n)) for n in (1, 4, 50)),
    *((f"sparse_fixed:stride={n},summary={c}", lambda p, k, n=n, c=c: fixed_heads(p, k, n, c)) for n, c in BLOCKS),
    *((f"transformer_xl:segment={n}", lambda p, k, n=n: segments(p, k, n)) for n in (1, 4, 50)),
    *((f"bigbird:window={w},global={g},random={r}", lambda p, k, n=(w, g, r): bigbird(p, k, *n)) for w, g, r in SHARES),
]
EVERY = [
    "learned",
    "reformer:buckets=4",
    *(spec for spec, _ in CASES),
    *OF_LINES,
]
# other arguments change which keys are kept, which the tests above and below compare, and nothing of how beams are held
ONE_EACH = list({spec.partition(":")[0]: spec for spec in reversed(EVERY)}.values())[::-1]


@pytest.mark.parametrize(("spec", "definition"), CASES, ids=[spec for spec, _ in CASES])
@pytest.mark.parametrize("padding", ["left", "right", None])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_a_full_pass_keeps_the_keys_of_the_definition(spec, definition, padding, kind):
    key_padding = torch.zeros(2, 13, dtype=torch.bool)
    key_padding[1, slice(0, 4) if padding == "left" else slice(9, 13)] = padding is not None
    keys = torch.zeros(2, 13, 8)
    queries = torch.zeros(2, 17, 8) if kind == "cross" else keys
    mask = AttentionMask(key_padding if padding else None, kind == "causal")
    selection = build_pattern(spec, PatternOptions(8, 8, 4, RULE))(Pass(queries, keys, mask))
    allowed = mask.full(2, queries.size(1), 13, keys.device)
    keep_mask = selection.keep_mask if isinstance(selection, MaskSelection) else allowed
    for b in range(2):
        for i in range(queries.size(1)):
            if kind != "cross" and key_padding[b, i]:
                continue  # padding has no queries
            seen = allowed[b, i].nonzero()[:, 0].tolist()
            position = i if kind == "cross" else int((~key_padding[b, :i]).sum())
            expected = sorted(seen[j] for j in definition(position, len(seen)))
            assert keep_mask[b, i].nonzero()[:, 0].tolist() == expected, (b, i)


@pytest.mark.parametrize("spec", thinned(EVERY, *ONE_EACH))
def test_decoding_steps_keep_what_a_full_pass_keeps(build, spec):
    model = build(0.3, select_pattern=spec).eval()
    for i, (_, selector) in enumerate(model.selectors()):  # each layer keeps its own share
        selector.kappa.fill_(200_000 + 100_000 * i)
    for padding in ({"pad_left": (0, 6)}, {"pad_right": (0, 6)}):
        assert_steps_are_a_full_pass(model, tokens(2, 15, **padding), tokens(2, 25))


@pytest.mark.parametrize("spec", ONE_EACH)  # the steps above run all arguments
@pytest.mark.parametrize("backend", thinned(["reference", "auto"], "auto"))
@pytest.mark.parametrize("longest", thinned([5, 40], 40))
def test_beams_keep_what_a_full_pass_keeps(build, spec, backend, longest):
    """The reference reads the indices of a kept-key list, kernels the counts: both must be right."""
    models = [build(0.3, name, select_pattern=spec).eval() for name in (backend, "reference")]
    assert_beams_decode_alike(*models, longest)


@pytest.mark.parametrize(("spec", "definition"), CASES, ids=[spec for spec, _ in CASES])
def test_the_cost_is_the_mean_share_of_the_definition(spec, definition):
    for length in (1, 7, 100):
        kept = sum(len(definition(p, length)) for p in range(length)) / length**2
        assert build_pattern(spec, PatternOptions(8, 8, 4, RULE)).cost(length).kept == pytest.approx(kept)


@pytest.mark.parametrize("spec", thinned(EVERY, *ONE_EACH))
def test_the_cost_is_a_share_of_the_keys(spec):
    pattern = build_pattern(spec, PatternOptions(8, 8, 4, RULE))
    for length in (1, 7, 100, 4096):
        cost = pattern.cost(length)
        assert 0 < cost.kept <= 1 and cost.scores >= 0 and cost.projections >= 0
    assert pattern.supervised == pattern.adaptive == spec.startswith("learned")


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
    """Values and gradients are the definition's; with dropout, there is no mask either."""
    if cpu.kernels() is None:
        pytest.skip("no CPU kernels")
    pattern, definition = (build_pattern(spec, PatternOptions(8, 8, 4, RULE, backend=b)) for b in ("auto", "reference"))
    key_padding = torch.zeros(2, 300, dtype=torch.bool)
    key_padding[1, slice(0, 40) if padding == "left" else slice(260, 300)] = padding is not None
    states = torch.zeros(2, 300, 8)
    for causal in (False, True):
        mask = AttentionMask(key_padding if padding else None, causal)
        some, exact = pattern(Pass(states, states, mask)), definition(Pass(states, states, mask))
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
    some, exact = pattern(Pass(states, states, mask)), definition(Pass(states, states, mask))
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
        *(
            "sparse_fixed:stride=5",
            "transformer_xl:segment=4",
            "bigbird:window=4",
            "longformer:window=4",
            "etc:window=4",
        ),
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
    *(
        "sparse_fixed:stride=2,summary=3",
        "transformer_xl",
        "transformer_xl:segment=0",
        "sparse_fixed:stride=²",
        "longformer",
        "etc:global=2",
        "bigbird:random=2",
    ),
    *("reformer:buckets=3", "reformer:rounds=2"),
]


def test_the_recipe_is_short():
    assert len(example().strip().splitlines()) <= 25 and len(DILATED.strip().splitlines()) <= 25


@pytest.mark.parametrize("spec", ["nonsense", "window", "window:0", "window:x", "full:3", "learned:3", *NO_NUMBERS])
def test_patterns_that_make_no_sense_are_refused_in_one_line(build, spec):
    with pytest.raises(InputError, match=f"--select-pattern {spec}: "):
        build(select_pattern=spec)
