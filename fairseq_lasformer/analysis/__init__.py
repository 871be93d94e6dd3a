"""Analysis of models and runs: cost, parameters, attention, reports."""
