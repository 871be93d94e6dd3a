"""Benchmarks: ``python -m benchmarks NAME``. One file each; all of them return rows of :class:`benchmarks.rows.Row`."""
