"""Subcommand ``explain``: shows which earlier line decided a word of a translation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lasformer.apps.files.translate_options import Reading, given, given_of, set_verbosity
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import EXPLANATION, argument, option
from fairseq_lasformer.base.shared_options import Beam, Data, Decoding, Device, Messages, OverwriteOthers, model

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, kw_only=True)
class Explain(Data, Reading, Beam, Device, Decoding, OverwriteOthers, Messages):
    """An explanation of a translation."""

    model: Path = model()
    file: Path = argument("the text, in any format that lasformer translate reads", apart=True)
    given: Path | None = given()
    line: tuple[int, ...] = option(
        (), "number of the sentence to explain; may be repeated (default: all)", metavar="N", append=True, minimum=1
    )
    thorough: bool = option(
        False,
        "also for all sentences: the word in the deciding line, other lines that give as much, and the cost of leaving "
        "them out (default: with --line)",
    )
    json: Path | None = option(None, "also write the explanation to this file", writes=EXPLANATION)
    epilog = "The translation is the model's own, unless --given has it."


def run_explain(args: Explain) -> None:
    set_verbosity(args.verbose)
    from fairseq_lasformer import formats
    from fairseq_lasformer.apps.files.file_translator import FileTranslator
    from fairseq_lasformer.base.files import atomic_write, check_writable
    from fairseq_lasformer.documents.because import explain
    from fairseq_lasformer.documents.hub import load_model

    if args.json:
        check_writable(args.json)
    try:
        data = args.file.read_bytes()
    except OSError as e:
        raise InputError(f"{args.file}: cannot be read ({e.strerror})") from e
    form = args.form or formats.check_format(args.file.name, "; or choose one with --from")
    hub = load_model(args.model, args.data, args.device, **args.decoding())
    files = FileTranslator(hub, args.beam, lines=args.lines)
    known = given_of(args.given, data, form, args.encoding, files.languages)
    (translated,) = files.translate([files.open(data, form, args.encoding)], given=[known])
    lines = [(i, sentence.line.source, sentence.line.translation) for i, sentence in enumerate(translated.lines, 1)]
    if missing := sorted(set(args.line) - {number for number, *_ in lines}):
        raise InputError(f"--line {missing[0]}: {args.file} has {len(lines)} sentences")
    words = explain(hub, lines, args.line or None, args.thorough or None)
    print(words.table())
    if args.json:
        atomic_write(args.json, json.dumps(words.as_dict(), ensure_ascii=False, indent=1) + "\n")
