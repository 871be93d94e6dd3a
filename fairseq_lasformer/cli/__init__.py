"""The subcommands of ``lasformer``: ``add_NAME`` declares the options of a subcommand, ``run_NAME`` executes it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_lasformer.errors import InputError

DEFAULT_SAMPLES = 1000  # default of --bootstrap


class Renamed(argparse.Action):
    """An option's old name, which still works and prints the new one.

    Args:
        value: the value that it implies; None if it takes one.
    """

    def __init__(self, option_strings: Sequence[str], dest: str, now: str, value: Any = None, **options: Any) -> None:
        hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
        super().__init__(option_strings, dest, nargs=None if value is None else 0, **hidden, **options)
        self.now, self.value = now, value

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        print(f"note: {option_string} is now called {self.now}", file=sys.stderr)
        setattr(namespace, self.dest, values if self.value is None else self.value)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device``, a torch device; ``auto`` is the GPU if there is one."""
    parser.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, … (default: a GPU if there is one)")


BEAM = 5
"""Default of ``--beam``, here and in fairseq-generate."""


def add_beam(parser: argparse.ArgumentParser) -> None:
    """Declare ``--beam``."""
    parser.add_argument("--beam", type=int, default=BEAM, help="hypotheses per sentence (default: %(default)s)")


def add_max_tokens(parser: argparse.ArgumentParser, default: int | None) -> None:
    """Declare ``--max-tokens``; None means the longest example."""
    usual = "the longest example" if default is None else "%(default)s"
    parser.add_argument("--max-tokens", type=int, default=default, help=f"tokens computed together (default: {usual})")


def fairseqs_options(args: argparse.Namespace) -> list[str]:
    """Return fairseq-generate's options for those declared above, then the user's own, which take precedence.

    Raises:
        InputError: the device is unknown, or a number is below 1.
    """
    device, _, number = args.device.partition(":")
    if device not in ("auto", "cpu", "cuda") or (number and (device != "cuda" or not number.isdecimal())):
        raise InputError(f"--device {args.device}: expected cpu, cuda or cuda:N")
    if args.beam < 1 or (args.max_tokens is not None and args.max_tokens < 1):
        raise InputError("--beam and --max-tokens: at least 1")
    options = ["--cpu"] if device == "cpu" else []
    options += ["--device-id", number] if number else []
    options += ["--beam", str(args.beam)] if args.beam != BEAM else []
    options += [] if args.max_tokens is None else ["--max-tokens", str(args.max_tokens)]
    return [*options, *args.options]


def add_decoding(parser: argparse.ArgumentParser) -> None:
    """Declare ``--decode-dtype``, ``--cache-dtype``, ``--reproducible`` and ``--shortlist``, options of the task."""
    parser.add_argument(
        "--decode-dtype",
        choices=("float32", "int8"),
        default="float32",
        help="type of the linear layers' weights (on a GPU, the decoder's); int8 is faster on a CPU and nearly as "
        "exact (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-dtype",
        choices=("float32", "int8"),
        default="float32",
        help="type of cached keys and values; int8 is faster for long texts on a CPU and takes about half the "
        "memory of 16 bits (default: %(default)s)",
    )
    parser.add_argument(
        "--reproducible",
        action="store_true",
        help="refuse whatever does not give a byte-identical translation in every batch, with any number of threads "
        "and on every processor (default: translate anyway)",
    )
    parser.add_argument(
        "--shortlist",
        type=Path,
        metavar="FILE",
        help="score only words that may occur in a document's translation, as listed in a file from lasformer "
        "shortlist: faster for large vocabularies",
    )


def decoding_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of :func:`add_decoding` whose value differs from the default, by name."""
    asked = {"decode_dtype": args.decode_dtype, "cache_dtype": args.cache_dtype}
    found: dict[str, Any] = {name: value for name, value in asked.items() if value != "float32"}
    if args.reproducible:
        found["reproducible"] = True
    return found if args.shortlist is None else {**found, "shortlist": str(args.shortlist.resolve())}


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Declare ``--engine``."""
    parser.add_argument(
        "--engine",
        default="processes",
        metavar="ENGINE",
        help="where work runs: processes on this machine, ray (Ray Data workers on it), or ray=HOST:PORT or "
        "ray=auto, workers of a cluster (default: %(default)s)",
    )


def add_memory_options(parser: argparse.ArgumentParser, exact: bool = True) -> None:
    """Declare ``--memory``, ``--memory-tokens`` and, if ``exact``, ``--exact``."""
    parser.add_argument(
        "--memory",
        type=Path,
        metavar="FILE",
        help="a translation memory (lasformer memory build); pairs similar to a text are read before it",
    )
    parser.add_argument(
        "--memory-tokens",
        type=int,
        default=256,
        metavar="N",
        help="maximum number of their tokens before each part of a document (default: %(default)s)",
    )
    if exact:
        parser.add_argument(
            "--exact",
            action="store_true",
            help="take translations of sentences that are found verbatim in the memory from there",
        )


def memory_of(args: argparse.Namespace, languages: tuple[str, str]) -> Any:
    """Return the memory of :func:`add_memory_options`; None without one.

    Args:
        languages: the model's source and target language.

    Raises:
        InputError: it cannot be used, or ``--exact`` is given without one.
    """
    exact = getattr(args, "exact", False)
    if args.memory is None:
        if exact:
            raise InputError("--exact: needs --memory")
        return None
    from fairseq_lasformer.translation_memory.remembering import Memory

    return Memory(args.memory, languages, args.memory_tokens, exact)


def shard_of(text: str | None) -> tuple[int, int]:
    """Return a shard's number, from 0, and the number of shards.

    Raises:
        InputError: it is not of the form I/N with I from 1 to N.
    """
    if text is None:
        return 0, 1
    number, slash, total = text.partition("/")
    if not (slash and number.isdecimal() and total.isdecimal() and 1 <= int(number) <= int(total)):
        raise InputError(f"--shard {text}: expected I/N, such as 1/4 to 4/4")
    return int(number) - 1, int(total)
