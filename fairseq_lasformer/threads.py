"""Waiting of OpenMP threads for each other; must be set before torch is loaded."""

import os
import sys

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
