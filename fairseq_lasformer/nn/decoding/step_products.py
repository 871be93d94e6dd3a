"""Linear layers that read the same newest inputs in a decoding step, as one product (GPUs).

A step of a few rows takes as long as its kernels take to begin. An attention's projections to a query, a key, a value,
and to its selector's query and key read the same inputs: their weights stand below each other here, and what goes into
the cache is written there by one kernel.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fairseq_lasformer.nn.attentions import Attention
from fairseq_lasformer.nn.decoding.cache import DecodingCache
from fairseq_lasformer.nn.stack import LayerStack
from fairseq_lasformer.ops import rotate_heads

CACHED = ("key", "value", "selector_key")
ROTATED = {"query", "key", "selector_query", "selector_key"}


class _Joined(NamedTuple):
    """Linear layers as one: its results, by name, follow each other in those of ``layer``, [R, sum of widths]."""

    layer: Callable[[Tensor], Tensor]
    widths: Mapping[str, int]


class StepProducts(NamedTuple):
    """Products of the newest inputs of one attention."""

    joined: tuple[_Joined, ...]  # the products, without those that join nothing
    n_heads: int
    backend: str  # writes keys and values into the cache, one of `ops.BACKENDS`

    def __call__(self, x: Tensor, cache: DecodingCache, name: str, rotation: Tensor | None = None) -> dict[str, Tensor]:
        """Compute the products of x [R, d], and write keys and values into the cache.

        Args:
            name: prefix of the attention's entries.
            rotation: of the lines of the rows, [R, 8, 2], see ``rotary.rotations``.

        Returns:
            queries, keys and values by name, [R, W]; those that were written, by slot: [N, C, W].
        """
        products: dict[str, Tensor] = {}
        for layer, widths in self.joined:
            products.update(zip(widths, layer(x).split([*widths.values()], 1)))
        for what in ROTATED & products.keys():
            heads = 1 if what.startswith("selector") else self.n_heads
            products[what] = rotate_heads(products[what], heads, rotation, self.backend)
        written = [what for what in CACHED if what in products]
        if written:
            stores = cache.append_together({f"{name}.{what}": products[what] for what in written}, self.backend)
            products.update(zip(written, stores))
        return products


AttentionProducts = tuple[StepProducts, ...]
"""The products of a layer's attentions, in order."""


def step_products(layers: LayerStack) -> tuple[AttentionProducts, ...]:
    """Return the products of a decoder's layers; their weights are copied."""
    return tuple(
        tuple(_of(getattr(layer, name), name == "self_attn") for name in layer.attentions)  # type: ignore[union-attr]
        for layer in layers
    )


def _of(attention: Attention, of_itself: bool) -> StepProducts:
    layers = attention.step_layers(of_itself)
    plain = {name: layer for name, layer in layers.items() if type(layer) is nn.Linear}
    joined = []
    if len(plain) > 1:
        joined.append(_Joined(_linear([*plain.values()]), {name: m.out_features for name, m in plain.items()}))
    return StepProducts(tuple(joined), getattr(attention, "num_heads", 1), attention.backend)


def _linear(layers: list[nn.Linear]) -> nn.Linear:
    """Return linear layers as one: the same sums, and a bias of 0 where a layer has none."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    biases = [m.weight.new_zeros(m.out_features) if m.bias is None else m.bias.detach() for m in layers]
    joined = nn.Linear(weight.size(1), weight.size(0), device="meta", dtype=weight.dtype)
    joined.weight, joined.bias = (nn.Parameter(t, requires_grad=False) for t in (weight, torch.cat(biases)))
    return joined


class Products(NamedTuple):
    """Products that a decoder on a GPU computes together in a step."""

    of_layers: tuple[AttentionProducts, ...]
    of: tuple[tuple[int, int], ...]  # identifies the weights that were copied, see `LasformerDecoder._weights`
