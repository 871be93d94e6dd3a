"""The subcommands of ``lasformer``: ``run_NAME`` executes one with its options, a dataclass of declared options."""
