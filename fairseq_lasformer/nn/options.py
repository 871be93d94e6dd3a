"""Run-time options of a model: none of them changes a weight or is saved with a checkpoint."""

import random
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_lasformer.nn.moe.dispatch import ExpertGroup
from fairseq_lasformer.ops import EVERY_ROW, AttentionMask, RowSample

SHORTEST = 256
LONGEST_STRIDE = 32
ABOVE = 0.35
"""On CPUs, kappa above which a selector learns from all queries: there, the attention itself costs more than that."""
PLACES = 2
"""On GPUs, number of first queries to draw from: each is another CUDA graph of a shape."""


class RunOptions(NamedTuple):
    """Options that the task passes to the model it builds.

    Attributes:
        backend: backend for inference (``--attention-backend``), one of :data:`ops.BACKENDS`.
        cuda_graph: whether decoding steps are captured in a CUDA graph (``--cuda-graph``).
        expert_group: the workers that share the experts of mixtures; None if every worker has all of them.
        int8: whether linear layers decode in 8 bits (``--decode-dtype int8``).
        int8_cache: whether keys and values are kept in 8 bits in decoding (``--cache-dtype int8``).
        reproducible: whether to reject a model whose translations depend on more than their source
            (``--reproducible``).
    """

    backend: str = "auto"
    cuda_graph: bool = False
    expert_group: ExpertGroup | None = None
    int8: bool = False
    int8_cache: bool = False
    reproducible: bool = False


class RowSampling(NamedTuple):
    """Sampling of the queries that a selector learns from in an update: every n-th.

    Attributes:
        rows: minimum number of queries of a batch that a selector learns from; 0 for all.
        above: kappa above which it learns from all of them.
        places: number of different first queries, at equal distances; 0 for any.
        update: number of the update, which seeds the draw of the first query: the same on every worker and in a
            recomputed pass.
    """

    rows: int = 512
    above: float = ABOVE
    update: int = 0
    places: int = 0

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
    """The input of an attention, and of its pattern, in a full pass.

    Attributes:
        query: [B, Q, d], the input of the attention sub-layer (already normalised, if pre-norm).
        key: [B, K, d_key]; the same tensor object as ``query`` in self-attention.
        as_mask: whether the selection must be a form that supports attention dropout; otherwise, passes without
            gradients use the fastest form.
        sampling: which queries a learned pattern learns from.
    """

    query: Tensor
    key: Tensor
    mask: AttentionMask
    as_mask: bool = False
    sampling: RowSampling = EVERY_QUERY

    @property
    def memory(self) -> Tensor | None:
        """The keys' states in cross-attention; None in self-attention."""
        return None if self.key is self.query else self.key

    @property
    def fixes_sums(self) -> bool:
        """True if a reproducible pattern must sum in an order that depends on the row alone."""
        return not self.as_mask and not torch.is_grad_enabled()


class SupervisionOptions(NamedTuple):
    """Options of the selectors' supervision (eq 4-6 of arXiv 2309.14174).

    Attributes:
        kl: ``forward``, KL(attention || selector), or ``reverse`` (``--select-kl``).
        target: ``live`` if the supervision also trains the attention, otherwise ``detached`` (``--select-target``).
    """

    kl: str = "forward"
    target: str = "live"
