"""Sparsely-gated mixtures of experts (1701.06538)."""

from fairseq_lasformer.moe.layer import Balance, MixtureOfExperts
from fairseq_lasformer.moe.parallel import ExpertWorkers

__all__ = ["Balance", "ExpertWorkers", "MixtureOfExperts"]
