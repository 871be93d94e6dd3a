"""Options that several commands have, each declared once."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import NOTHING, SPEED, TABLE, argument, following, option
from fairseq_lasformer.base.published import local_path

BEAM = 5
"""Default of ``--beam``, here and in fairseq-generate."""


@dataclass(frozen=True, kw_only=True)
class Beam:
    """The width of the search."""

    beam: int = option(BEAM, "hypotheses per sentence", minimum=1, maximum=1000)


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device of a model."""

    device: str = option("auto", "cpu, cuda, cuda:1, … (default: a GPU if there is one)", changes=SPEED)


@dataclass(frozen=True, kw_only=True)
class Data:
    """The prepared folder of a model."""

    data: Path | None = option(None, "prepared folder (default: the one used in training)", apart=True)


def max_tokens(default: int | None = None) -> Any:
    """Return the field of ``--max-tokens``; None means that of ``lasformer generate``."""
    usual = " (default: 8192, or the longest example)" if default is None else ""
    return option(default, f"tokens computed together{usual}", minimum=1, changes=SPEED)


def tokens_per_batch() -> Any:
    """Return the field of ``--max-tokens`` of a training."""
    return option(None, "tokens per batch (default: 4096, on a GPU 16384, or the longest example)", minimum=1)


def model() -> Any:
    """Return the field of a model that translates."""
    return argument("a checkpoint, its folder, or a model's name or address", read=local_path, apart=True)


def report(unit: str) -> Any:
    """Return the field of ``--report``, whose table has a row per ``unit``."""
    return option(
        None,
        f"write a table with a row per {unit}: lines, repaired, doubtful, loops, length ratio, duplicates, seconds; as "
        "JSON if its name ends in .json",
        metavar="FILE",
        writes=TABLE,
    )


def overlap(help: str = "see lasformer generate") -> Any:
    """Return the field of ``--overlap``."""
    return option(None, help, metavar="SENTENCES", minimum=0)


def jobs(help: str) -> Any:
    """Return the field of ``--jobs``."""
    return option(1, help, minimum=1, changes=SPEED)


def glossary(help: str = "required translations: source term, tab, target term") -> Any:
    """Return the field of ``--glossary``."""
    return option(None, help, metavar="FILE")


def language(side: str, help: str, default: Any = None) -> Any:
    """Return the field of ``--source-lang`` or ``--target-lang``."""
    more = {} if default is None else {"default": None if default == "" else default}
    return option(help=f"{side} language{help}", short=f"-{side[0]}", read=language_code, **more)


def language_code(name: str) -> str:
    """Return the name of a language, which is part of files' names.

    Raises:
        InputError: it cannot be.
    """
    if not re.fullmatch(r"\w[\w@.-]{0,31}", name):
        raise InputError(f"{name!r}: not a language code, such as en, zh or sr-Latn")
    return name


@dataclass(frozen=True, kw_only=True)
class FairseqDecoding(Device, Beam):
    """Decoding by fairseq-generate."""

    max_tokens: int | None = max_tokens()
    options: tuple[str, ...] = following("After -- : further options of fairseq-generate, such as --lenpen 0.8.")

    def fairseqs_options(self) -> list[str]:
        """Return fairseq-generate's options for these, then the user's own, which take precedence.

        Raises:
            InputError: the device is unknown.
        """
        device, _, number = self.device.partition(":")
        if device not in ("auto", "cpu", "cuda") or (number and (device != "cuda" or not number.isdecimal())):
            raise InputError(f"--device {self.device}: expected cpu, cuda or cuda:N")
        options = ["--cpu"] if device == "cpu" else []
        options += ["--device-id", number] if number else []
        options += ["--beam", str(self.beam)] if self.beam != BEAM else []
        options += [] if self.max_tokens is None else ["--max-tokens", str(self.max_tokens)]
        return [*options, *self.options]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Options of the task for decoding."""

    decode_dtype: str = option(
        "float32",
        "on a CPU: type of the linear layers' weights; int8 is faster and nearly as exact",
        choices=("float32", "int8"),
    )
    cache_dtype: str = option(
        "float32",
        "on a CPU: type of cached keys and values; int8 is faster for long texts",
        choices=("float32", "int8"),
    )
    reproducible: bool = option(
        False,
        "refuse whatever does not give a byte-identical translation in every batch, with any number of threads and on "
        "every processor (default: translate anyway)",
    )
    shortlist: Path | None = option(
        None,
        "score only words that may occur in a document's translation, as listed in a file from lasformer shortlist: "
        "faster for large vocabularies",
        metavar="FILE",
    )

    def decoding(self) -> dict[str, Any]:
        """Return those whose value differs from the default, by name."""
        asked = {"decode_dtype": self.decode_dtype, "cache_dtype": self.cache_dtype}
        options: dict[str, Any] = {name: value for name, value in asked.items() if value != "float32"}
        options |= {"reproducible": True} if self.reproducible else {}
        return options if self.shortlist is None else {**options, "shortlist": str(self.shortlist.resolve())}


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The workers, see :mod:`fairseq_lasformer.executors`."""

    engine: str = option(
        "processes",
        "where work runs: processes on this machine, ray (Ray workers on it), or ray=HOST:PORT or ray=auto, workers of "
        "a cluster",
        metavar="ENGINE",
        changes=SPEED,
    )


@dataclass(frozen=True, kw_only=True)
class Remembering:
    """A translation memory."""

    memory: Path | None = option(
        None,
        "a translation memory (lasformer memory build): its terms, and sentences of files that it has verbatim, get "
        "their translation there; models trained with memories also read similar pairs",
        metavar="FILE",
        apart=True,
    )


@dataclass(frozen=True, kw_only=True)
class Overwrite:
    """Permission to replace files."""

    overwrite: bool = option(False, "replace existing files", changes=NOTHING)


@dataclass(frozen=True, kw_only=True)
class OverwriteOthers:
    """Permission to replace files of a different kind."""

    overwrite: bool = option(
        False, "replace existing files (default: only those of the same kind that lasformer wrote)", changes=NOTHING
    )


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Messages on the terminal."""

    quiet: bool = option(False, "no progress bar, no summary", changes=NOTHING)
    verbose: bool = option(False, "show what fairseq logs", changes=NOTHING)


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
