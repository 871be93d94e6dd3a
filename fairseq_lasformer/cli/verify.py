"""Subcommand ``verify``: repeats the translation of a receipt and compares the bytes."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fairseq_lasformer.cli.translate_options import (
    FILES,
    RECORDED,
    add_translate,
    check_options,
    given_of,
    options_of,
    set_verbosity,
    translator_of,
)
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import check_regular

if TYPE_CHECKING:
    from fairseq_lasformer.file_translation.receipt import Receipt


def add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("receipt", type=Path, help="a receipt that lasformer translate --receipt wrote")
    parser.add_argument("file", type=Path, help="the file that was translated")
    parser.add_argument(
        "--translation", type=Path, help="its translation (default: the file beside the receipt, by its name)"
    )
    parser.add_argument("--model", type=Path, help="the checkpoint (default: the path in the receipt)")
    parser.add_argument("--data", type=Path, help="the prepared folder (default: the path in the receipt)")
    for name in FILES:
        parser.add_argument(
            f"--{name}", type=Path, metavar="FILE", help="this option's file (default: the path in the receipt)"
        )
    parser.add_argument("--quiet", action="store_true", help="print nothing if the translation is the same")
    parser.add_argument("--verbose", action="store_true", help="show what fairseq logs")
    parser.epilog = (
        "Example: lasformer translate --verify letter.de.txt.receipt.json letter.txt --model checkpoints/mine"
    )


class _Options(argparse.ArgumentParser):
    """A parser of a receipt's options, which raises :class:`InputError` for invalid ones."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"the receipt's options: {message}")


def run_verify(args: argparse.Namespace) -> None:
    set_verbosity(args.verbose)
    from fairseq_lasformer import formats
    from fairseq_lasformer.file_translation.outputs import present
    from fairseq_lasformer.file_translation.receipt import ENDING, Maker, Receipt, same
    from fairseq_lasformer.version import __version__

    receipt = Receipt.read(args.receipt)
    translation = args.translation or args.receipt.with_name(args.receipt.name.removesuffix(ENDING))
    check_regular(translation, "; name the translation with --translation")
    if translation.samefile(args.receipt):
        raise InputError(f"{args.receipt}: no name of a receipt; name the translation with --translation")
    data, made = _content(args.file), _content(translation)
    if hashlib.sha256(data).hexdigest() != receipt.source:
        raise InputError(f"{args.file}: not the file that was translated: its SHA-256 differs")
    if hashlib.sha256(made).hexdigest() != receipt.translation:
        raise InputError(f"{translation}: not the translation of this receipt: its SHA-256 differs")
    again = _as_then(args, receipt)
    files = {name: getattr(again, name) for name in receipt.files}
    now = Maker.of(again.model, again.data, receipt.options, files).begin(data, again.form)
    same(receipt, now)
    translator = translator_of(again)
    file = formats.read(data, again.form, again.encoding, options_of(again).finishing, translator.languages[0])
    (done,) = translator.translate([file], given=[given_of(again, data, again.form)])
    found = hashlib.sha256(present(done, again.format, receipt.key)).hexdigest()
    if found != receipt.translation:
        mine, other = __version__, receipt.version
        hint = "" if mine == other else f"; the old one is by version {other} of fairseq_lasformer, this is {mine}"
        raise InputError(f"{translation}: the new translation differs{hint}")
    if not args.quiet:
        counts = done.counts
        origin = f"{counts.given} were given, {counts.exact} taken from a memory; the model made the others"
        print(f"{translation}: the same translation of {args.file}, SHA-256 {found}")
        print(f"{translation}: of {counts.sentences} sentences, {origin}")


def _content(path: Path) -> bytes:
    check_regular(path)
    try:
        return path.read_bytes()
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e


def _as_then(args: argparse.Namespace, receipt: Receipt) -> argparse.Namespace:
    """Return the options of ``lasformer translate`` that a receipt records.

    Raises:
        InputError: one is unknown or invalid, or a file is missing.
    """
    from fairseq_lasformer.checkpoints.loading import chosen

    unknown = {*receipt.options} - {*RECORDED, "form"} | {*receipt.files} - {*FILES}
    if unknown:
        raise InputError(f"{args.receipt}: contains unknown options: {', '.join(sorted(unknown))[:200]}")
    here = args.receipt.parent
    needed = ("model", "data", *receipt.files)
    places = {name: getattr(args, name) or here / receipt.places.get(name, "none") for name in needed}
    for name, place in places.items():
        folder = os.path.isdir(place)
        if not (folder and name in ("model", "data")):
            check_regular(place, f"; name it with --{name}")
        if name == "data" and not folder:
            raise InputError(f"{place}: not a prepared folder; name it with --data")
    places["model"] = chosen(places["model"])
    check_regular(places["model"], "; name it with --model")
    words = ["--reproducible", f"--from={receipt.options.get('form')}"]
    for name, value in receipt.options.items():
        option = f"--{name.replace('_', '-')}"
        if name != "form" and value is not None and value is not False:
            words.append(option if value is True else f"{option}={value}")
    parser = _Options(add_help=False)
    add_translate(parser)
    again = parser.parse_args([*words, "--", str(places["model"]), str(args.file)])
    check_options(again)
    again.data = places["data"]
    for name in receipt.files:
        setattr(again, name, places[name])
    return again
