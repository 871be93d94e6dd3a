"""Description of the machine on which a figure was measured: processor, cores, memory, GPU and versions."""

import os
import platform
from pathlib import Path

from fairseq_lasformer.records import Json


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
    found = [str(about.get("gpu") or ""), f"{cpu}, {about.get('cores', '?')} cores"]
    if about.get("memory"):
        found.append(f"{about['memory']:.0f} GiB")
    found += [f"{name} {about[key]}" for name, key in (("Python", "python"), ("torch", "torch")) if about.get(key)]
    return ", ".join(filter(None, found))
