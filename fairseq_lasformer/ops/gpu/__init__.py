"""Implementations for GPUs: tiles with a bitmask, the teacher, 8 bits; the Triton kernels are in ``kernels``."""
