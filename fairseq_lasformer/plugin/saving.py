"""Checkpoints by the clock: a killed training loses minutes, however long an update takes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf, open_dict


def install() -> None:
    """Patch fairseq's training loop; nothing changes without ``--save-interval-minutes``."""
    from fairseq_cli import train

    if not hasattr(train.validate_and_save, "_by_the_clock"):
        train.validate_and_save = _by_the_clock(train.validate_and_save, time.monotonic)


def _by_the_clock(original: Callable[..., Any], clock: Callable[[], float]) -> Callable[..., Any]:
    """fairseq's ``validate_and_save``, which is called after every update, with saves that are due by the clock."""
    last = clock()

    @functools.wraps(original)
    def validate_and_save(cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal last
        minutes = getattr(task.cfg, "save_interval_minutes", 0)
        # several workers must all save, or none: their clocks differ
        due = 0 < minutes <= (clock() - last) / 60 and trainer.data_parallel_world_size == 1
        if due:
            cfg = OmegaConf.create(OmegaConf.to_container(cfg), flags={"allow_objects": True})
            with open_dict(cfg):
                cfg.checkpoint.save_interval_updates = 1
                cfg.dataset.disable_validation = True
            last = clock()
        return original(cfg, trainer, task, epoch_itr, *args, **kwargs)

    validate_and_save._by_the_clock = True  # type: ignore[attr-defined]
    return validate_and_save
