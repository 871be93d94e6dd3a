"""Benchmarks: ``python -m benchmarks NAME``. One module each; all return a list of :class:`benchmarks.rows.Row`."""
