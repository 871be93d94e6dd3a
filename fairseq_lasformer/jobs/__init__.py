"""Long work in several processes: the translation of a prepared split."""

from fairseq_lasformer import quiet_fairseq  # noqa: F401
