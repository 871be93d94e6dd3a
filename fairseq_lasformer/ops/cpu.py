"""Loads the CPU kernels of ``cpu.cpp``, building them at first use; where that fails, plain PyTorch runs instead."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)

FLAGS = ["-O3", "-march=native", "-fopenmp", "-fopenmp-simd"]


@functools.cache
def kernels() -> Any | None:
    """``torch.ops.fairseq_lasformer`` with the kernels loaded; None, with one warning, where they cannot be built.

    The build is kept in torch's folder for extensions (``TORCH_EXTENSIONS_DIR``) under a name of what it depends on:
    machines that share a home do not share machine code, and a finished build needs no compiler.
    """
    from torch.utils import cpp_extension

    source = Path(__file__).with_name("cpu.cpp")
    capability = torch.backends.cpu.get_cpu_capability()
    key = source.read_text() + " ".join([*FLAGS, platform.processor(), capability, torch.__version__, sys.version])
    name = f"fairseq_lasformer_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    built = Path(root) / name / f"{name}.so"
    try:
        if built.exists():
            torch.ops.load_library(str(built))
            return torch.ops.fairseq_lasformer
    except OSError:
        pass  # another process is writing it: wait for it below
    try:
        logger.warning("building the CPU kernels, once (half a minute) ...")
        built.parent.mkdir(parents=True, exist_ok=True)
        directory = str(built.parent)
        cpp_extension.load(name, [str(source)], extra_cflags=FLAGS, build_directory=directory, is_python_module=False)
    except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as e:
        reason = str(e).strip().splitlines()
        logger.warning("no CPU kernels, plain PyTorch decodes instead, slower: %s", reason[0] if reason else type(e))
        return None
    return torch.ops.fairseq_lasformer
