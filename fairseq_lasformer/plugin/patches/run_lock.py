"""A training run's folder: claimed by one trainer at a time, and repaired if a kill left a partial checkpoint."""

import logging
import re
from pathlib import Path

from fairseq_lasformer.base.files import atomic_copy, hold
from fairseq_lasformer.checkpoints.loading import damaged

logger = logging.getLogger(__name__)

# Seconds to wait for another trainer: the processes of a killed one take a moment to exit.
PATIENCE = 30.0

_claimed: dict[Path, int] = {}


def claim(folder: Path) -> None:
    """Claim a folder for this process until it exits.

    Raises:
        InputError: another process is training there.
    """
    folder = folder.resolve()
    if folder not in _claimed:
        _claimed[folder] = hold(folder / ".lock", "a training", PATIENCE)


def mend(folder: Path, suffix: str = "") -> None:
    """Replace a damaged or partially written ``checkpoint_last.pt`` with the newest intact checkpoint.

    The folder must have been claimed.
    """
    last = folder / f"checkpoint_last{suffix}.pt"
    broken_off = list(folder.glob(f".{last.name}.*.tmp"))
    whole = last.exists() and not damaged(last)
    if whole and not broken_off or not last.exists() and not broken_off:
        return
    name = re.compile(rf"checkpoint(_\d+_)?\d+{re.escape(suffix)}\.pt")
    others = [p for p in folder.iterdir() if name.fullmatch(p.name)]
    for newest in sorted(others, key=lambda p: p.stat().st_mtime, reverse=True):
        if whole and newest.stat().st_mtime <= last.stat().st_mtime:
            break
        if not damaged(newest):
            logger.warning("%s is incomplete; resuming from %s", last, newest.name)
            atomic_copy(newest, last)
            break
    for path in broken_off:
        path.unlink(missing_ok=True)
