"""Groups of layers of a dense model that can share a selection: those whose attention falls on the same keys.

The layers' attention is measured on a few documents, without any training (as IndexCache, arXiv 2603.12201, does to
leave out indexers). Groups are consecutive layers, so the best partition is found exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.ops.reference import attention_scores, line_bias, masked_softmax

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel

SHARE = 0.1
"""Share of the keys that a selection keeps while groups are compared."""

QUERIES = 64
"""Queries of a document whose attention is examined."""


class Groups(NamedTuple):
    """A partition of layers into groups."""

    starts: tuple[int, ...]  # lowest layer of each group, from 0
    # share of its attention that a layer loses on average if its group's keys are kept instead of as many of its own
    lost: float


def fewest_groups(attentions: Sequence[Tensor], loss: float) -> Groups:
    """Return the partition into the fewest groups that loses no more than ``loss`` of the attention."""
    n = attentions[0].size(0)
    choices = (choose_groups(attentions, parts) for parts in range(1, n + 1))
    return next(groups for groups in choices if groups.lost <= loss or len(groups.starts) == n)


def choose_groups(attentions: Sequence[Tensor], n_groups: int) -> Groups:
    """Return the partition into at most ``n_groups`` groups that loses the least attention.

    A group keeps the keys with the largest mean attention of its layers, as its selector is taught to (eq 4 of arXiv
    2309.14174).

    Args:
        attentions: attention of all layers for some queries, [layers, queries, keys], one for each document and module
            that shares the groups.
    """
    n = attentions[0].size(0)
    n_groups = max(1, min(n_groups, n))
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(0, 0): (0.0, ())}
    for end in range(1, n + 1):
        losses = [_loss(attentions, start, end) for start in range(end)]
        for parts in range(1, min(end, n_groups) + 1):
            cuts = [
                (best[start, parts - 1][0] + losses[start], (*best[start, parts - 1][1], start))
                for start in range(end)
                if (start, parts - 1) in best
            ]
            best[end, parts] = min(cuts)
    loss, starts = best[n, n_groups]
    return Groups(starts, loss / n)


def _loss(attentions: Sequence[Tensor], start: int, end: int) -> float:
    """Return the attention that layers ``start`` to ``end - 1`` lose together as a group, in shares."""
    total, n_rows = 0.0, 0
    for attention in attentions:
        layers = attention[start:end]
        k = min(layers.size(-1), max(10, math.ceil(SHARE * layers.size(-1))))
        keys = layers.mean(0).topk(k).indices.expand(len(layers), -1, -1)
        total += float((layers.topk(k).values.sum(-1) - layers.gather(-1, keys).sum(-1)).sum())
        n_rows += layers.size(1)
    return total / max(1, n_rows)


@torch.no_grad()
def attention_of_layers(
    model: BaseFairseqModel, examples: Iterable[tuple[Tensor, Tensor]], eos: int
) -> dict[str, list[Tensor]]:
    """Return the attention of all layers by module: for each example, the mean over heads [layers, queries, keys].

    Args:
        model: a dense model of ours, in evaluation mode.
        examples: int64 tokens of source and target, each with its end of sentence.
        eos: token that a translation begins with.
    """
    modules = {
        "encoder": [layer.self_attn for layer in model.encoder.layers],
        "decoder": [layer.self_attn for layer in model.decoder.layers],
        "cross": [layer.encoder_attn for layer in model.decoder.layers],
    }
    by_module: dict[str, list[Tensor]] = {name: [] for name in modules}
    for source, target in examples:
        previous = torch.cat([target.new_tensor([eos]), target[:-1]])
        with _passes([attention for module in modules.values() for attention in module]) as passes:
            model(source[None], torch.tensor([len(source)]), previous[None])
        for name, layers in modules.items():
            by_module[name].append(torch.stack([_attention(attention, passes[attention]) for attention in layers]))
    return by_module


@contextmanager
def _passes(attentions: Sequence[Any]) -> Iterator[dict[Any, Pass]]:
    """Collect the inputs of attentions, in a pass over one example."""
    passes: dict[Any, Pass] = {}

    def keep(module: Any, args: Any) -> None:
        passes[module] = args[0]

    hooks = [attention.register_forward_pre_hook(keep) for attention in attentions]
    try:
        yield passes
    finally:
        for hook in hooks:
            hook.remove()


def _attention(module: Any, full: Pass) -> Tensor:
    """Return the mean attention over heads of some evenly spread queries: [queries, keys]."""
    q, k = full.rotated(*module.projected(full.query, full.memory)[:2])
    n = q.size(2)
    allowed = full.mask.full(1, n, k.size(2), q.device)
    rows = torch.linspace(0, n - 1, min(n, QUERIES)).round().long()
    scores = attention_scores(q, k) + line_bias(module.bias, full.mask, allowed)
    return masked_softmax(scores[:, :, rows], allowed[:, None, rows])[0].mean(0)
