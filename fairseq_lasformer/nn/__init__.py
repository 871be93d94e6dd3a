"""Torch modules independent of fairseq: layers, attention, patterns, the decoding cache, mixtures of experts."""
