"""Subcommand ``doctor``: what lasformer finds on this machine, on one screen."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FULL = 5.0
"""GiB below which a disk is nearly full: a training of the base model keeps checkpoints of 0.5 GiB."""

PACKAGES = ("fairseq-fixed", "fairseq", "sacrebleu", "sentencepiece", "subword-nmt", "sacremoses")
OPTIONAL = ("starlette", "uvicorn", "ray", "ctranslate2", "transformers")


@dataclass(frozen=True)
class Doctor:
    """No options."""

    epilog = "The exit code is 1 if something that every command needs is missing."


def run_doctor(args: Doctor) -> None:
    faults = list(_found())
    for good, name, said in faults:
        print(f"{'ok ' if good else ' ! '} {name:<12} {said}")
    if not all(good for good, name, _ in faults if name in ("Python", "packages")):
        sys.exit(1)


def _kernels() -> str:
    """Return the instruction set of the kernels, and the functions for which a different one is faster here."""
    from fairseq_lasformer.ops.cpu import borrowed_functions, instructions_in_use

    borrowed = ", ".join(borrowed_functions())
    return f"{instructions_in_use()}{f'; faster here: {borrowed}' if borrowed else ''}"


def _found() -> Iterator[tuple[bool, str, str]]:
    """Yield whether something is as it should be, its name, and what was found."""
    import torch

    from fairseq_lasformer.base.machine import describe, machine
    from fairseq_lasformer.ops import backend_for
    from fairseq_lasformer.version import __version__

    about = machine()
    yield True, "lasformer", f"{__version__} in {Path(__file__).parents[1]}"
    yield sys.version_info >= (3, 11), "Python", f"{about['python']} ({sys.executable})"
    yield True, "machine", describe(about | {"python": None, "torch": None})
    versions = {name: _version(name) for name in PACKAGES}
    missing = [name for name in PACKAGES[2:] if not versions[name]]
    missing += [] if versions["fairseq-fixed"] or versions["fairseq"] else ["fairseq"]
    there = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield not missing, "packages", there + (f"; missing: {', '.join(missing)}" if missing else "")
    yield True, "optional", ", ".join(f"{name} {_version(name) or '-'}" for name in OPTIONAL)
    yield True, "torch", f"{torch.__version__}, {about['threads']} threads"
    kernels = backend_for(torch.device("cpu")) == "cpu"
    yield kernels, "CPU kernels", _kernels() if kernels else "not built: a C++ compiler and ninja are needed"
    if not torch.cuda.is_available():
        built = "torch is a build for CPUs" if torch.version.cuda is None else "torch finds no driver"
        yield True, "GPU", f"none ({built}); everything runs on the CPU"
    else:
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        number = torch.cuda.device_count()
        yield True, "GPU", f"{number} x {about['gpu']} ({capability}), {free:.0f} of {total:.0f} GiB free"
        triton = backend_for(torch.device("cuda")) == "triton"
        said = f"{_version('triton') or '-'}" + ("" if triton else ", which does not run: a C compiler is needed")
        yield triton, "Triton", said
    space = shutil.disk_usage(Path.cwd())
    free = space.free / 2**30
    yield free > FULL, "disk", f"{free:.0f} of {space.total / 2**30:.0f} GiB free in {Path.cwd()}"


def _version(package: str) -> str:
    """Return the version of a package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
