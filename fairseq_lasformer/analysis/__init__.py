"""Models and runs looked at: cost, parameters, attention, reports."""
