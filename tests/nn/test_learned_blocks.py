"""Blocks of keys chosen by a selector, whole or with keys chosen within them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from conftest import SMALL
from definitions import RULE
from helpers import assert_beams_decode_alike, assert_steps_are_a_full_pass, tokens

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.others.learned_blocks import _means
from fairseq_lasformer.nn.patterns import PatternOptions, build_pattern
from fairseq_lasformer.ops import AttentionMask, Teachers
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel

N, SIZE = 61, 8
WHOLE, WITHIN = f"learned_blocks:size={SIZE}", f"learned_blocks:size={SIZE},percent=60"
SEPARATOR = 7


def selector(spec: str, kind: str, kappa: float = 0.5, backend: str = "auto"):
    torch.manual_seed(5)
    made = build_pattern(spec, PatternOptions(8, 8, 4, RULE, backend=backend, same_text=kind != "cross"))
    made.set_share(kappa)
    return made


def masks(padding: str | None, kind: str) -> tuple[AttentionMask, torch.Tensor, torch.Tensor]:
    """Return a mask with lines, its padding, and the line of each of N + 9 queries of a translation."""
    torch.manual_seed(2)
    key_padding, ends = torch.zeros(2, N, dtype=torch.bool), torch.rand(2, N) < 0.15
    key_padding[1, slice(0, 5) if padding == "left" else slice(N - 5, N)] = padding is not None
    starts = torch.rand(2, N + 9) < 0.15
    starts[:, 0] = True
    line = starts.cumsum(1) - 1
    mask = AttentionMask(key_padding if padding else None, kind == "causal", ends & ~key_padding)
    return mask._replace(query_line=line if kind == "cross" else None), key_padding, line


def kept_blocks(scores: list[float], own: int, share: float) -> set[int]:
    """Return by definition which blocks are kept, of those with scores: the own and its neighbours, and the best."""
    near = [b for b in range(len(scores)) if abs(b - own) <= 1]
    others = sorted((b for b in range(len(scores)) if b not in near), key=lambda b: -scores[b])
    n = max(len(near), -(-len(scores) * round(share * 100) // 100))
    return {*near, *others[: n - len(near)]}


@pytest.mark.parametrize("spec", [WHOLE, WITHIN])
@pytest.mark.parametrize("padding", ["left", "right", None])
@pytest.mark.parametrize("kind", ["self", "causal", "cross"])
def test_a_tile_keeps_the_best_blocks_and_those_around_its_own(spec, padding, kind):
    mask, key_padding, line = masks(padding, kind)
    keys = torch.randn(2, N, 8)
    queries = torch.randn(2, N + 9, 8) if kind == "cross" else keys
    pattern = selector(spec, kind)
    kept = pattern(Pass(queries, keys, mask, True)).kept(True)
    q, k = pattern.q_proj(queries).detach(), pattern.k_proj(keys).detach()
    chosen_somewhere = 0
    for b in range(2):
        slots = (~key_padding[b]).nonzero()[:, 0].tolist()
        if kind == "cross":
            block, at = [], 0
            for j in slots:
                block.append(at)
                at += bool(mask.ends[b, j])
            tiles, rows = line[b].tolist(), list(range(N + 9))
        else:
            block = [p // SIZE for p in range(len(slots))]
            tiles, rows = block, slots
        for i, tile in zip(rows, tiles):
            members = [r for r, t in zip(rows, tiles) if t == tile]
            asking = q[b, members].mean(0) if kind == "self" else q[b, members[0]]
            n_blocks = tile + 1 if kind == "causal" else block[-1] + 1
            means = [k[b, [j for j, its in zip(slots, block) if its == n]].mean(0) for n in range(n_blocks)]
            scores = [float(asking @ mean) for mean in means]
            best = kept_blocks(scores, min(tile, block[-1]), 0.5 if spec == WHOLE else 0.6)
            expected = [j for j, its in zip(slots, block) if its in best and (kind != "causal" or j <= i)]
            seen = [j for j in slots if kind != "causal" or j <= i]
            if spec == WITHIN:
                n = min(len(expected), len(seen), max(10, -(-len(seen) // 2)))
                expected = sorted(sorted(expected, key=lambda j: -float(q[b, i] @ k[b, j]))[:n])
            chosen_somewhere += len(expected) < len(seen)
            assert kept[b, i].nonzero()[:, 0].tolist() == expected, (b, i)
    assert chosen_somewhere > N // 2


def models(small_task, spec: str, kappa: float, n: int):
    task = SimpleNamespace(**vars(small_task), separator_in=lambda dictionary: SEPARATOR)
    torch.manual_seed(3)
    made = [LasformerModel.build_model(LasformerConfig(**SMALL, select_pattern=spec), task).eval() for _ in range(n)]
    for model in made:
        model.load_state_dict(made[0].state_dict())
        for _, pattern in model.selectors():
            pattern.set_share(kappa)
    return made


def text() -> tuple[torch.Tensor, torch.Tensor]:
    src, prev = tokens(2, 50, pad_left=(0, 6)), tokens(2, 45)
    src[:, 8::9] = prev[:, 6::7] = SEPARATOR
    return src, prev


@pytest.mark.parametrize("spec", [WHOLE, WITHIN])
def test_steps_and_beams_keep_what_a_pass_keeps(small_task, spec):
    kept, every = models(small_task, spec, 0.4, 2)
    src, prev = text()
    assert_steps_are_a_full_pass(kept, src, prev)
    assert_beams_decode_alike(kept, every, 40)
    for _, pattern in every.selectors():  # what is kept matters here
        pattern.set_share(1.0)
        pattern.numbers = type(pattern.numbers)(SIZE, 100 if pattern.numbers.percent else 0)
    assert not torch.allclose(kept(src, None, prev)[0], every(src, None, prev)[0], atol=1e-4)


@pytest.mark.parametrize("spec", [WHOLE, WITHIN])
def test_no_later_word_moves_an_earlier_prediction(small_task, spec):
    (model,) = models(small_task, spec, 0.4, 1)
    src, prev = text()
    before = model(src, None, prev)[0]
    for changed in range(1, prev.size(1)):
        for word in (9, SEPARATOR):  # of its line, or a line of its own
            other = prev.clone()
            other[:, changed] = torch.where(prev[:, changed] == word, 11, word)
            after = model(src, None, other)[0]
            assert torch.equal(after[:, :changed], before[:, :changed]), (changed, word)
            assert not torch.equal(after[:, changed:], before[:, changed:])


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_learn_from_the_attention_summed_by_block(causal):
    """The gradient of the selector is that of KL(attention by block || selector), written out."""
    n, mask = 40, AttentionMask(None, causal)
    pattern = selector(WHOLE, "self", 0.3)
    torch.manual_seed(1)
    x, q, k = torch.randn(2, n, 8), *(torch.randn(2, 2, n, 8).requires_grad_() for _ in range(2))
    taught = pattern(Pass(x, x, mask)).supervise(Teachers([q], [k]))
    taught.kl.backward()
    ours = [p.grad.clone() for p in pattern.parameters()]
    assert q.grad is None and k.grad is None
    pattern.zero_grad()
    allowed = mask.full(2, n, n, x.device)
    attention = (q @ k.transpose(2, 3) * 8**-0.5).masked_fill(~allowed[:, None], float("-inf")).softmax(-1).mean(1)
    tiled = x.view(2, n // SIZE, SIZE, 8)
    asking = pattern.q_proj(tiled[:, :, 0] if causal else tiled.mean(2)).repeat_interleave(SIZE, 1)
    scores = asking @ pattern.k_proj(tiled.mean(2)).transpose(1, 2) * 4**-0.5
    sizes = allowed.view(2, n, -1, SIZE).sum(-1)  # a query of the decoder sees a part of its own block
    log_share = (scores + sizes.log()).log_softmax(-1).masked_fill(sizes == 0, 0.0)
    by_block = attention.view(2, n, -1, SIZE).sum(-1).detach()
    (-(by_block * log_share).sum()).backward()
    for mine, its in zip(ours, (p.grad for p in pattern.parameters())):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
        assert bool((its != 0).any())


def test_keys_within_blocks_learn_from_both_losses():
    """From the attention by key, which also trains the attention, and from that by block."""
    found = {}
    for spec in ("learned", WHOLE, WITHIN):
        pattern = selector(spec, "self", 0.3)
        torch.manual_seed(1)
        x, q, k = torch.randn(2, 40, 8), *(torch.randn(2, 2, 40, 8).requires_grad_() for _ in range(2))
        taught = pattern(Pass(x, x, AttentionMask(None, True))).supervise(Teachers([q], [k]))
        taught.kl.backward()
        zero = torch.zeros_like(q)
        found[spec] = [taught.kl.detach(), zero if q.grad is None else q.grad, *(p.grad for p in pattern.parameters())]
    for by_key, by_block, both in zip(*found.values()):
        torch.testing.assert_close(both, by_key + by_block)


def test_means_of_long_blocks_are_exact_in_half_precision():
    x, one = torch.full((1, 600, 2), 3.0, dtype=torch.bfloat16), torch.zeros(1, 600, dtype=torch.long)
    assert (_means(x, one, one == 0, 1)[0] == 3.0).all() and (_means(x, one, one > 0, 1)[0] == 0).all()


def test_its_cost_counts_what_is_always_kept():
    assert selector("learned_blocks", "self", 0.5).cost(4096).kept == 0.5
    assert selector("learned_blocks", "self", 0.01).cost(4096).kept == 3 / 64
    assert selector("learned_blocks", "self", 0.01).cost(100).kept == 1
    assert selector("learned_blocks", "self", 0.5).cost(4096).scores == 64 * 64 * 4
    assert selector("learned_blocks:percent=25", "self", 0.05).cost(4096).kept == 0.05
    assert selector("learned_blocks:percent=25", "self", 0.5).cost(4096).kept == 0.25


@pytest.mark.parametrize("spec", ["learned_blocks:64", "learned_blocks:size=0", "learned_blocks:percent=101"])
def test_nonsense_is_refused(build, spec):
    with pytest.raises(InputError, match=f"--select-pattern {spec}: "):
        build(select_pattern=spec)
