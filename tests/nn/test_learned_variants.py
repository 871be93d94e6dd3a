"""A selector's keys with the query's own line, and the fewest of them with a share of the mass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from conftest import SMALL
from definitions import RULE
from helpers import assert_beams_decode_alike, assert_steps_are_a_full_pass, tokens

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns import PatternOptions, build_pattern
from fairseq_lasformer.ops import AttentionMask, Teachers
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel

N = 37
SHARES = {"learned_lines": 200_000, "learned_top_p:percent=60": 400_000}


def selector(spec: str, kind: str, backend: str = "auto"):
    torch.manual_seed(5)
    options = PatternOptions(8, 8, 4, RULE, backend=backend, same_text=kind != "cross")
    made = build_pattern(spec, options)
    made.kappa.fill_(SHARES.get(spec, 0) or SHARES["learned_lines"])
    for layer in made.scorers():
        layer.weight.data.mul_(2.0)  # some queries are more certain than others
    return made


def masks(padding: str | None, causal: bool) -> tuple[AttentionMask, torch.Tensor]:
    key_padding, ends = torch.zeros(2, N, dtype=torch.bool), torch.rand(2, N) < 0.2
    key_padding[1, slice(0, 5) if padding == "left" else slice(N - 5, N)] = padding is not None
    return AttentionMask(key_padding if padding else None, causal, ends & ~key_padding), key_padding


@pytest.mark.parametrize("padding", ["left", "right", None])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_the_own_line_is_kept_beside_the_best_keys(padding, kind):
    mask, key_padding = masks(padding, kind == "causal")
    keys = torch.randn(2, N, 8)
    queries = torch.randn(2, N + 4, 8) if kind == "cross" else keys
    kept, plain = (selector(s, kind)(Pass(queries, keys, mask, True)).kept() for s in ("learned_lines", "learned"))
    for b in range(2):
        lines, line = [], 0
        for end in mask.ends[b].tolist():
            lines.append(line)
            line += end
        for i in range(queries.size(1)):
            if kind != "cross" and key_padding[b, i]:
                continue
            own = [j for j in range(N) if kind != "cross" and lines[j] == lines[i] and not key_padding[b, j]]
            own = [j for j in own if kind != "causal" or j <= i]
            assert kept[b, i].nonzero()[:, 0].tolist() == sorted({*own, *plain[b, i].nonzero()[:, 0].tolist()}), (b, i)
    assert kind == "cross" or bool((kept & ~plain).any())


@pytest.mark.parametrize("padding", ["left", "right", None])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_top_p_keeps_the_fewest_keys_of_a_mass(padding, kind):
    mask, key_padding = masks(padding, kind == "causal")
    keys = torch.randn(2, N, 8) * torch.rand(2, N, 1)
    queries = torch.randn(2, N + 4, 8) * torch.rand(2, N + 4, 1) if kind == "cross" else keys
    pattern = selector("learned_top_p:percent=60", kind)
    kept = pattern(Pass(queries, keys, mask, True)).kept()
    allowed = mask.full(2, queries.size(1), N, keys.device)
    scores = pattern.q_proj(queries) @ pattern.k_proj(keys).transpose(1, 2) * 4**-0.5
    counts = set()
    for b in range(2):
        for i in range(queries.size(1)):
            seen = allowed[b, i].nonzero()[:, 0].tolist()
            if not seen or (kind != "cross" and key_padding[b, i]):
                continue
            mass = dict(zip(seen, scores[b, i, seen].softmax(0).tolist()))
            most = min(len(seen), max(10, -(-len(seen) * 2 // 5)))
            expected, held = [], 0.0
            for j in sorted(seen, key=lambda j: -mass[j])[:most]:
                if held >= 0.6 and len(expected) >= 10:
                    break
                expected.append(j)
                held += mass[j]
            counts.add((len(expected), most))
            assert kept[b, i].nonzero()[:, 0].tolist() == sorted(expected), (b, i)
    fewest = {n for n, most in counts if n < most}
    assert fewest - {10} and any(n == most > 10 for n, most in counts)  # the mass, ten and kappa all decide somewhere


@pytest.mark.parametrize("spec", SHARES)
def test_steps_and_beams_keep_what_a_pass_keeps(small_task, spec):
    task = SimpleNamespace(**vars(small_task), separator_in=lambda dictionary: 7)
    torch.manual_seed(3)
    models = []
    for _ in range(2):
        model = LasformerModel.build_model(LasformerConfig(**SMALL, select_pattern=spec), task).eval()
        for _, pattern in model.selectors():
            pattern.kappa.fill_(SHARES[spec])
        models.append(model)
    models[1].load_state_dict(models[0].state_dict())
    src, prev = tokens(2, 50, pad_left=(0, 6)), tokens(2, 45)
    src[:, 8::9] = prev[:, 6::7] = 7
    assert_steps_are_a_full_pass(models[0], src, prev)
    assert_beams_decode_alike(*models, 40)
    for _, pattern in models[1].selectors():  # what is kept matters here
        pattern.kappa.fill_(1_000_000)
        if "top_p" in spec:
            pattern.mass = type(pattern.mass)(99)
    assert not torch.allclose(models[0](src, None, prev)[0], models[1](src, None, prev)[0], atol=1e-4)


@pytest.mark.parametrize("spec", SHARES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [40, 300])
def test_they_learn_as_the_definition_says(spec, causal, n):
    """The supervision, the translation loss and the mass, by masks (40 keys) and by kept keys (300)."""
    found = []
    for backend in ("auto", "reference"):
        pattern = selector(spec, "self", backend)
        pattern.kappa.fill_(SHARES[spec] // 4)
        torch.manual_seed(1)
        x, q, k, v = torch.randn(2, n, 8), *(torch.randn(2, 2, n, 8).requires_grad_() for _ in range(3))
        mask = AttentionMask(None, causal, (torch.arange(n) % 9 == 8).expand(2, n))
        selection = pattern(Pass(x, x, mask))
        taught = selection.supervise(Teachers([q], [k]))
        (selection.attend(q, k, v, 0.0, backend).square().sum() + taught.kl).backward()
        grads = [p.grad for p in (q, k, v, *pattern.parameters())]
        found.append([taught.kl.detach(), taught.mass, taught.recall, *grads])
    for ours, theirs in zip(*found):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    assert all(bool((g != 0).any()) for g in found[0][3:])


def test_their_costs_count_what_is_kept_at_most():
    lines, plain = (selector(s, "self").cost(1000) for s in ("learned_lines", "learned"))
    assert lines.kept == pytest.approx(plain.kept + 0.025) and lines.scores == plain.scores
    assert selector("learned_lines", "cross").cost(1000) == plain
    assert selector("learned_top_p:percent=60", "self").cost(1000).kept == 0.4


@pytest.mark.parametrize("spec", ["learned_lines:3", "learned_top_p:percent=100", "learned_top_p:90"])
def test_nonsense_is_refused(build, spec):
    with pytest.raises(InputError, match=f"--select-pattern {spec}: "):
        build(select_pattern=spec)
