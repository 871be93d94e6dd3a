"""The one exception that users see as a single line."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as of shells."""


class InputError(ValueError):
    """Bad input. The message is one line: what is wrong, where, and what to do."""


class Interrupted(InputError):
    """Work that was interrupted with Ctrl-C, and can be resumed."""
