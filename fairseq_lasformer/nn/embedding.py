"""Word embeddings that save parameters: DeFINE's map-expand-reduce (1911.12385), and DeLighT's official variant."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.nn.group_linear import ExpandReduce, UnitSizes, max_groups, official_sizes, round_up


def define_sizes(n: int, k: int, m: int, depth: int, g_max: int) -> UnitSizes:
    """DeFINE's unit: ``depth`` group linear transformations from n to k, in g_max groups, halved at each; a linear
    layer k -> m. Widths grow linearly, rounded up to what their own and the next layer's groups divide.

    Raises:
        ValueError: n does not divide into g_max groups.
    """
    groups = [max(1, g_max // 2**i) for i in range(depth)]
    widths = round_up([n + (k - n) * (i + 1) / depth for i in range(depth)], groups)
    return UnitSizes(0, tuple(widths), tuple(groups), m, shuffles=False, norms=False, ends_linear=True)


class ExpandedEmbedding(nn.Module):
    """A table of n numbers a word, expanded and reduced to m by a unit: ``unit(table[token])``.

    Stands in for ``nn.Embedding``: ``embedding_dim`` is m, ``weight`` is the table [V, n]. For inference all words'
    rows are computed once (``make_generation_fast_``, which fairseq calls).

    Args:
        table: nn.Embedding of V words, width n. out_dim: m. sizes: of the unit.
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
        """Another unit over the same table."""
        return ExpandedEmbedding(self.embedding, self.embedding_dim, self.sizes)

    @property
    def weight(self) -> nn.Parameter:
        weight = self.embedding.weight
        assert isinstance(weight, nn.Parameter)
        return weight

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [...] -> [..., m]."""
        if self.table is not None and not self.training:
            return F.embedding(tokens, self.table)
        return self.unit(self.embedding(tokens))

    @torch.no_grad()
    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Computes all words' rows, [V, m]; training afterwards does not use them."""
        self.table = torch.cat([self.unit(part) for part in self.embedding.weight.split(4096)])

    def train(self, mode: bool = True) -> ExpandedEmbedding:
        """Rows computed for inference are of no use once the weights change."""
        if mode:
            self.table = None
        return super().train(mode)


def build_embedding(cfg: Any, n_words: int, out_dim: int, padding_idx: int) -> ExpandedEmbedding:
    """The embedding that ``--embedding`` asks for.

    Raises:
        InputError: the sizes do not divide.
    """
    n = cfg.define_dim
    if cfg.embedding == "define":
        sizes = define_sizes(n, cfg.define_expand, out_dim, cfg.define_depth, cfg.define_groups)
    else:
        g_max = max_groups(out_dim, official=True)
        sizes = official_sizes(n, out_dim // 2, out_dim, cfg.delight_min_depth, cfg.delight_width, g_max)
    table = nn.Embedding(n_words, n, padding_idx)
    nn.init.normal_(table.weight, std=n**-0.5)
    nn.init.zeros_(table.weight[padding_idx])
    try:
        embedding = ExpandedEmbedding(table, out_dim, sizes)
    except ValueError as e:
        raise InputError(f"--embedding {cfg.embedding}: {e}") from e
    if sizes.ends_linear:
        _unit_variance(embedding)
    return embedding


@torch.no_grad()
def _unit_variance(embedding: ExpandedEmbedding) -> None:
    """Gives the words a spread of 1, that of a plain table's words after their scaling by sqrt(m): without it, after so
    many layers, they would begin far below the positions that are added to them."""
    assert embedding.unit.leave is not None
    words = embedding.unit(embedding.weight[:1024])
    embedding.unit.leave.weight.div_((words - words.mean(0)).square().mean().sqrt())


class TableProjection(nn.Module):
    """Scores of all words from states of width m: m -> n, then the n-dimensional table, [V, n].

    Args:
        table: shared with an embedding, or its own.
    """

    def __init__(self, dim: int, table: nn.Parameter) -> None:
        super().__init__()
        n = table.size(1)
        self.reduce = nn.Linear(dim, n, bias=False) if dim != n else None
        self.weight = table

    def forward(self, x: Tensor) -> Tensor:
        """[..., m] -> [..., V]."""
        return F.linear(x if self.reduce is None else self.reduce(x), self.weight)
