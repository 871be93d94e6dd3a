"""The subcommands of ``lasformer``: ``add_NAME`` declares the options of a subcommand, ``run_NAME`` executes it."""

from __future__ import annotations

import argparse

from fairseq_lasformer.errors import InputError

DEFAULT_SAMPLES = 1000  # default of --bootstrap


def add_decode_dtype(parser: argparse.ArgumentParser) -> None:
    """Declares ``--decode-dtype`` and ``--cache-dtype``, the task's options of these names."""
    parser.add_argument(
        "--decode-dtype",
        choices=("float32", "int8"),
        default="float32",
        help="on a CPU: type of the linear layers' weights; int8 is faster, and nearly as exact (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-dtype",
        choices=("float32", "int8"),
        default="float32",
        help="on a CPU: type of kept keys and values; int8 is faster for long texts (default: %(default)s)",
    )


def shard_of(text: str | None) -> tuple[int, int]:
    """The number of a shard, from 0, and how many there are.

    Raises:
        InputError: it is not of the form I/N with I from 1 to N.
    """
    if text is None:
        return 0, 1
    number, slash, total = text.partition("/")
    if not (slash and number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise InputError(f"--shard {text}: expected I/N, such as 1/4 to 4/4")
    return int(number) - 1, int(total)
