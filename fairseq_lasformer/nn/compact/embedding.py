"""Parameter-saving word embeddings: DeFINE's (arXiv 1911.12385) and DeLighT's official code's (2008.00623)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lasformer.nn.compact.group_linear import ExpandReduce, UnitSizes, round_up


def define_sizes(n: int, k: int, m: int, depth: int, g_max: int) -> UnitSizes:
    """Return the shape of DeFINE's map-expand-reduce unit.

    It consists of ``depth`` group linear transformations from n to k, with g_max groups in the first and half as many
    in each further one, and a linear layer k -> m. Widths grow linearly and are rounded up to multiples of the numbers
    of groups of their own and the next layer.

    Args:
        k: width of the last transformation.
        depth: number of transformations.
        g_max: number of groups of the first transformation; must divide n.
    """
    groups = [max(1, g_max // 2**i) for i in range(depth)]
    widths = round_up([n + (k - n) * (i + 1) / depth for i in range(depth)], groups)
    return UnitSizes(0, tuple(widths), tuple(groups), m, shuffles=False, norms=False, ends_linear=True)


class ExpandedEmbedding(nn.Module):
    """An embedding table of width n, expanded and reduced to width m by a unit: ``unit(table[token])``.

    A drop-in replacement for ``nn.Embedding``: ``embedding_dim`` is m, ``weight`` is the table [V, n]. For inference
    the rows of all words are precomputed (``make_generation_fast_``, called by fairseq).

    Args:
        table: nn.Embedding of V words and width n.
        out_dim: width of the output (m).
        sizes: shape of the unit.

    Raises:
        ValueError: a width is not divisible by its number of groups.
    """

    table: Tensor | None

    def __init__(self, table: nn.Embedding, out_dim: int, sizes: UnitSizes) -> None:
        super().__init__()
        self.embedding, self.sizes = table, sizes
        self.unit = ExpandReduce(table.embedding_dim, sizes)
        self.embedding_dim, self.num_embeddings = out_dim, table.num_embeddings
        self.padding_idx = table.padding_idx
        self.register_buffer("table", None, persistent=False)

    def share_table(self) -> ExpandedEmbedding:
        """Return an embedding with its own unit that shares this table."""
        return ExpandedEmbedding(self.embedding, self.embedding_dim, self.sizes)

    @property
    def weight(self) -> nn.Parameter:
        weight = self.embedding.weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed int64 [...] -> [..., m]."""
        if self.table is not None and not self.training:
            return F.embedding(tokens, self.table)
        return self.unit(self.embedding(tokens))

    @torch.no_grad()
    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Precompute the rows of all words, [V, m]; training discards them."""
        self.table = torch.cat([self.unit(part) for part in self.embedding.weight.split(4096)])

    def train(self, mode: bool = True) -> ExpandedEmbedding:
        """Discard precomputed rows in training mode: they become stale once the weights change."""
        if mode:
            self.table = None
        return super().train(mode)


def expanded_embedding(n_words: int, n: int, out_dim: int, padding_idx: int, sizes: UnitSizes) -> ExpandedEmbedding:
    """Create an embedding with its own table.

    Args:
        n_words: size of the vocabulary (V).
        out_dim: width of the embeddings (m).
        padding_idx: row of the table that stays 0.

    Raises:
        ValueError: a width is not divisible by its number of groups.
    """
    table = nn.Embedding(n_words, n, padding_idx)
    nn.init.normal_(table.weight, std=n**-0.5)
    nn.init.zeros_(table.weight[padding_idx])
    embedding = ExpandedEmbedding(table, out_dim, sizes)
    if sizes.ends_linear:
        _unit_variance(embedding)
    return embedding


@torch.no_grad()
def _unit_variance(embedding: ExpandedEmbedding) -> None:
    """Scale the embeddings to a standard deviation of 1, that of table embeddings after scaling by sqrt(m).

    Otherwise, after so many layers, they would start far smaller than the position embeddings added to them.
    """
    assert embedding.unit.leave is not None
    words = embedding.unit(embedding.weight[:1024])
    embedding.unit.leave.weight.div_((words - words.mean(0)).square().mean().sqrt())


class TableProjection(nn.Module):
    """Output projection through a narrow table: [..., m] -> n -> scores of all words.

    Args:
        dim: width of the states (m).
        table: [V, n], shared with an embedding or separate.
    """

    def __init__(self, dim: int, table: nn.Parameter) -> None:
        super().__init__()
        n = table.size(1)
        self.reduce = nn.Linear(dim, n, bias=False) if dim != n else None
        self.weight = table

    def forward(self, x: Tensor) -> Tensor:
        """Project [..., m] -> [..., V]."""
        return F.linear(x if self.reduce is None else self.reduce(x), self.weight)
