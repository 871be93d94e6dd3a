"""Beam search: with as many lines as the source, terms, shortlists, repair."""
