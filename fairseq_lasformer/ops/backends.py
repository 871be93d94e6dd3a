"""Choice of implementation: C++ on CPUs, Triton on GPUs, or plain PyTorch."""

import functools
import importlib
import logging
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.ops import cpu

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "reference", "cpu", "triton")


def backend_for(device: torch.device, wanted: str = "auto") -> str:
    """Return the backend to use on ``device``.

    Args:
        wanted: one of :data:`BACKENDS`; ``auto`` uses the kernels available for the device, otherwise plain PyTorch.

    Raises:
        RuntimeError: the requested backend is not available.
    """
    if wanted in ("auto", "cpu") and device.type == "cpu" and cpu.kernels() is not None:
        return "cpu"
    if wanted == "cpu" and device.type == "cpu":
        raise RuntimeError("the CPU kernels could not be built (see the log above); use auto or reference")
    if wanted == "triton" or (wanted == "auto" and device.type == "cuda"):
        if triton_kernels("decode") is not None:
            return "triton"
        if wanted == "triton":
            raise RuntimeError("Triton's kernels do not run here (see the log above); use auto or reference")
    return "reference"


@functools.cache
def triton_kernels(module: str) -> ModuleType | None:
    """Import a module of Triton kernels on first use; return None, with one warning, if that is not possible.

    Triton must be installed, and needs a C compiler and Python's headers to build the launcher of its kernels.
    """
    if module != "decode" and triton_kernels("decode") is None:
        return None
    try:
        kernels = importlib.import_module(f"fairseq_lasformer.ops.gpu.kernels.{module}")
        if module == "decode" and torch.cuda.is_available():
            kernels.try_out(torch.device("cuda"))
        return kernels
    except Exception as e:  # Triton passes on any error of the compiler, the linker or the driver
        reason = str(e).strip().splitlines()
        logger.warning(
            "no Triton kernels; using plain PyTorch, which is slower: %s", reason[0] if reason else type(e).__name__
        )
        return None


def required_kernels(module: str) -> ModuleType:
    """Return a module of Triton kernels where :func:`backend_for` has found that they run."""
    kernels = triton_kernels(module)
    assert kernels is not None
    return kernels


def current(t: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which a tensor's GPU is current, because Triton launches its kernels there."""
    return torch.cuda.device(t.device) if t.is_cuda else nullcontext()
