"""How a model runs, as opposed to what it is: nothing here changes a weight or is saved with a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

from fairseq_lasformer.nn.moe.dispatch import ExpertGroup


class RunOptions(NamedTuple):
    """Handed down by the task when it builds a model.

    Attributes:
        backend: what selects and attends in inference (``--attention-backend``): one of :data:`ops.BACKENDS`.
        cuda_graph: whether decoding steps are captured in a CUDA graph (``--cuda-graph``).
        expert_group: the workers that share the experts of mixtures; None where every worker holds all of them.
    """

    backend: str = "auto"
    cuda_graph: bool = False
    expert_group: ExpertGroup | None = None


class SupervisionOptions(NamedTuple):
    """How the selectors are supervised (eq 4-6 of arXiv 2309.14174).

    Attributes:
        kl: ``forward``, KL(attention || selector), or ``reverse`` (``--select-kl``).
        target: ``live`` or ``detached``: whether the supervision also trains the attention (``--select-target``).
    """

    kl: str = "forward"
    target: str = "live"
