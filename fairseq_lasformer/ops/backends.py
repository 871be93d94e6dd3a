"""Choice of implementation: C++ on CPUs, Triton on GPUs, or plain PyTorch."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import torch

from fairseq_lasformer.ops import cpu

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "reference", "cpu", "triton")


def backend_for(device: torch.device, wanted: str = "auto") -> str:
    """Return the backend to use on ``device``.

    Args:
        device: where the tensors are.
        wanted: one of :data:`BACKENDS`; ``auto`` uses the kernels available for the device, otherwise plain PyTorch.

    Raises:
        RuntimeError: the requested backend is not available.
    """
    if wanted in ("auto", "cpu") and device.type == "cpu" and cpu.kernels() is not None:
        return "cpu"
    if wanted == "cpu" and device.type == "cpu":
        raise RuntimeError("the CPU kernels could not be built (see the log above); use auto or reference")
    if wanted == "triton" or (wanted == "auto" and device.type == "cuda"):
        if triton_kernels("triton_decode") is not None:
            return "triton"
        if wanted == "triton":
            raise RuntimeError("Triton is not installed; use auto or reference")
    return "reference"


@functools.cache
def triton_kernels(module: str) -> Any | None:
    """Import a module of Triton kernels on first use; None, with a single warning, if Triton is not installed."""
    try:
        return importlib.import_module(f"fairseq_lasformer.ops.{module}")
    except ImportError as e:
        logger.warning("no Triton kernels, plain PyTorch runs instead, slower: %s", e)
        return None
