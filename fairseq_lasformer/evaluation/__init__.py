"""Scores of translated documents. Everything here knows text, not models."""
