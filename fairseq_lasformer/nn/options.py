"""Run-time options of a model: none of them changes a weight or is saved with a checkpoint."""

import random
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.nn.moe.dispatch import ExpertGroup
from fairseq_lasformer.ops import EVERY_ROW, AttentionMask, RowSample, rotate

SHORTEST = 256
LONGEST_STRIDE = 32
ABOVE = 0.35
"""On CPUs, kappa above which a selector learns from all queries: there, the attention itself costs more than that."""
PLACES = 2
"""On GPUs, number of first queries to draw from: each is another CUDA graph of a shape."""


class RunOptions(NamedTuple):
    """Options that the task passes to the model it builds."""

    backend: str = "auto"  # backend for inference (`--attention-backend`), one of `ops.BACKENDS`
    cuda_graph: bool = False  # whether decoding steps are captured in a CUDA graph (`--cuda-graph`)
    # the workers that share the experts of mixtures; None if every worker has all of them
    expert_group: ExpertGroup | None = None
    int8: bool = False  # whether linear layers decode in 8 bits (`--decode-dtype int8`)
    int8_cache: bool = False  # whether keys and values are kept in 8 bits in decoding (`--cache-dtype int8`)
    # whether to reject a model whose translations depend on more than their source (`--reproducible`)
    reproducible: bool = False


class RowSampling(NamedTuple):
    """Sampling of the queries that a selector learns from in an update: every n-th."""

    rows: int = 512  # minimum number of queries of a batch that a selector learns from; 0 for all
    above: float = ABOVE  # kappa above which it learns from all of them
    # number of the update, which seeds the draw of the first query: the same on every worker and in a recomputed pass
    update: int = 0
    places: int = 0  # number of different first queries, at equal distances; 0 for any

    def sample(self, n_batch: int, n_queries: int, kappa: float) -> RowSample:
        """Return the sample of a batch.

        Args:
            n_batch, n_queries: shape of the queries. Short examples are used in full, as they cost little.
        """
        if not self.rows or kappa > self.above or n_queries < SHORTEST:
            return EVERY_ROW
        stride = max(1, min(LONGEST_STRIDE, n_batch * n_queries // self.rows))
        places = min(self.places, stride) or stride
        return RowSample(random.Random(self.update).randrange(places) * stride // places, stride)


EVERY_QUERY = RowSampling(0)


class Pass(NamedTuple):
    """The input of an attention, and of its pattern, in a full pass."""

    query: Tensor  # [B, Q, d], the input of the attention sub-layer (already normalised, if pre-norm)
    key: Tensor  # [B, K, d_key]; the same tensor object as `query` in self-attention
    mask: AttentionMask
    # whether the selection must be a form that supports attention dropout; otherwise, passes without gradients use the
    # fastest form
    as_mask: bool = False
    sampling: RowSampling = EVERY_QUERY  # which queries a learned pattern learns from
    # of the lines of queries and of keys, [B, Q or K, 8, 2], see `rotary.rotations`; None for none
    rotations: tuple[Tensor | None, Tensor | None] = (None, None)

    def rotated(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate heads of queries and keys, [B, H, Q or K, D], by the numbers of their lines."""
        of_queries, of_keys = (None if rotation is None else rotation[:, None] for rotation in self.rotations)
        return rotate(q, of_queries), rotate(k, of_keys)

    @property
    def memory(self) -> Tensor | None:
        """The keys' states in cross-attention; None in self-attention."""
        return None if self.key is self.query else self.key

    @property
    def fixes_sums(self) -> bool:
        """True if a reproducible pattern must sum in an order that depends on the row alone."""
        return not self.as_mask and not torch.is_grad_enabled()


class SupervisionOptions(NamedTuple):
    """Options of the selectors' supervision (eq 4-6 of arXiv 2309.14174)."""

    kl: str = "forward"  # `forward`, KL(attention || selector), or `reverse` (`--select-kl`)
    # `live` if the supervision also trains the attention, otherwise `detached` (`--select-target`)
    target: str = "live"
