"""Lasformer for fairseq: document-level translation with learned sparse attention (arXiv 2309.14174).

``fairseq-train --user-dir fairseq_lasformer`` imports this package, which registers its parts.
"""

import sys
from pathlib import Path

from fairseq_lasformer.threads import wait_briefly

wait_briefly()

try:
    from fairseq_lasformer import compat
except ModuleNotFoundError as e:
    message = (
        f"fairseq_lasformer needs {e.name}, which is not installed: run scripts/setup.sh, or "
        "pip install torch==2.13.0, then pip install --no-deps fairseq-fixed==0.12.3.1"
    )
    if Path(sys.argv[0]).name == "lasformer":
        sys.exit(f"error: {message}")
    raise ImportError(message) from e

compat.install()

from fairseq_lasformer import criterion, model, task  # noqa: E402, F401
from fairseq_lasformer.moe import optimizer, workers  # noqa: E402, F401

workers.install()

__version__ = "0.1.0"
