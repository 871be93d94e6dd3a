"""Subcommand ``verify``: repeats the translation of a receipt and compares the bytes."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lasformer.cli.translate_options import (
    FILES,
    RECORDED,
    Translate,
    checked,
    files_options,
    given_of,
    set_verbosity,
    translator_of,
)
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import check_regular
from fairseq_lasformer.options import argument, option, read_section
from fairseq_lasformer.shared_options import Messages

if TYPE_CHECKING:
    from fairseq_lasformer.file_translation.receipt import Receipt


def _file(what: str, metavar: str | None = None) -> Any:
    return option(None, f"{what} (default: the path in the receipt)", metavar=metavar)


@dataclass(frozen=True, kw_only=True)
class Verify(Messages):
    """A repetition of a translation; it prints nothing with --quiet if the bytes are the same."""

    receipt: Path = argument("a receipt that lasformer translate --receipt wrote")
    file: Path = argument("the file that was translated")
    translation: Path | None = option(None, "its translation (default: the file beside the receipt, by its name)")
    model: Path | None = _file("the checkpoint")
    data: Path | None = _file("the prepared folder")
    glossary: Path | None = _file("this option's file", "FILE")
    memory: Path | None = _file("this option's file", "FILE")
    given: Path | None = _file("this option's file", "FILE")
    epilog = "Example: lasformer translate --verify letter.de.txt.receipt.json letter.txt --model checkpoints/mine"


def run_verify(args: Verify) -> None:
    set_verbosity(args.verbose)
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
    form = again.form or "text"
    now = Maker.of(again.model, again.data or Path(), receipt.options, files).begin(data, form)
    same(receipt, now)
    translator = translator_of(again)
    file = translator.open(data, form, again.encoding, files_options(again).finishing, True)
    known = given_of(again.given, data, form, again.encoding, translator.languages)
    (done,) = translator.translate([file], given=[known])
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


def _as_then(args: Verify, receipt: Receipt) -> Translate:
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
    names = [*RECORDED, "form"]
    options = read_section(Translate, dict(receipt.options), f"{args.receipt}: options", names)
    found = {name: places[name] for name in needed}
    return checked(Translate(**options | found, reproducible=True, input=(str(args.file),)))
