"""How freed memory is kept: training on a CPU frees and takes the same hundreds of MiB in every update."""

from __future__ import annotations

import ctypes
import sys

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


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
