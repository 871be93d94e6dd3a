"""Compatibility fixes for fairseq on current torch, numpy and Python; all of them."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fairseq import checkpoint_utils, file_io
from fairseq.data.iterators import BackgroundConsumer
from fairseq.distributed import utils as distributed_utils
from fairseq.distributed.utils import _TensorPlaceholder
from fairseq.models.ema.ema import EMA
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.errors import OmegaConfBaseException
from omegaconf.nodes import AnyNode

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_copy
from fairseq_lasformer.base.records import State
from fairseq_lasformer.checkpoints.loading import SAFE_GLOBALS, chosen, load
from fairseq_lasformer.plugin.patches import run_lock, wrap
from fairseq_lasformer.plugin.task_config import DocumentTranslationConfig

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel
    from fairseq.tasks import FairseqTask
    from fairseq.trainer import Trainer

logger = logging.getLogger(__name__)


def install() -> None:
    """Install the patches; see :func:`fairseq_lasformer.plugin.register`."""
    # types in the state that worker 0 broadcasts; its settings have passed checkpoints.load by then
    torch.serialization.add_safe_globals(
        [*SAFE_GLOBALS, _TensorPlaceholder, DictConfig, ListConfig, ContainerMetadata, Metadata, AnyNode, Any]
    )
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    wrap(checkpoint_utils, "load_model_ensemble_and_task", _load_fitting)
    wrap(checkpoint_utils, "load_checkpoint", _restart)
    # fairseq copies the newest checkpoint to checkpoint_last.pt in place: a kill during the copy would leave it corrupt
    file_io.PathManager.copy = staticmethod(_copy)
    wrap(EMA, "__init__", _copy_integers)
    wrap(distributed_utils, "infer_init_method", _join_torchrun)
    wrap(distributed_utils, "_infer_single_node_init", _with_gpus)
    atexit.unregister(_stop_readers)
    atexit.register(_stop_readers)


def errors_in_one_line() -> None:
    """Make fairseq's own tools report bad input in one line, as ours do; user scripts keep their tracebacks."""
    sys.excepthook = _one_line(sys.excepthook)
    # otherwise Hydra hides the error and advises setting this
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
    """Return a one-line message for an error that the user can fix; None for any other."""
    text = str(error)
    if isinstance(error, InputError):
        return text
    if isinstance(error, OmegaConfBaseException):
        return " ".join(line.strip() for line in text.splitlines() if line.strip())
    if text.startswith("Cannot load model parameters from checkpoint"):
        return f"{text} Resume with the run's own architecture, or choose another --save-dir"
    if "not compiled with CUDA" in text or "Found no NVIDIA driver" in text:
        return "there is no GPU here: leave out --fp16 and --bf16, and train and translate with --cpu"
    return None


def load_checkpoint_to_cpu(
    path: str, arg_overrides: dict[str, Any] | None = None, load_on_all_ranks: bool = False
) -> State:
    """Load a checkpoint like fairseq's function of this name, but check the file before using it.

    In fairseq's version, torch's default decides whether a pickle may run code, and an environment variable can
    override it. It also evaluates strings from the settings.

    Raises:
        InputError: see :func:`checkpoints.load`.
    """
    state = load(file_io.PathManager.get_local_path(path))
    overrides = arg_overrides or {}
    if state.get("args") is not None:
        for name, value in overrides.items():
            setattr(state["args"], name, value)
    if state.get("cfg") is not None:
        state["cfg"] = OmegaConf.create(state["cfg"], flags={"allow_objects": True})
        checkpoint_utils.overwrite_args_by_name(state["cfg"], overrides)
        _add_new_options(state["cfg"].get("task"), overrides)
    try:
        return checkpoint_utils._upgrade_state_dict(state)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as e:
        raise InputError(f"{path}: not a checkpoint that fairseq can use ({type(e).__name__}: {e})") from e


def _add_new_options(task: FairseqTask, overrides: dict[str, Any]) -> None:
    """Set options of our task that a checkpoint of an older version lacks; fairseq would ignore them."""
    if not OmegaConf.is_config(task) or task.get("_name") != "document_translation":
        return
    known = {f.name for f in fields(DocumentTranslationConfig)}
    with open_dict(task):
        for name in known & overrides.keys():
            task[name] = overrides[name]


def _load_fitting(original: Callable[..., Any], filenames: Sequence[str], *args: Any, **kwargs: Any) -> Any:
    try:
        return original(filenames, *args, **kwargs)
    except InputError:
        raise
    except (OmegaConfBaseException, TypeError, ValueError, AttributeError, KeyError, AssertionError) as e:
        reason = " ".join(f"{type(e).__name__}: {e}".split())[:200]
        raise InputError(f"{', '.join(map(str, filenames))}: its settings cannot be used ({reason})") from e
    except RuntimeError as e:
        if "not supported" in str(e):
            raise InputError(f"{', '.join(map(str, filenames))}: its settings cannot be used ({e})") from e
        if "loading state_dict" not in str(e):
            raise
        first = next((line.strip() for line in str(e).splitlines()[1:] if line.strip()), "")
        raise InputError(
            f"{', '.join(map(str, filenames))}: does not match the given data or options ({first}); use the data "
            "it was trained on"
        ) from e


