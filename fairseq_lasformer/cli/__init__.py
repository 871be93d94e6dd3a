"""The subcommands of ``lasformer``: ``add_NAME`` declares the options of a subcommand, ``run_NAME`` executes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_lasformer.errors import InputError

DEFAULT_SAMPLES = 1000  # default of --bootstrap


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Declares ``--decode-dtype``, ``--cache-dtype`` and ``--shortlist``, the task's options of these names."""
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
    parser.add_argument(
        "--shortlist",
        type=Path,
        metavar="FILE",
        help="score only words that may translate a document, by a file that lasformer shortlist wrote: faster for "
        "large vocabularies",
    )


def decoding_of(args: argparse.Namespace) -> dict[str, str]:
    """The options of :func:`add_decoding` that were given another value than the default, by name."""
    asked = {"decode_dtype": args.decode_dtype, "cache_dtype": args.cache_dtype}
    found = {name: value for name, value in asked.items() if value != "float32"}
    return found if args.shortlist is None else {**found, "shortlist": str(args.shortlist.resolve())}


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
