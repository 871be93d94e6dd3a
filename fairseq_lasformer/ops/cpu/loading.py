"""Load the CPU kernels, building them on first use; plain PyTorch is the fallback.

A wheel contains them compiled (:data:`PACKAGED`). ``LASFORMER_ISA`` names the instructions to use instead of the best:
see :func:`instruction_sets`.
"""

import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import torch

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import remove_stale
from fairseq_lasformer.ops.cpu import build

logger = logging.getLogger(__name__)

OPERATORS = (
    *("topk_indices", "topk_scored", "attend_kept"),
    *("gather_forward", "gather_backward"),
    *("packed_linear", "activate", "layer_norm", "log_softmax", "dense_attention"),
    *("quantise_heads", "decode_step", "top_candidates", "advance"),
    "dropout",
    *("row_softmax", "softmax_gradient", "mask_gradient", "kept_gradient", "shift_own", "sum_own"),
    *("instruction_sets", "instructions_in_use", "use_instructions", "borrowed_functions"),
)
# a wheel's library works only with the minor version of torch that it was compiled with
PACKAGED = Path(__file__).with_name(f"kernels.torch{'.'.join(torch.__version__.split('.')[:2])}.so")


@functools.cache
def kernels() -> ModuleType | None:
    """Return ``torch.ops.fairseq_lasformer`` with the kernels loaded; None, with one warning, if they cannot be built.

    The installed wheel's kernels are used if they fit this torch. Otherwise, they are built once and cached in torch's
    extensions folder (``TORCH_EXTENSIONS_DIR``), in a per-user folder whose name hashes everything the build depends
    on; a cached build needs no compiler. A library's file name contains the hash of its content; it is loaded only if
    the hash matches.

    Raises:
        InputError: ``LASFORMER_ISA`` names instructions that this processor, or this build, lacks.
    """
    if not _registered():
        try:
            _load()
        except (RuntimeError, OSError, ImportError) as e:
            reason = str(e).strip().splitlines()
            logger.warning(
                "no CPU kernels; decoding with plain PyTorch, which is slower: %s", reason[0] if reason else type(e)
            )
            return None
        if not _registered():
            logger.warning("no CPU kernels; decoding with plain PyTorch, which is slower: the library contains none")
            return None
    if wanted := os.environ.get("LASFORMER_ISA"):
        use_instructions(wanted)
    return torch.ops.fairseq_lasformer


def instruction_sets() -> list[str]:
    """Return the names of the compiled instruction sets that this processor has, best first."""
    return torch.ops.fairseq_lasformer.instruction_sets() if kernels() is not None else []


def use_instructions(name: str = "") -> str:
    """Use these instructions, or the best, in this process from now on; return the name of those in use.

    ``A+B`` uses A, but B for functions that are measured to be faster with B, see :func:`borrowed_functions`.

    Raises:
        InputError: this processor, or this build, lacks them.
    """
    try:
        return torch.ops.fairseq_lasformer.use_instructions(name)
    except RuntimeError:
        known = ", ".join(torch.ops.fairseq_lasformer.instruction_sets())
        raise InputError(f"LASFORMER_ISA={name}: not available on this machine; choose one of {known}") from None


def instructions_in_use() -> str:
    """Return the name of the instruction set that the kernels use in this process; empty without kernels."""
    return torch.ops.fairseq_lasformer.instructions_in_use() if kernels() is not None else ""


def borrowed_functions() -> list[str]:
    """Return the kernels' functions that are those of another instruction set, as ``avx2.score``.

    They are chosen when the kernels are first used without a named set, by measurements of a few milliseconds: neither
    512 bits nor matrix tiles are faster in everything on every processor. The results are the same, bit for bit.
    """
    return list(torch.ops.fairseq_lasformer.borrowed_functions()) if kernels() is not None else []


def _load() -> None:
    torch.ops.load_library(str(PACKAGED if PACKAGED.is_file() else _own()))


def _own() -> Path:
    """Return the library compiled on this machine; compile it if needed."""
    folder = _folder()
    if (library := _built(folder)) is None:
        # printed whatever the log level: half a minute of silence looks like a crash
        print("building the CPU kernels, once (half a minute) ...", file=sys.stderr, flush=True)
        library = _build(folder)
    return library


def _registered() -> bool:
    return all(hasattr(torch.ops.fairseq_lasformer, name) for name in OPERATORS)


def _folder() -> Path:
    """Return the folder in which this build is cached."""
    from torch.utils import cpp_extension

    options = [*build.COMMON, *build.EXACT, str(build.targets()), platform.machine(), torch.__version__]
    key = "".join(path.read_text(encoding="utf-8") for path in (*build.HEADERS, *build.SOURCES)) + " ".join(options)
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    return Path(root) / f"fairseq_lasformer_{hashlib.sha256(key.encode()).hexdigest()[:16]}_{os.geteuid()}"


def _private(path: Path) -> bool:
    """Return whether only the current user can have written a file or folder."""
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
    """Build the library.

    It is built in a temporary folder and then moved into place, so that no process waits for a killed build.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _private(folder):
        logger.warning("%s is writable by other users; building the kernels for this process alone", folder)
        folder = Path(tempfile.mkdtemp(prefix="fairseq_lasformer_"))
    remove_stale(folder, "build.*")
    work = Path(tempfile.mkdtemp(prefix="build.", dir=folder))
    try:
        library = work / "kernels.so"
        build.build(library, work)
        target = folder / f"kernels.{hashlib.sha256(library.read_bytes()).hexdigest()}.so"
        library.chmod(0o700)
        library.replace(target)
        return target
    finally:
        shutil.rmtree(work, ignore_errors=True)
