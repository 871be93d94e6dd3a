"""Scores of translated documents, doubts about pairs of lines, and the bits per token by which models are judged."""
