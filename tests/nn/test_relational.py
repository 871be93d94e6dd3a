"""Patterns that read lines or contents: Longformer, ETC and Reformer, in addition to the tests of all patterns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from definitions import OF_LINES, RULE, ends_at
from helpers import SMALL, assert_steps_are_a_full_pass, tokens

from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns import PatternOptions, build_pattern
from fairseq_lasformer.ops import AttentionMask
from fairseq_lasformer.plugin.config import LasformerConfig
from fairseq_lasformer.plugin.model import LasformerModel


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
    kept = build_pattern(spec, PatternOptions(8, 8, 4, RULE))(Pass(queries, keys, mask)).keep_mask
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


@pytest.mark.parametrize("spec", ["longformer:window=4", "etc:window=4", "learned"])
def test_data_without_separators_is_one_line_with_a_warning(build, caplog, spec):
    build(select_pattern=spec)
    warned = [r.message for r in caplog.records if "no separators" in r.message]
    assert len(warned) == (spec != "learned") and all(f"--select-pattern {spec}" in message for message in warned)


def test_separators_of_the_data_end_lines(small_task, build):
    """The cross-attention also sees those of the source; a pass and steps see the same."""
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
        scores = with_lines.decoder.output_layer(whole, packed=True)
        torch.testing.assert_close(scores, with_lines.decoder(prev, encoded)[0], rtol=1e-4, atol=1e-5)


def test_one_bucket_is_dense_and_more_are_those_of_the_hash(build):
    one, dense = build(select_pattern="reformer:buckets=1").eval(), build(select_pattern="full").eval()
    dense.load_state_dict({k: v for k, v in one.state_dict().items() if "rotations" not in k})
    src, prev = tokens(2, 30, pad_left=(0, 5)), tokens(2, 20)
    torch.testing.assert_close(one(src, None, prev)[0], dense(src, None, prev)[0], rtol=1e-4, atol=1e-5)
    pattern = build_pattern("reformer:buckets=6,rounds=2", PatternOptions(8, 8, 4, RULE))
    x = torch.randn(1, 20, 8)
    kept = pattern(Pass(x, x, AttentionMask(None, False))).keep_mask[0]
    turned = [x[0] @ r for r in pattern.rotations]
    buckets = [[max(range(6), key=lambda b: float(torch.cat([t, -t], 1)[i, b])) for i in range(20)] for t in turned]
    for i in range(20):
        assert kept[i].nonzero()[:, 0].tolist() == [j for j in range(20) if any(b[i] == b[j] for b in buckets)]
    assert 0.1 < float(kept.float().mean()) < 0.9
