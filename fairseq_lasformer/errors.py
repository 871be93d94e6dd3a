"""Errors that users see as a single line."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


class InputError(ValueError):
    """Bad input. The message is one line: what is wrong, where, and what to do."""


def missing(error: ModuleNotFoundError) -> str:
    """Return a message that says what to install."""
    return (
        f"fairseq_lasformer needs {error.name}, which is not installed: run scripts/setup.sh, or "
        "pip install torch==2.13.0, then pip install --no-deps fairseq-fixed==0.12.3.1"
    )


class Interrupted(InputError):
    """Work that was interrupted with Ctrl-C, and can be resumed."""
