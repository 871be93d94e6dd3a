"""Triton's kernels are compiled while fairseq loads a training's checkpoint and data, not in its first batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fairseq_lasformer.machine import cores
from fairseq_lasformer.nn.attentions.selected import SelectedAttention
from fairseq_lasformer.ops import ahead
from fairseq_lasformer.plugin.patches import wrap

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel
    from fairseq.trainer import Trainer
    from omegaconf import DictConfig

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds to wait for the kernels once the data are loaded; what is missing then is compiled when it is needed."""


def install() -> None:
    """Patch fairseq-train; without a GPU nothing changes."""
    from fairseq_cli import train

    wrap(train, "main", _with_helper)


def _with_helper(original: Callable[..., Any], cfg: DictConfig, *args: Any, **more: Any) -> Any:
    """Train with a helper, which loads what it needs while fairseq builds the model, and compiles while data load."""
    first = not cfg.distributed_training.device_id  # of the GPUs of a machine
    if cfg.common.cpu or not first or not torch.cuda.is_available() or torch.version.hip:
        return original(cfg, *args, **more)
    from fairseq import checkpoint_utils

    helper = ahead.Helper(ahead.Target.of(torch.device("cuda", cfg.distributed_training.device_id)))
    load = checkpoint_utils.load_checkpoint
    checkpoint_utils.load_checkpoint = partial(_while_compiling, helper, load)
    try:
        return original(cfg, *args, **more)
    finally:
        checkpoint_utils.load_checkpoint = load
        helper.end()


def _while_compiling(
    helper: ahead.Helper, original: Callable[..., Any], cfg: DictConfig, trainer: Trainer, *args: Any, **more: Any
) -> Any:
    """Load a checkpoint and the data while the helper compiles; wait for it."""
    model, task = trainer.get_model(), trainer.task.cfg
    ours = hasattr(model, "patterns") and str(getattr(task, "attention_backend", "auto")) in ("auto", "triton")
    if ours:
        dtype = torch.float16 if trainer.cfg.common.amp else next(model.parameters()).dtype
        longest, n = max(task.max_source_positions, task.max_target_positions), ahead.processes(cores())
        logger.info("Triton: compiling the kernels that are not in its cache yet, in %d processes", n)
        helper.compile(attentions_of(model, dtype), longest, n)
    done = original(cfg, trainer, *args, **more)
    if ours:
        found = helper.wait(PATIENCE)
        if found is None:
            logger.info("Triton: some kernels will be compiled when they are needed")
        else:
            logger.info("Triton: %d kernels are ready, %.1f seconds after the start", *found)
    return done


def attentions_of(model: BaseFairseqModel, dtype: torch.dtype) -> list[ahead.Attentions]:
    """Return what the kernels of a model's attentions depend on, each once."""
    cfg, gradient = model.cfg, str(model.cfg.select_gradient)
    select = int(cfg.select_dim) if any(True for _ in model.selectors()) else 0
    of_loss = gradient != "none", gradient != "straight-through", str(cfg.select_kl), str(cfg.select_target) == "live"
    attentions = (module for module in model.modules() if isinstance(module, SelectedAttention))
    sizes = dict.fromkeys((a.num_heads, a.head_dim, float(a.dropout_module.p)) for a in attentions)
    name = str(dtype).removeprefix("torch.")
    return [ahead.Attentions(heads, width, select, name, dropout, *of_loss) for heads, width, dropout in sizes]
