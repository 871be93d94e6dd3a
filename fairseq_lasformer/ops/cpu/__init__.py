"""Implementations for CPUs: compiled kernels (``arithmetic``, ``binding``), their loading, and their operators."""

from fairseq_lasformer.ops.cpu.loading import (
    borrowed_functions,
    instruction_sets,
    instructions_in_use,
    kernels,
    use_instructions,
)

__all__ = ["borrowed_functions", "instruction_sets", "instructions_in_use", "kernels", "use_instructions"]
