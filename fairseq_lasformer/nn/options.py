"""Run-time options of a model: none of them changes a weight or is saved with a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

from fairseq_lasformer.nn.moe.dispatch import ExpertGroup


class RunOptions(NamedTuple):
    """Options that the task passes to the model it builds.

    Attributes:
        backend: backend for inference (``--attention-backend``), one of :data:`ops.BACKENDS`.
        cuda_graph: whether decoding steps are captured in a CUDA graph (``--cuda-graph``).
        expert_group: the workers that share the experts of mixtures; None if every worker holds all of them.
    """

    backend: str = "auto"
    cuda_graph: bool = False
    expert_group: ExpertGroup | None = None


class SupervisionOptions(NamedTuple):
    """How the selectors are supervised (eq 4-6 of arXiv 2309.14174).

    Attributes:
        kl: ``forward``, KL(attention || selector), or ``reverse`` (``--select-kl``).
        target: ``live`` if the supervision also trains the attention, otherwise ``detached`` (``--select-target``).
    """

    kl: str = "forward"
    target: str = "live"
