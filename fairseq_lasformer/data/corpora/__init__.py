"""Conversion of the public distributions of corpora to raw documents."""