def _restart(original: Callable[..., Any], cfg: DictConfig, trainer: Trainer, **kwargs: Any) -> Any:
    """Restore a training run; a finished one ends at once.

    The process first claims the folder for itself and repairs a damaged last checkpoint.
    """
    if trainer.data_parallel_rank == 0 and not cfg.no_save:
        run_lock.claim(Path(cfg.save_dir))
        run_lock.mend(Path(cfg.save_dir), str(trainer.checkpoint_suffix or ""))
    if trainer.data_parallel_world_size > 1:
        torch.distributed.barrier(group=trainer.data_parallel_process_group)
    last = Path(cfg.save_dir) / f"checkpoint_last{trainer.checkpoint_suffix or ''}.pt"
    _find_beginning(cfg, last)
    begins = cfg.reset_meters or (cfg.finetune_from_model is not None and not last.exists())

    def load_state(*args: Any, **options: Any) -> State:
        state = load_checkpoint_to_cpu(*args, **options)
        trainer.task.load_state_dict(state.get("task_state") or {})  # fairseq does this for inference only
        if begins and isinstance(state.get("extra_state"), dict):
            # otherwise --stop-time-hours counts the time of the training that this one starts from
            state["extra_state"].pop("previous_training_time", None)
        if trainer.cfg.ema.store_ema and isinstance(state.get("extra_state"), dict):
            # without a moving average in the checkpoint, it starts from the weights; fairseq fails here
            state["extra_state"].setdefault("ema", state["model"])
        return state

    checkpoint_utils.load_checkpoint_to_cpu = load_state
    try:
        restored = original(cfg, trainer, **kwargs)
    finally:
        checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
    done, most = trainer.get_num_updates(), trainer.cfg.optimization.max_update
    if 0 < most <= done:
        # fairseq checks the limit only after an update: every restart would add another
        logger.info("training has finished: %d of %d updates are done", done, most)
        trainer.cfg.optimization.max_epoch = -1
    return restored


def _find_beginning(cfg: DictConfig, last: Path) -> None:
    """Find the checkpoint that a training starts from; fairseq ignores what is no file, and trains from scratch.

    Args:
        cfg: fairseq's ``checkpoint`` options; a folder is replaced by the checkpoint in it.
        last: last checkpoint of the run itself, which goes first.

    Raises:
        InputError: the checkpoint does not exist.
    """
    names = ["restore_file"] if cfg.restore_file != "checkpoint_last.pt" else []
    names += [name for name in ("finetune_from_model", "continue_once") if cfg.get(name) and not last.exists()]
    for name in names:
        try:
            cfg[name] = str(chosen(Path(cfg[name])))
        except InputError as e:
            raise InputError(f"--{name.replace('_', '-')} {e}") from e


def _join_torchrun(original: Callable[..., Any], cfg: DictConfig, *args: Any, **kwargs: Any) -> None:
    """Join torchrun's other workers even without a GPU.

    fairseq starts one worker per GPU: on CPUs, each would train by itself.
    """
    several = int(os.environ.get("WORLD_SIZE") or 1) > 1 and {"MASTER_ADDR", "MASTER_PORT", "RANK"} <= {*os.environ}
    if not several or torch.cuda.device_count() or cfg.distributed_init_method is not None:
        original(cfg, *args, **kwargs)
        return
    cfg.distributed_init_method, cfg.distributed_no_spawn = "env://", True
    cfg.distributed_world_size, cfg.distributed_rank = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK"))
    cfg.distributed_backend = "gloo"


def _with_gpus(original: Callable[..., Any], cfg: DictConfig) -> None:
    """Refuse workers that fairseq itself would start, and that have no GPU: it only asserts that they have."""
    workers = cfg.distributed_world_size
    if workers > torch.cuda.device_count():
        raise InputError(
            f"--distributed-world-size {workers}: fairseq starts workers only where each has a GPU; start them with "
            f"torchrun --nproc-per-node {workers} and fairseq-train's path, without this option (docs/reproduce.md)"
        )
    original(cfg)


def _stop_readers() -> None:
    """Stop fairseq's prefetching threads.

    Python kills them at exit inside torch's code, which sometimes aborts the process although all its work is done.
    """
    end = time.monotonic() + 5.0
    for thread in threading.enumerate():
        if isinstance(thread, BackgroundConsumer):
            thread._max_len = 0  # makes the current batch the last one
            while thread.is_alive() and time.monotonic() < end:
                with contextlib.suppress(queue.Empty):
                    thread._queue.get(timeout=0.05)


def _copy(source: str, target: str, overwrite: bool = False) -> bool:
    if not overwrite and os.path.exists(target):
        return False
    atomic_copy(source, target)
    return True


def _copy_integers(
    original: Callable[..., Any],
    self: Any,
    model: BaseFairseqModel,
    config: Any,
    device: Any = None,
    skip_keys: set[str] | None = None,
) -> None:
    """Copy integers (kappa) to the moving average instead of averaging them."""
    integers = {name for name, t in model.state_dict().items() if not t.is_floating_point()}
    original(self, model, config, device, integers | (skip_keys or set()))
