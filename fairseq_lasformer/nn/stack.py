"""A stack of layers, run in groups that share a selection (eq 8 of arXiv 2309.14174), and the groups' supervision.

A group returns its supervision as values, so that activation checkpointing of a whole group preserves every gradient.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_lasformer.nn.attentions import AttentionOutput
from fairseq_lasformer.nn.layers import DecodeContext, FullPass, TransformerLayer
from fairseq_lasformer.nn.moe import RouterStats
from fairseq_lasformer.nn.options import SupervisionOptions
from fairseq_lasformer.nn.patterns import Pattern
from fairseq_lasformer.ops import Supervision, Teachers

Observer = Callable[[str, AttentionOutput], None]
"""Callback with ``module.group`` and the output of an attention, for every attention of a full pass."""


class StackOutput(NamedTuple):
    """Output of a full pass through a stack."""

    x: Tensor  # [B, N, d]
    # supervision of every supervised pattern, by module and group (`encoder.0`, `cross.1`)
    supervision: dict[str, Supervision]
    router_stats: dict[int, RouterStats]  # statistics of every mixture, by layer index
    states: list[Tensor]  # x after each group, if requested; otherwise empty


class LayerStack(nn.ModuleList):
    """Layers in groups of consecutive ones, lowest first.

    Args:
        layers: all layers of the stack.
        starts: the lowest layer of each group, in ascending order from 0.
        modules: a name for each attention of a layer, in order: ``("encoder",)`` or ``("decoder", "cross")``.
        drop: probability that a group is skipped in a training pass (LayerDrop, arXiv 1909.11556).
    """

    def __init__(
        self, layers: Sequence[TransformerLayer], starts: Sequence[int], modules: tuple[str, ...], drop: float = 0.0
    ) -> None:
        super().__init__(layers)
        self.starts, self.modules_of_layer, self.drop = tuple(starts), modules, drop

    def groups(self) -> Iterator[tuple[int, list[Any]]]:
        """Iterate over the groups, each with its index."""
        layers = list(self)
        for i, (start, end) in enumerate(zip(self.starts, (*self.starts[1:], len(layers)))):
            yield i, layers[start:end]

    def patterns(self) -> Iterator[tuple[str, Pattern]]:
        """Iterate over the patterns of all groups with their names (``cross.0``), module by module."""
        for number, name in enumerate(self.modules_of_layer):
            for i, group in self.groups():
                selector = getattr(group[0], group[0].attentions[number]).selector
                if selector is not None:
                    yield f"{name}.{i}", selector

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        full: FullPass,
        supervision: SupervisionOptions | None = None,
        recompute: bool = False,
        keep_states: bool = False,
        observe: Observer | None = None,
    ) -> StackOutput:
        """Run a full pass.

        Args:
            x: [B, N, d].
            supervision: options of the patterns' supervision; None: no supervision.
            recompute: recompute each group's activations in the backward pass.
            keep_states: return the states after each group.
            observe: called with the output of every attention; ignored with ``recompute``.
        """
        supervisions: dict[str, Supervision] = {}
        router_stats: dict[int, RouterStats] = {}
        states: list[Tensor] = []
        for i, group in self.groups():
            if self.drop and self.training and float(torch.rand(())) < self.drop:
                continue
            if recompute:
                x, outputs, sums, stats = checkpoint(_run, group, x, full, supervision, False, use_reentrant=False)
            else:
                x, outputs, sums, stats = _run(group, x, full, supervision, observe is not None)
            supervisions |= {f"{name}.{i}": s for name, s in zip(self.modules_of_layer, sums) if s is not None}
            router_stats |= stats
            if keep_states:
                states.append(x)
            if observe is not None:
                for layer in outputs:
                    for name, output in zip(self.modules_of_layer, layer):
                        observe(f"{name}.{i}", output)
        return StackOutput(x, supervisions, router_stats, states)

    def step(self, x: Tensor, context: DecodeContext) -> Tensor:
        """Run one decoding step: x [R, d] -> [R, d]."""
        for _, group in self.groups():
            x = _run(group, x, context, None, False)[0]
        return x


def _run(
    group: Sequence[TransformerLayer],
    x: Tensor,
    context: FullPass | DecodeContext,
    supervision: SupervisionOptions | None,
    keep_outputs: bool,
) -> tuple[Tensor, list[tuple[AttentionOutput, ...]], list[Supervision | None], dict[int, RouterStats]]:
    """Run one group of layers.

    Returns:
        x; the outputs of the attentions by layer, if ``keep_outputs``; the supervision of each module; and the
            statistics of mixtures by layer.
    """
    outputs: list[tuple[AttentionOutput, ...]] = []
    router_stats: dict[int, RouterStats] = {}
    selections: tuple[Any, ...] = (None, None)
    for layer in group:
        x, attended, stats = context.run(layer, x, selections)  # type: ignore[arg-type]
        selections = tuple(a.selection for a in attended)
        if supervision is not None or keep_outputs:
            outputs.append(attended)
        if stats is not None:
            router_stats[layer.index] = stats
    sums: list[Supervision | None] = []
    if supervision is not None and isinstance(context, FullPass):
        sums = [_supervise(module, context.mask.key_padding, supervision) for module in zip(*outputs)]
    return x, outputs if keep_outputs else [], sums, router_stats


def _supervise(
    outputs: Sequence[AttentionOutput], query_padding: Tensor | None, options: SupervisionOptions
) -> Supervision | None:
    """Supervise a group's pattern by the full attention of its layers; return None if there is nothing to learn."""
    selection: Any = outputs[0].selection
    if selection is None:
        return None
    queries, keys = [o.query for o in outputs if o.query is not None], [o.key for o in outputs if o.key is not None]
    biases = [o.bias for o in outputs if o.query is not None]
    return selection.supervise(Teachers(queries, keys, query_padding, *options, biases))
