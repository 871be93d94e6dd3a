"""Document translation: batches, parts, contexts, streaming, word alignment, the Python interface."""

from fairseq_lasformer.base import quiet_fairseq  # noqa: F401
