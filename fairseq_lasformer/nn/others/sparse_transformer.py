"""The patterns of Sparse Transformers (Child et al. 2019, arXiv 1904.10509, section 4.2).

Each query keeps the union of the keys of the paper's two heads. With stride l, a query at position p keeps in
``strided`` the l keys up to its own and every l-th key from its own back. In ``fixed``, it keeps its block of l keys
and the last c keys of all blocks. The paper only has causal attention. Without a causal mask, the same rules apply to
the keys after the query; in cross-attention, p is the position in the target.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_lasformer.nn.patterns.positional import Numbered


@dataclass(frozen=True)
class Stride:
    """Parameters of ``sparse_strided``."""

    stride: int  # l of the paper, where it is close to the square root of the length


@dataclass(frozen=True)
class Blocks:
    """Parameters of ``sparse_fixed``."""

    stride: int  # l of the paper, the number of keys of a block
    summary: int = 1  # c of the paper, the number of a block's keys that all queries keep

    def __post_init__(self) -> None:
        if self.summary > self.stride:
            raise ValueError(
                f"expected summary to be at most stride, as in sparse_fixed:stride={self.stride},summary=1"
            )


class SparseStrided(Numbered[Stride]):
    """The nearest keys, and every ``stride``-th one (``--select-pattern sparse_strided:stride=16``)."""

    name = "sparse_strided"
    usage = "sparse_strided:stride=N"
    kind = Stride
    example = "sparse_strided:stride=16"

    def positions(self, query: Tensor, n_keys: Tensor, longest: int) -> Tensor:
        stride, device = self.numbers.stride, query.device
        near = query[..., None] + torch.arange(1 - stride, stride, device=device)
        far = (query % stride)[..., None] + torch.arange(0, longest, stride, device=device)
        return torch.cat([near, far], -1)


class SparseFixed(Numbered[Blocks]):
    """The query's block, and the last keys of all blocks (``--select-pattern sparse_fixed:stride=16,summary=2``)."""

    name = "sparse_fixed"
    usage = "sparse_fixed:stride=N[,summary=N]"
    kind = Blocks
    example = "sparse_fixed:stride=16,summary=2"

    def positions(self, query: Tensor, n_keys: Tensor, longest: int) -> Tensor:
        stride, summary, device = self.numbers.stride, self.numbers.summary, query.device
        block = (query // stride * stride)[..., None] + torch.arange(min(stride, longest), device=device)
        last = torch.arange(stride - summary, stride, device=device)
        summaries = (torch.arange(0, longest, stride, device=device)[:, None] + last).flatten()
        return torch.cat([block, summaries.expand(*query.shape, -1)], -1)
