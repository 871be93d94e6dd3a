"""The only file about gaps between fairseq and today's torch, numpy and Python."""

from __future__ import annotations

import argparse
import collections
import functools
import logging
import pickle
import sys
import typing
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils
from fairseq.distributed.utils import _TensorPlaceholder
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode

from fairseq_lasformer.checkpoints import load
from fairseq_lasformer.documents import InputError

# What fairseq's own checkpoints hold besides tensors and plain containers (arguments of stock architectures, meters,
# and the state that worker 0 sends to the others). Everything else stays refused by torch's restricted loading.
SAFE_GLOBALS: list[Any] = [
    argparse.Namespace,
    DictConfig,
    ListConfig,
    ContainerMetadata,
    Metadata,
    AnyNode,
    typing.Any,
    collections.defaultdict,
    collections.OrderedDict,
    dict,
    list,
    int,
    _TensorPlaceholder,
    np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
    np._core.multiarray.scalar,  # type: ignore[attr-defined]
    np.ndarray,
    np.dtype,
    type(np.dtype("int64")),
    type(np.dtype("float64")),
]


def install() -> None:
    """Called once, when the package is imported."""
    torch.serialization.add_safe_globals(SAFE_GLOBALS)
    _clear_checkpoint_errors()
    previous = sys.excepthook
    if getattr(previous, "_lasformer", False):
        return

    def one_line(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        # fairseq's own entry points know nothing of our errors: bad input ends in one line there, too
        mismatch = "Cannot load model parameters from checkpoint"
        if kind is Exception and str(error).startswith(mismatch):
            error = InputError(f"{error} Resume with the run's own architecture, or choose another --save-dir")
        if isinstance(error, InputError):
            logging.shutdown()
            print(f"error: {error}", file=sys.stderr)
        else:
            previous(kind, error, trace)

    one_line._lasformer = True  # type: ignore[attr-defined]
    sys.excepthook = one_line


def _clear_checkpoint_errors() -> None:
    """Makes fairseq's entry points refuse a damaged or foreign checkpoint in one line."""
    original = checkpoint_utils.load_checkpoint_to_cpu
    if getattr(original, "_lasformer", False):
        return

    @functools.wraps(original)
    def load_checkpoint_to_cpu(path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(path, *args, **kwargs)
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, TypeError, AttributeError) as e:
            load(path)  # raises the clear error where the file itself is the reason
            raise InputError(f"{path}: not a checkpoint that fairseq can use ({str(e).splitlines()[0]})") from e

    load_checkpoint_to_cpu._lasformer = True  # type: ignore[attr-defined]
    checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
