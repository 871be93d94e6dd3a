"""The subcommands of ``lasformer``: ``add_NAME`` declares the options of a subcommand, ``run_NAME`` executes it."""

from __future__ import annotations

DEFAULT_SAMPLES = 1000  # default of --bootstrap
