"""Triton kernels, a module for each operation; imported on first use (``backends.triton_kernels``)."""
