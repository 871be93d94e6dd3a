"""How the C library keeps memory: trainings take the same hundreds of MiB in every update, servers have threads."""

from __future__ import annotations

import contextlib
import ctypes
import sys

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_freed() -> bool:
    """Keeps freed memory for the next allocation instead of giving it back to the system (glibc; elsewhere nothing).

    By default, large tensors are mapped anew every time, and the system clears each of their pages: in training, a
    tenth of the time. The peak does not grow, but memory that was freed stays with the process.

    Returns:
        whether it took effect.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # another C library
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def few_arenas(arenas: int = 2) -> None:
    """Let all threads of this process share a few pools of memory (GNU C library).

    By default each thread gets one of its own, which keeps what it once needed: a server's worker threads come and go.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, arenas)
