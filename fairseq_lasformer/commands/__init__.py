"""The subcommands of ``lasformer``: for each its options (``add_NAME``) and what it does (``run_NAME``)."""
