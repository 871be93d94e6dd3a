"""Checkpoints at time intervals and on Ctrl-C: a killed training loses minutes, an interrupted one nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf, open_dict

from fairseq_lasformer.base.errors import INTERRUPTED
from fairseq_lasformer.plugin.patches import wrap

if TYPE_CHECKING:
    from fairseq.tasks import FairseqTask
    from fairseq.trainer import Trainer

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

    def _on_signal(self, *_: object) -> None:
        now = time.monotonic()
        if self.since is None:
            self.since = now
        elif now - self.since > _AGAIN:
            os._exit(INTERRUPTED)


interruption = Interruption()


def install() -> None:
    """Patch fairseq's training loop; without ``--save-interval-minutes`` and Ctrl-C nothing changes."""
    from fairseq_cli import train

    wrap(train, "validate_and_save", _saving)


class Saving:
    """A call of fairseq's ``validate_and_save``, made after every update, that also saves at time intervals."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.last = clock, clock()

    def __call__(
        self,
        original: Callable[..., Any],
        cfg: DictConfig,
        trainer: Trainer,
        task: FairseqTask,
        *args: Any,
        **more: Any,
    ) -> Any:
        minutes = getattr(task.cfg, "save_interval_minutes", 0)
        # workers' clocks differ, but all of them must save, or none
        alone = trainer.data_parallel_world_size == 1
        stopping = alone and interruption.since is not None
        due = alone and 0 < minutes <= (self.clock() - self.last) / 60
        if due or stopping:
            cfg = DictConfig(OmegaConf.to_container(cfg), flags={"allow_objects": True})
            with open_dict(cfg):
                cfg.checkpoint.save_interval_updates = 1
                cfg.dataset.disable_validation = True
            self.last = self.clock()
        done = original(cfg, trainer, task, *args, **more)
        if stopping:
            print(f"interrupted: saved after {trainer.get_num_updates()} updates", flush=True)
            raise SystemExit(INTERRUPTED)
        return done


_saving = Saving()
