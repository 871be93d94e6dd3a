"""Errors that users see as a single line."""

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""


class InputError(ValueError):
    """Bad input. The message is one line: what is wrong, where, and what to do."""


def in_one_line(error: BaseException, most: int = 200) -> str:
    """Return the kind and the message of an error of another library, in one line.

    Args:
        most: maximum length of the message.
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"


def missing(error: ModuleNotFoundError) -> str:
    """Return a message that says what to install."""
    return (
        f"fairseq_lasformer needs {error.name}, which is not installed: run scripts/setup.sh, or "
        "pip install torch==2.13.0, then pip install --no-deps fairseq-fixed==0.12.3.1"
    )


class Interrupted(InputError):
    """Work that was interrupted with Ctrl-C, and can be resumed."""
