"""Complete runs: training, averaging, translating, scoring, and the paper's tables."""
