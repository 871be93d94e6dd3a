"""Child processes that do not outlive their parent."""

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

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
