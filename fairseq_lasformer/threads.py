"""How OpenMP's threads wait for each other, set before torch is loaded."""

from __future__ import annotations

import os
import sys

SPINS = 1000


def wait_briefly() -> None:
    """Lets threads spin shortly and then sleep, unless the user has chosen.

    By default GNU's OpenMP spins for milliseconds. On a machine whose cores are busy with something else, that keeps
    the very thread that is waited for from running: training was seen to become 5 to 16 times slower beside one busy
    process. Torch reads the setting when it is loaded, so this is called before; child processes inherit it.
    """
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME"} & os.environ.keys()
    if not chosen and "torch" not in sys.modules:
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)
