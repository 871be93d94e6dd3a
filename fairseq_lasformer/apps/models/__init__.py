"""Conversion of models from elsewhere into models of this package."""

from fairseq_lasformer.base import quiet_fairseq  # noqa: F401
