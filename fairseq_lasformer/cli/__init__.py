"""The subcommands of ``lasformer``: for each its options (``add_NAME``) and what it does (``run_NAME``)."""

from __future__ import annotations

DEFAULT_SAMPLES = 1000  # of --bootstrap
