"""Expert parallelism in fairseq's trainer: gradient clipping, checkpoints, and rejection of incompatible settings.

fairseq supports parameters that differ between workers (``expert = True``): it neither averages nor broadcasts them.
This module adds their part of the gradient norm, and saves one ordinary checkpoint for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from fairseq import checkpoint_utils, utils
from fairseq.distributed import utils as distributed_utils
from torch import Tensor

from fairseq_lasformer.base.cannot import refuse
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import State
from fairseq_lasformer.nn.moe.dispatch import ExpertGroup
from fairseq_lasformer.plugin.patches import wrap

if TYPE_CHECKING:
    from fairseq.optim import FairseqOptimizer
    from fairseq.trainer import Trainer
    from omegaconf import DictConfig


def make_expert_group(n_experts: int) -> ExpertGroup | None:
    """Return the group of fairseq's data-parallel workers that share the experts; None if there is only one.

    Raises:
        InputError: the model has no experts, or their number is not divisible by the number of workers.
    """
    size = distributed_utils.get_data_parallel_world_size() if dist.is_initialized() else 1
    if not n_experts:
        raise InputError("--expert-parallel: the model has no experts (--moe-experts, or --arch lasformer_moe)")
    if n_experts % size:
        raise InputError(f"--expert-parallel: {n_experts} experts (--moe-experts) do not divide among {size} workers")
    if size == 1:
        return None
    group = distributed_utils.get_data_parallel_group()
    return ExpertGroup(group, distributed_utils.get_data_parallel_rank(), size)


def install() -> None:
    """Patch fairseq; called by :func:`plugin.register`. Nothing changes without expert parallelism."""
    wrap(checkpoint_utils, "save_checkpoint", _save)
    wrap(checkpoint_utils, "load_checkpoint", _load)
    wrap(utils, "clip_grad_norm_", _clip)


def check(cfg: DictConfig) -> None:
    """Reject settings under which the workers' experts would be averaged, overwritten or ignored.

    Raises:
        InputError: names the setting and its replacement.
    """
    distributed, common = cfg.distributed_training, cfg.common
    # fairseq does not flatten gradients with bf16 or in its memory-efficient modes
    flattened = common.fp16 and not common.bf16 and not common.memory_efficient_fp16
    settings = {
        "another --ddp-backend": distributed.ddp_backend not in ("legacy_ddp", "no_c10d"),
        "--fp16 that flattens gradients": flattened and not common.fp16_no_flatten_grads,
        "--amp": common.amp,
        "--store-ema": cfg.ema.store_ema,
        "--use-bmuf": cfg.optimization.use_bmuf,
        "--zero-sharding": distributed.zero_sharding != "none",
        "--optimizer composite": getattr(cfg.optimizer, "_name", "") == "composite",
    }
    refuse("--expert-parallel", settings)


def _experts(params: Iterable[Any]) -> list[Any]:
    return [p for p in params if hasattr(p, "expert")]


def _params(optimizer: FairseqOptimizer) -> list[Any]:
    """Return the parameters of a torch optimizer in the order in which its state numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _clip(original: Callable, params: Any, max_norm: float, aggregate_norm_fn: Callable | None = None) -> Tensor:
    """Clip gradients as fairseq does, counting the experts of each worker once in the norm."""
    params = [params] if isinstance(params, Tensor) else list(params)
    experts = [p.grad.detach() for p in _experts(params) if p.grad is not None]
    if not experts:
        return original(params, max_norm, aggregate_norm_fn)
    squared = torch.stack([g.float().norm() ** 2 for g in experts]).sum()
    dist.all_reduce(squared, group=distributed_utils.get_data_parallel_group())
    others = [p for p in params if not hasattr(p, "expert")]
    norm = (original(others, 0, aggregate_norm_fn).float() ** 2 + squared).sqrt()
    if max_norm > 0:
        coefficient = (float(max_norm) / (norm + 1e-6)).clamp(max=1)
        torch._foreach_mul_([p.grad.detach() for p in params if p.grad is not None], coefficient)
    return norm


def _whole(local: Tensor, rank: int, size: int) -> Tensor | None:
    """Gather the parts of one tensor from all workers on the CPU of worker 0; return None on the others."""
    parts = [torch.empty_like(local) for _ in range(size)] if rank == 0 else None
    dist.gather(local.contiguous(), parts, dst=0)
    return None if parts is None else torch.cat([p.cpu() for p in parts])


def _expert_states(optimizer: FairseqOptimizer) -> list[tuple[int, str, Tensor]]:
    """Return the expert entries of a torch optimizer's state: index of the parameter, key, value [n / W, …]."""
    return [
        (i, key, value)
        for i, p in enumerate(_params(optimizer))
        if hasattr(p, "expert")
        for key, value in sorted(optimizer.state.get(p, {}).items())
        if isinstance(value, Tensor) and value.dim() > 0
    ]


def _save(original: Callable, cfg: DictConfig, trainer: Trainer, *args: Any) -> Any:
    """Save a checkpoint on all workers: worker 0 writes all workers' experts into one ordinary file."""
    named = [(name, p) for name, p in trainer.get_model().named_parameters() if hasattr(p, "expert")]
    if not named or cfg.no_save:
        return original(cfg, trainer, *args)
    rank, size = trainer.data_parallel_rank, trainer.data_parallel_world_size
    weights = {name: _whole(p.detach(), rank, size) for name, p in named}
    states: list[tuple[int, str, Tensor | None]] = []
    if not cfg.no_save_optimizer_state:
        states = [(i, k, _whole(v, rank, size)) for i, k, v in _expert_states(trainer.optimizer.optimizer)]

    def state_dict() -> dict[str, Any]:
        state = type(trainer).state_dict(trainer)
        state["model"] = {**state["model"], **weights}
        if states:
            optimizer = state["last_optimizer_state"]
            moments = {i: dict(values) for i, values in optimizer["state"].items()}  # copied: these are the optimizer's
            for i, key, value in states:
                moments[i][key] = value
            state["last_optimizer_state"] = {**optimizer, "state": moments}
        return state

    trainer.state_dict = state_dict
    try:
        return original(cfg, trainer, *args)
    finally:
        del trainer.state_dict


def _load(original: Callable, cfg: DictConfig, trainer: Trainer, **kwargs: Any) -> Any:
    """Load a checkpoint with checked settings; each worker keeps the optimizer state of its own experts.

    The weights are sliced in :class:`Experts`.
    """
    if not _experts(trainer.get_model().parameters()):
        return original(cfg, trainer, **kwargs)
    check(trainer.cfg)
    rank, size = trainer.data_parallel_rank, trainer.data_parallel_world_size

    def own_experts(params: list[Any], state: State) -> dict[str, Any]:
        moments = dict(state["state"])
        for i, p in enumerate(params):
            if hasattr(p, "expert") and i in moments:
                moments[i] = {
                    key: value.chunk(size)[rank].clone() if isinstance(value, Tensor) and value.dim() > 0 else value
                    for key, value in moments[i].items()
                }
        return {**state, "state": moments}

    def build_optimizer() -> None:
        type(trainer)._build_optimizer(trainer)
        optimizer = trainer.optimizer
        load = optimizer.load_state_dict

        # fairseq's method, not torch's hook: memory-efficient half precision sets the state directly
        def load_state_dict(state: State, overrides: Any = None) -> None:
            load(own_experts(_params(optimizer.optimizer), state), overrides)

        optimizer.load_state_dict = load_state_dict

    trainer._build_optimizer = build_optimizer
    try:
        return original(cfg, trainer, **kwargs)
    finally:
        del trainer._build_optimizer
