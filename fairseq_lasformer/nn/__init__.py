"""Torch modules that know no fairseq: layers, attention, patterns, the decoding cache, mixtures of experts."""
