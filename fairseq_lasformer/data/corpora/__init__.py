"""Conversion of the public distributions of the paper's corpora to raw documents."""
