"""Long work in several processes: the translation of a prepared split."""

from fairseq_lasformer.base import quiet_fairseq  # noqa: F401
