"""Checkpoints at time intervals and on Ctrl-C: a killed training loses minutes, an interrupted one nothing."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from omegaconf import OmegaConf, open_dict

from fairseq_lasformer.errors import INTERRUPTED

_AGAIN = 1.0  # seconds within which a second signal is the same key press, passed on by a parent


class Interruption:
    """Handler that remembers Ctrl-C until the update is done; a second one ends the process at once."""

    def __init__(self) -> None:
        self.since: float | None = None

    def listen(self) -> None:
        """Take over SIGINT, unless a program has already done so; called when training begins."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, *_: Any) -> None:
        now = time.monotonic()
        if self.since is None:
            self.since = now
        elif now - self.since > _AGAIN:
            os._exit(INTERRUPTED)


interruption = Interruption()


def install() -> None:
    """Patch fairseq's training loop; without ``--save-interval-minutes`` and Ctrl-C nothing changes."""
    from fairseq_cli import train

    if not hasattr(train.validate_and_save, "_by_the_clock"):
        train.validate_and_save = _by_the_clock(train.validate_and_save, time.monotonic)


def _by_the_clock(original: Callable[..., Any], clock: Callable[[], float]) -> Callable[..., Any]:
    """Wrap fairseq's ``validate_and_save``, called after every update, so that it also saves at time intervals."""
    last = clock()

    @functools.wraps(original)
    def validate_and_save(cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal last
        minutes = getattr(task.cfg, "save_interval_minutes", 0)
        # workers' clocks differ, but all of them must save, or none
        alone = trainer.data_parallel_world_size == 1
        stopping = alone and interruption.since is not None
        due = alone and 0 < minutes <= (clock() - last) / 60
        if due or stopping:
            cfg = OmegaConf.create(OmegaConf.to_container(cfg), flags={"allow_objects": True})
            with open_dict(cfg):
                cfg.checkpoint.save_interval_updates = 1
                cfg.dataset.disable_validation = True
            last = clock()
        done = original(cfg, trainer, task, epoch_itr, *args, **kwargs)
        if stopping:
            print(f"interrupted: saved after {trainer.get_num_updates()} updates", flush=True)
            raise SystemExit(INTERRUPTED)
        return done

    validate_and_save._by_the_clock = True  # type: ignore[attr-defined]
    return validate_and_save
