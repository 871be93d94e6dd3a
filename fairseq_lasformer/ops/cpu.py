"""Load the CPU kernels (``*.cpp``), building them on first use; plain PyTorch is the fallback."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from fairseq_lasformer.files import remove_stale

logger = logging.getLogger(__name__)

FLAGS = ["-O3", "-march=native", "-fopenmp", "-fopenmp-simd"]
if os.environ.get("LASFORMER_SANITIZE"):  # scripts/sanitize.sh
    FLAGS += ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
HEADERS = [Path(__file__).with_name(name) for name in ("cpu_math.h", "kernels.h", "packed.h")]
SOURCES = [
    Path(__file__).with_name(name)
    for name in ("library.cpp", "cached.cpp", "gather.cpp", "rows.cpp", "packed.cpp", "step.cpp", "beam.cpp")
]
OPERATORS = (
    *("topk_indices", "topk_scored", "attend_kept"),
    *("gather_forward", "gather_backward"),
    *("packed_linear", "decode_step", "top_candidates"),
    *("row_softmax", "softmax_gradient", "mask_gradient", "kept_gradient"),
)


@functools.cache
def kernels() -> Any | None:
    """Return ``torch.ops.fairseq_lasformer`` with the kernels loaded; None, with one warning, if they cannot be built.

    The build is cached in torch's extensions folder (``TORCH_EXTENSIONS_DIR``), in a per-user folder whose name hashes
    everything the build depends on: machine code is not portable between processors, and a cached build needs no
    compiler. A library's file name contains the hash of its content; it is loaded only if the hash matches.
    """
    if not _registered():
        folder = _folder()
        try:
            library = _built(folder)
            if library is not None:
                torch.ops.load_library(str(library))
            else:
                # printed, whatever is logged: half a minute of silence looks like a crash
                print("building the CPU kernels, once (half a minute) ...", file=sys.stderr, flush=True)
                library = _build(folder)
        except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as e:
            reason = str(e).strip().splitlines()
            logger.warning(
                "no CPU kernels, plain PyTorch decodes instead, slower: %s", reason[0] if reason else type(e)
            )
            return None
        if not _registered():
            logger.warning("no CPU kernels, plain PyTorch decodes instead, slower: %s holds none", library)
            return None
    return torch.ops.fairseq_lasformer


def _registered() -> bool:
    return all(hasattr(torch.ops.fairseq_lasformer, name) for name in OPERATORS)


def _processor() -> str:
    """Return what machine code depends on: the processor's model and its instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() + platform.machine()
    told = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(told)}))


def _folder() -> Path:
    """Return the folder in which this build is cached."""
    from torch.utils import cpp_extension

    key = "".join(path.read_text() for path in (*HEADERS, *SOURCES)) + " ".join(
        [*FLAGS, _processor(), torch.__version__, sys.version]
    )
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    return Path(root) / f"fairseq_lasformer_{hashlib.sha256(key.encode()).hexdigest()[:16]}_{os.geteuid()}"


def _private(path: Path) -> bool:
    """Whether only the current user can have written a file or folder."""
    about = path.lstat()
    link = stat.S_ISLNK(about.st_mode)
    return not link and about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _built(folder: Path) -> Path | None:
    """Return an intact library in the folder, if there is one."""
    if not folder.is_dir() or not _private(folder):
        return None
    for path in folder.glob("kernels.*.so"):
        if _private(path) and hashlib.sha256(path.read_bytes()).hexdigest() == path.name.split(".")[1]:
            return path
    return None


def _build(folder: Path) -> Path:
    """Build and load the library.

    It is built in a temporary folder and then moved into place, so that no process waits for a build that was killed.
    """
    from torch.utils import cpp_extension

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _private(folder):
        logger.warning("%s can be written by others; the kernels are built for this process alone", folder)
        folder = Path(tempfile.mkdtemp(prefix="fairseq_lasformer_"))
    remove_stale(folder, "build.*")
    work = Path(tempfile.mkdtemp(prefix="build.", dir=folder))
    try:
        name, directory = "fairseq_lasformer_kernels", str(work)
        cpp_extension.load(name, list(map(str, SOURCES)), FLAGS, build_directory=directory, is_python_module=False)
        made = work / f"{name}.so"
        target = folder / f"kernels.{hashlib.sha256(made.read_bytes()).hexdigest()}.so"
        made.chmod(0o700)
        made.replace(target)
        return target
    finally:
        shutil.rmtree(work, ignore_errors=True)
