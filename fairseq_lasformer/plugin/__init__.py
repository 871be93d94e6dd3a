"""The fairseq plugin: options, model, task, criterion, optimizer, and compatibility fixes for current torch."""

from __future__ import annotations

import sys
from pathlib import Path


def register() -> None:
    """Register architectures, task, criterion and optimizer with fairseq, and patch the fairseq functions that need it.

    fairseq's tools do this themselves under ``--user-dir``. Repeated calls have no effect.

    Raises:
        ImportError: torch or fairseq is not installed; the message says what to install.
    """
    from fairseq_lasformer.threads import wait_briefly

    wait_briefly()
    try:
        from fairseq_lasformer.plugin import compat, timed_checkpoints, trainer
    except ModuleNotFoundError as e:
        raise ImportError(missing(e)) from e
    from fairseq_lasformer.plugin import criterion, model, muon, optimizer, task  # noqa: F401

    compat.install()
    trainer.install()
    if is_fairseqs_tool():
        timed_checkpoints.install()


def missing(error: ModuleNotFoundError) -> str:
    """Return a message that says what to install."""
    return (
        f"fairseq_lasformer needs {error.name}, which is not installed: run scripts/setup.sh, or "
        "pip install torch==2.13.0, then pip install --no-deps fairseq-fixed==0.12.3.1"
    )


def is_fairseqs_tool() -> bool:
    """Whether the running program is one of fairseq's tools rather than a user's script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return Path(sys.argv[0]).name.startswith("fairseq-") or (spec is not None and spec.name.startswith("fairseq_cli"))
