"""The expert optimizer of arXiv 1701.06538, appendix D, combined with fairseq's Adam for all other parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from fairseq.optim import register_optimizer
from fairseq.optim.adam import Adam, FairseqAdam, FairseqAdamConfig
from torch import Tensor

from fairseq_lasformer.base.errors import InputError

if TYPE_CHECKING:
    from fairseq.optim import FairseqOptimizer
    from omegaconf import DictConfig


@contextmanager
def restricted(optimizer: FairseqOptimizer, groups: list[dict[str, Any]]) -> Iterator[None]:
    """Restrict an optimizer to some of its groups for one step."""
    every, optimizer.param_groups = optimizer.param_groups, groups
    try:
        yield
    finally:
        optimizer.param_groups = every


class ExpertAdam(Adam):
    """Adam; for expert weights, without a first moment (beta1 = 0) and with a factored second moment.

    Only the row and column means of each expert's second moment v [n, d, h] are stored: d + h numbers instead of d h. v
    is estimated as row column / mean(row).

    Args:
        params: parameters whose ``param_group`` is ``"expert"`` are factored (over their last two dimensions).
        kwargs: as in fairseq's Adam; learning rate, beta2, eps and weight decay apply to all parameters.
    """

    param_groups: list[dict[str, Any]]

    def __init__(self, params: Iterable[Tensor], **kwargs: Any) -> None:
        params = list(params)
        experts = [p for p in params if getattr(p, "param_group", "") == "expert"]
        others = [p for p in params if getattr(p, "param_group", "") != "expert"]
        groups = [{"params": p, "factored": p is experts} for p in (others, experts) if p]
        super().__init__(groups, **kwargs)

    def step(self, closure: Callable | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters once."""
        with restricted(self, [g for g in self.param_groups if not g["factored"]]):
            loss = super().step(closure)
        for group in self.param_groups:
            if group["factored"]:
                for p in group["params"]:
                    if p.grad is not None:
                        self._factored_step(p, group)
        return loss

    @torch.no_grad()
    def _factored_step(self, p: Tensor, group: dict[str, Any]) -> None:
        beta2, state, grad = group["betas"][1], self.state[p], p.grad.float()  # type: ignore[union-attr]
        if not state:
            state["step"] = 0
            state["row"] = grad.new_zeros(grad.shape[:-1])
            state["column"] = grad.new_zeros(*grad.shape[:-2], grad.shape[-1])
        state["step"] += 1
        for key in ("row", "column"):  # resuming a memory-efficient run restores them in the checkpoint's dtype
            state[key] = state[key].to(grad)
        squared = grad.square()
        state["row"].lerp_(squared.mean(-1), 1 - beta2)
        state["column"].lerp_(squared.mean(-2), 1 - beta2)
        mean = state["row"].mean(-1, keepdim=True).clamp(min=torch.finfo(grad.dtype).tiny)
        # two factors, because their product could underflow when gradients are small
        correction = (1 - beta2 ** state["step"]) ** 0.5
        factor = (state["row"] / mean).sqrt()[..., None] * state["column"].sqrt()[..., None, :]
        update = grad / factor.div_(correction).add_(group["eps"])
        if group["weight_decay"]:
            p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_((group["lr"] * update).to(p.dtype))


@register_optimizer("expert_adam", dataclass=FairseqAdamConfig)
class FairseqExpertAdam(FairseqAdam):
    """``--optimizer expert_adam``: :class:`ExpertAdam` with the options of fairseq's Adam."""

    def __init__(self, cfg: DictConfig, params: Iterable[Tensor]) -> None:
        super().__init__(cfg, params := list(params))
        if not any(getattr(p, "param_group", "") == "expert" for p in params):
            raise InputError(
                "--optimizer expert_adam finds no experts: the model has none (--moe-experts), or half precision has "
                "flattened them (add --fp16-no-flatten-grads)"
            )
        self._optimizer = ExpertAdam(params, **self.optimizer_config)
