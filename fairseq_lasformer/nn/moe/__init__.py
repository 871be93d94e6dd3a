"""Sparsely-gated mixtures of experts (arXiv 1701.06538)."""

from fairseq_lasformer.nn.moe.dispatch import ExpertGroup
from fairseq_lasformer.nn.moe.layer import MixtureOfExperts, MoeConfig, RouterStats

__all__ = ["ExpertGroup", "MixtureOfExperts", "MoeConfig", "RouterStats"]
