"""The fairseq plugin: options, model, task, criterion, optimizers, and what fairseq needs to run with current torch.

``model``, ``encoder``, ``decoder``, ``criterion`` and ``task`` are what fairseq registers; folders hold what is asked
for by an option. Without torch or fairseq, importing it raises an ImportError that says what to install.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fairseq_lasformer.base.errors import missing

try:
    from fairseq_lasformer.base import quiet_fairseq  # noqa: F401
except ModuleNotFoundError as e:
    raise ImportError(missing(e)) from e


def register() -> None:
    """Register architectures, task, criterion and optimizers with fairseq, and patch what needs it.

    fairseq's tools do this themselves under ``--user-dir``. Repeated calls have no effect.
    """
    from fairseq_lasformer.plugin import criterion, model, task  # noqa: F401
    from fairseq_lasformer.plugin.optimizers import expert_adam, muon  # noqa: F401
    from fairseq_lasformer.plugin.patches import install

    install(tools=is_fairseqs_tool())


def is_fairseqs_tool() -> bool:
    """Return whether the running program is one of fairseq's tools rather than a user's script."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return Path(sys.argv[0]).name.startswith("fairseq-") or (spec is not None and spec.name.startswith("fairseq_cli"))
