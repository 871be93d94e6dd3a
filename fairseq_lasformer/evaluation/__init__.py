"""Scores of translated documents. Everything here operates on text, not on models."""
