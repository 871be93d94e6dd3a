"""A document in one pass, against the paper's recurrence over segments with a memory."""

from __future__ import annotations

import pytest
import torch
from definitions import RULE
from torch import nn

from fairseq_lasformer.nn.attentions.base import AttentionOptions
from fairseq_lasformer.nn.attentions.selected import SelectedAttention
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.patterns import PatternOptions, build_pattern
from fairseq_lasformer.ops import AttentionMask

SIZE, N = 5, 18


def layers(backend: str) -> nn.ModuleList:
    torch.manual_seed(2)
    pattern = build_pattern(f"transformer_xl:segment={SIZE}", PatternOptions(8, 8, 4, RULE, backend=backend))
    return nn.ModuleList(SelectedAttention(AttentionOptions(8, 2, 8, 8, 8, 0.0, backend), pattern) for _ in range(3))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_states_and_gradients_are_those_of_the_recurrence(causal, backend):
    stack, x = layers(backend), torch.randn(1, N, 8)
    whole = x.clone().requires_grad_()
    states = whole
    for layer in stack:
        states = states + layer(Pass(states, states, AttentionMask(None, causal))).out
    states[:, -3:].square().sum().backward()  # of the last segment only
    grads = [whole.grad, *(p.grad for p in stack.parameters())]

    stack.zero_grad()
    segments = x.clone().requires_grad_()
    memory: list[torch.Tensor | None] = [None] * len(stack)
    found = []
    for segment in segments.split(SIZE, 1):
        for i, layer in enumerate(stack):
            before = segment.detach()
            text = segment if memory[i] is None else torch.cat([memory[i], segment], 1)
            q, k, v = layer.heads(layer.q_proj(segment)), *(layer.heads(p(text)) for p in (layer.k_proj, layer.v_proj))
            if memory[i] is not None:  # keys and values of the memory are constants of an earlier pass
                cut = memory[i].size(1)
                k, v = (torch.cat([t[:, :, :cut].detach(), t[:, :, cut:]], 2) for t in (k, v))
            scores = q @ k.transpose(2, 3) * 4**-0.5
            if causal:
                later = torch.ones(q.size(2), k.size(2), dtype=torch.bool).triu(k.size(2) - q.size(2) + 1)
                scores = scores.masked_fill(later, float("-inf"))
            segment = segment + layer.joined(scores.softmax(-1) @ v)
            memory[i] = before
        found.append(segment)
    torch.testing.assert_close(torch.cat(found, 1), states)
    found[-1].square().sum().backward()
    theirs = [segments.grad, *(p.grad for p in stack.parameters())]
    for a, b in zip(grads, theirs):
        torch.testing.assert_close(a, b if b is not None else torch.zeros_like(a), rtol=1e-4, atol=1e-5)
    assert not bool(grads[0][:, : N // SIZE * SIZE].any()) and bool(grads[0][:, -3:].all())


def test_padding_belongs_to_no_segment():
    pattern = build_pattern(f"transformer_xl:segment={SIZE}", PatternOptions(8, 8, 4, RULE))
    x, padding = torch.randn(2, N, 8), torch.zeros(2, N, dtype=torch.bool)
    padding[1, :4] = True
    kept = pattern(Pass(x, x, AttentionMask(padding, True))).kept()
    text = x[1:, 4:]
    assert torch.equal(kept[1, 4:, 4:], pattern(Pass(text, text, AttentionMask(None, True))).kept()[0])
    assert not bool(kept[1, :, :4].any())
