"""The only file about gaps between fairseq and today's torch, numpy and Python."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, file_io
from fairseq.data.iterators import BackgroundConsumer
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.models.ema.ema import EMA
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import atomic_copy
from fairseq_lasformer.inference.checkpoints import SAFE_GLOBALS, load
from fairseq_lasformer.plugin import runs

logger = logging.getLogger(__name__)


def install() -> None:
    """See :func:`fairseq_lasformer.plugin.register`."""
    # the state that worker 0 sends to the others
    torch.serialization.add_safe_globals([*SAFE_GLOBALS, _TensorPlaceholder])
    if getattr(checkpoint_utils, "_lasformer", False):
        return
    checkpoint_utils._lasformer = True
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    checkpoint_utils.load_model_ensemble_and_task = _fitting(checkpoint_utils.load_model_ensemble_and_task)
    checkpoint_utils.load_checkpoint = _restarting(checkpoint_utils.load_checkpoint)
    # fairseq copies the newest checkpoint to checkpoint_last.pt in place: a kill meanwhile would end the run for good
    file_io.PathManager.copy = staticmethod(_copy)
    EMA.__init__ = _copying_integers(EMA.__init__)
    atexit.register(_stop_readers)


def errors_in_one_line() -> None:
    """For fairseq's own tools: bad input ends in one line, as in ours. A user's script keeps its tracebacks."""
    sys.excepthook = _one_line(sys.excepthook)
    # or Hydra keeps errors to itself and advises setting this
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")


def _one_line(previous: Callable[..., None]) -> Callable[..., None]:
    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        message = _plain(error)
        if message is None:
            previous(kind, error, trace)
        else:
            logging.shutdown()
            print(f"error: {message}", file=sys.stderr)

    return hook


def _plain(error: BaseException) -> str | None:
    """One line for an error that a user can mend; None for any other."""
    text = str(error)
    if isinstance(error, InputError):
        return text
    if isinstance(error, OmegaConfBaseException):
        return " ".join(line.strip() for line in text.splitlines() if line.strip())
    if text.startswith("Cannot load model parameters from checkpoint"):
        return f"{text} Resume with the run's own architecture, or choose another --save-dir"
    if "not compiled with CUDA" in text or "Found no NVIDIA driver" in text:
        return "there is no GPU here: leave --fp16 and --bf16 out, and train and translate with --cpu"
    return None


def load_checkpoint_to_cpu(
    path: str, arg_overrides: dict[str, Any] | None = None, load_on_all_ranks: bool = False
) -> dict[str, Any]:
    """In place of fairseq's function of this name: the same result, from a file that is checked before it is used.

    fairseq's leaves it to torch's default, which an environment variable switches off, whether a pickle may run code,
    and evaluates strings of the settings. Raises InputError as :func:`checkpoints.load`.
    """
    state = load(file_io.PathManager.get_local_path(path))
    overrides = arg_overrides or {}
    if state.get("args") is not None:
        for name, value in overrides.items():
            setattr(state["args"], name, value)
    if state.get("cfg") is not None:
        state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        checkpoint_utils.overwrite_args_by_name(state["cfg"], overrides)
    try:
        return checkpoint_utils._upgrade_state_dict(state)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as e:
        raise InputError(f"{path}: not a checkpoint that fairseq can use ({type(e).__name__}: {e})") from e


def _fitting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_model_ensemble_and_task(filenames: Sequence[str], *args: Any, **kwargs: Any) -> Any:
        try:
            return original(filenames, *args, **kwargs)
        except RuntimeError as e:
            if "loading state_dict" not in str(e):
                raise
            first = next((line.strip() for line in str(e).splitlines()[1:] if line.strip()), "")
            raise InputError(
                f"{', '.join(map(str, filenames))}: does not fit the data or the options given ({first}); use the data "
                "it was trained on"
            ) from e

    return load_model_ensemble_and_task


def _restarting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_checkpoint(cfg: Any, trainer: Any, **kwargs: Any) -> Any:
        """Restores a training: alone in its folder, from a whole checkpoint, and not at all where it has finished."""
        if trainer.data_parallel_rank == 0 and not cfg.no_save:
            runs.claim(Path(cfg.save_dir))
            runs.mend(Path(cfg.save_dir), str(trainer.checkpoint_suffix or ""))
        if trainer.data_parallel_world_size > 1:
            torch.distributed.barrier(group=trainer.data_parallel_process_group)

        def load_state(*args: Any, **options: Any) -> dict[str, Any]:
            state = load_checkpoint_to_cpu(*args, **options)
            trainer.task.load_state_dict(state.get("task_state") or {})  # fairseq does so for inference alone
            return state

        checkpoint_utils.load_checkpoint_to_cpu = load_state
        try:
            restored = original(cfg, trainer, **kwargs)
        finally:
            checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
        done, most = trainer.get_num_updates(), trainer.cfg.optimization.max_update
        if 0 < most <= done:
            # fairseq looks at the limit behind an update only: it would train on by one each time it is called
            logger.info("training has finished: %d of %d updates are done", done, most)
            trainer.cfg.optimization.max_epoch = -1
        return restored

    return load_checkpoint


def _stop_readers() -> None:
    """Ends fairseq's threads that read batches ahead: Python kills them at exit in the middle of torch's code, and the
    process then aborts now and then, all its work done."""
    end = time.monotonic() + 5.0
    for thread in threading.enumerate():
        if isinstance(thread, BackgroundConsumer):
            thread._max_len = 0  # the last batch it puts into the queue
            while thread.is_alive() and time.monotonic() < end:
                with contextlib.suppress(queue.Empty):
                    thread._queue.get(timeout=0.05)


def _copy(source: str, target: str, overwrite: bool = False) -> bool:
    if not overwrite and os.path.exists(target):
        return False
    atomic_copy(source, target)
    return True


def _copying_integers(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def __init__(self: Any, model: Any, config: Any, device: Any = None, skip_keys: set[str] | None = None) -> None:
        """Integers (kappa) are taken over by the moving average, not averaged."""
        integers = {name for name, t in model.state_dict().items() if not t.is_floating_point()}
        original(self, model, config, device, integers | (skip_keys or set()))

    return __init__
