"""Checkpoints and translation."""
