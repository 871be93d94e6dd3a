"""Lasformer for fairseq: document-level translation with learned sparse attention (arXiv 2309.14174).

``fairseq-train --user-dir fairseq_lasformer`` imports this package, which registers its parts.
"""

from fairseq_lasformer import compat

compat.install()

from fairseq_lasformer import criterion, model, task  # noqa: E402, F401
from fairseq_lasformer.moe import optimizer, workers  # noqa: E402, F401

workers.install()

__version__ = "0.1.0"
