"""Implementations for CPUs: compiled kernels (``arithmetic``, ``binding``), their loading, and their operators."""

from fairseq_lasformer.ops.cpu.loading import instruction_sets, instructions_in_use, kernels, use_instructions

__all__ = ["instruction_sets", "instructions_in_use", "kernels", "use_instructions"]
