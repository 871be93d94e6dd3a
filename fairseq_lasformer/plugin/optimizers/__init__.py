"""Optimizers that fairseq lacks."""
