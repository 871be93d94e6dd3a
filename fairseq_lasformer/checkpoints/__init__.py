"""Checkpoints: checked loading, their settings, averages."""
