"""Beam search: with as many lines as the source, terms, shortlists, repair."""

from fairseq_lasformer.base import quiet_fairseq  # noqa: F401
