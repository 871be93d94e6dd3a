"""This machine: what figures that were measured on it depend on, its threads, memory, and child processes."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_lasformer.base.records import Json


def cores() -> int:
    """Count the processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# best first: the kernels' names (ops/cpu/arithmetic/dispatch.cpp), and those of Linux
_INSTRUCTIONS = {
    "avx512_amx": {"avx512f", "avx512bw", "avx512_vnni", "amx_tile", "amx_int8"},
    "avx512_vnni": {"avx512f", "avx512bw", "avx512_vnni"},
    "avx512": {"avx512f", "avx512bw"},
    "avx2_vnni": {"avx2", "avx_vnni"},
    "avx2": {"avx2", "fma"},
    "neon_dotprod": {"asimddp"},
}


def _of_processor(*names: str) -> str:
    """Return what Linux says of the first processor under one of these names; empty if nothing."""
    if not Path("/proc/cpuinfo").exists():
        return ""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def instructions() -> str:
    """Return the instruction set that figures depend on: ``LASFORMER_ISA``, or this processor's best; or ``plain``."""
    if chosen := os.environ.get("LASFORMER_ISA"):
        return chosen
    flags = set(_of_processor("flags", "Features").split())
    return next((name for name, needed in _INSTRUCTIONS.items() if needed <= flags), "plain")


def machine() -> Json:
    """Describe the machine that this process runs on.

    Returns:
        ``cpu``, its model; ``instructions``, see :func:`instructions`; ``cores`` that this process may use;
        ``memory``, GiB, None if unknown; ``threads`` of torch; ``gpu``, its name, None without one; versions of
        ``python`` and ``torch``.
    """
    import torch

    model, memory = _of_processor("model name") or platform.processor() or platform.machine(), None
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    return {
        "cpu": model,
        "instructions": instructions(),
        "cores": cores(),
        "memory": memory,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def describe(about: Json) -> str:
    """Describe the machine in a phrase."""
    kind = f" ({about['instructions']})" if about.get("instructions") else ""
    cpu = f"{about.get('cpu', 'unknown processor')}{kind}"
    parts = [str(about.get("gpu") or ""), f"{cpu}, {about.get('cores', '?')} cores"]
    if about.get("memory"):
        parts.append(f"{about['memory']:.0f} GiB")
    parts += [f"{name} {about[key]}" for name, key in (("Python", "python"), ("torch", "torch")) if about.get(key)]
    return ", ".join(filter(None, parts))


SPINS = 5000


def wait_briefly() -> None:
    """Let waiting threads spin briefly and then sleep, unless the user has chosen otherwise.

    By default, GNU OpenMP spins for milliseconds. If the cores are busy with other work, this keeps the very thread
    being waited for from running: a single busy process was seen to slow training down by a factor of 5 to 16. Too
    brief a spin costs as well: with 1,000, a training step took 14% longer than with 5,000 or more, and next to a busy
    process a tenth less (two cores of an Intel Xeon). Torch reads the setting when it is loaded, so call this first;
    child processes inherit it.
    """
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"} & os.environ.keys()
    if not chosen and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)


# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_freed() -> bool:
    """Keep freed memory for the next allocation instead of giving it back to the system (glibc; elsewhere nothing).

    By default, large tensors are mapped again every time, and the system clears each of their pages. This takes a tenth
    of the time in training. The peak does not grow, but memory that was freed stays with the process.

    Returns:
        whether it took effect.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # a different C library
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start a command with ``subprocess.Popen``; it is killed when this process ends, however it ends (on Linux).

    Otherwise, a trainer whose parent was killed would keep training alongside the one that resumes the run.
    """
    return subprocess.Popen(list(command), preexec_fn=_end_with_parent, **options)
