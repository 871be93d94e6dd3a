"""Whole runs: training, averaging, translating, scoring, and the tables of the paper."""
