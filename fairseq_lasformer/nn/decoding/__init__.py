"""Faster decoding: packed weights, 8 bits, and steps captured in a CUDA graph."""
