"""Muon for matrices, Adam for everything else: ``--optimizer muon``.

The update of a matrix is the orthogonal matrix nearest to its momentum (Jordan et al. 2024). It is scaled so that
AdamW's learning rate and weight decay carry over (Liu et al., arXiv 2502.16982, section 2.2). fairseq reads the
options' annotations at run time: no ``from __future__ import annotations`` here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.optim import register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from omegaconf import DictConfig
from torch import Tensor, nn

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.nn import bfloat16
from fairseq_lasformer.plugin.optimizers.expert_adam import restricted

EMBEDDING = "embedding"


def mark_embeddings(model: nn.Module) -> None:
    """Mark the word embeddings and the output projection: matrices that Muon is not meant for."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) or name.endswith("output_projection"):
            for p in module.parameters():
                p.param_group = EMBEDDING  # type: ignore[attr-defined]


def is_matrix(p: Tensor) -> bool:
    """Return whether a parameter is a matrix that multiplies activations."""
    return p.dim() == 2 and min(p.shape) > 1 and getattr(p, "param_group", "") != EMBEDDING


class Muon(torch.optim.Muon):
    """torch's Muon, computed in float32 on a processor without bfloat16 instructions.

    torch's version always uses bfloat16, which takes 30 times as long as float32 on a processor with only AVX2.
    """

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> float | None:  # type: ignore[override]
        """Update all matrices once."""
        if any(p.is_cuda for group in self.param_groups for p in group["params"]) or bfloat16.available():
            return super().step(closure)
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                momentum = state["momentum_buffer"]
                momentum.lerp_(p.grad, 1 - group["momentum"])
                update = p.grad.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
                scale = 0.2 * max(p.shape) ** 0.5  # match_rms_adamw
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(orthogonal(update, group["ns_coefficients"], group["ns_steps"]), alpha=-group["lr"] * scale)
        return loss


def orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int) -> Tensor:
    """Approximate the orthogonal matrix nearest to a matrix by Newton and Schulz's iteration.

    Args:
        matrix: [n, m].
        coefficients: of x, x xᵀ x and x xᵀ x xᵀ x in a step.
        steps: number of steps.
    """
    a, b, c = coefficients
    x = matrix.mT if matrix.size(0) > matrix.size(1) else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrix.size(0) > matrix.size(1) else x


class MuonWithAdam(Adam):
    """Muon for matrices other than embeddings, fairseq's Adam for all other parameters, at the same learning rate.

    Args:
        params: parameters; Muon updates those that :func:`is_matrix` accepts.
        momentum: Muon's momentum, Nesterov's.
        ns_steps: steps of Newton and Schulz's iteration.
        kwargs: as in fairseq's Adam; learning rate and weight decay apply to all parameters.
    """

    param_groups: list[dict[str, Any]]

    def __init__(self, params: Iterable[Tensor], momentum: float, ns_steps: int, **kwargs: Any) -> None:
        params = list(params)
        matrices = [p for p in params if is_matrix(p)]
        others = [p for p in params if not is_matrix(p)]
        self.muon = Muon(matrices, momentum=momentum, ns_steps=ns_steps, adjust_lr_fn="match_rms_adamw")
        values = {k: v for k, v in self.muon.param_groups[0].items() if k not in ("params", "lr", "weight_decay")}
        groups = [
            {"params": p, "matrices": p is matrices} | (values if p is matrices else {}) for p in (others, matrices)
        ]
        super().__init__([g for g in groups if g["params"]], **kwargs)

    def step(self, closure: Callable | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters once."""
        with restricted(self, [g for g in self.param_groups if not g["matrices"]]):
            loss = super().step(closure)
        self.muon.param_groups, self.muon.state = [g for g in self.param_groups if g["matrices"]], self.state
        self.muon.step()
        return loss


MOMENTUM, STEPS = 0.95, 5
"""Momentum of the matrices, and steps of the iteration that makes an update orthogonal: those of torch's ``Muon``."""


@dataclass
class MuonConfig(FairseqAdamConfig):
    """The options of fairseq's Adam."""


@register_optimizer("muon", dataclass=MuonConfig)
class FairseqMuon(FairseqAdam):
    """``--optimizer muon``: :class:`MuonWithAdam` with the options of fairseq's Adam for all other parameters."""

    def __init__(self, cfg: DictConfig, params: Iterable[Tensor]) -> None:
        super().__init__(cfg, params := list(params))
        if not any(getattr(p, "param_group", "") == EMBEDDING for p in params):
            raise InputError(
                "--optimizer muon cannot tell matrices from embeddings: it needs --task document_translation, and in "
                "half precision --fp16-no-flatten-grads"
            )
        self._optimizer = MuonWithAdam(params, MOMENTUM, STEPS, **self.optimizer_config)

    @property
    def supports_flat_params(self) -> bool:
        return False
