"""Subcommand ``update``: a translation follows its source."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from fairseq_lasformer.cli import add_beam, add_decoding, add_device, add_memory_options, decoding_of, memory_of
from fairseq_lasformer.cli.translate import set_verbosity
from fairseq_lasformer.errors import InputError

CHANGED = 3
"""Exit code of ``--exit-code``, if the translation is another one than before."""


def add_update(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a checkpoint, or the folder of one")
    parser.add_argument("old", type=Path, help="the source as it was")
    parser.add_argument("translated", type=Path, help="its translation")
    parser.add_argument("new", type=Path, help="the source as it is now")
    parser.add_argument("-o", "--out", type=Path, required=True, help="file to write; may be the old translation")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument("--from", dest="form", metavar="FORMAT", help="see lasformer translate")
    parser.add_argument(
        "--lines", action="store_true", help="every line is one sentence (default: sentences are found)"
    )
    parser.add_argument("--encoding", help="encoding of text files (default: detected)")
    parser.add_argument(
        "--edits",
        choices=("stay", "may-change"),
        default="stay",
        help="lines of the translation that the model would not have written, which somebody has edited (default: "
        "%(default)s)",
    )
    parser.add_argument("--glossary", type=Path, metavar="FILE", help="see lasformer translate")
    add_memory_options(parser, exact=False)
    parser.add_argument(
        "--exit-code", action="store_true", help=f"exit with {CHANGED} if the translation differs from the old one"
    )
    add_beam(parser)
    add_device(parser)
    add_decoding(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    parser.add_argument("--verbose", action="store_true", help="show what fairseq logs")


def run_update(args: argparse.Namespace) -> None:
    set_verbosity(args.verbose)
    from fairseq_lasformer import formats
    from fairseq_lasformer.documents.hub import load_model
    from fairseq_lasformer.file_translation.file_translator import FileTranslator
    from fairseq_lasformer.file_translation.file_update import FileUpdater
    from fairseq_lasformer.files import check_writable, replacing

    form = args.form or formats.check_format(args.new.name, "; or choose one with --from")
    if form not in formats.FORMATS:
        raise InputError(f"--from {form}: expected one of {', '.join(formats.FORMATS)}")
    if form in ("po", "xliff"):
        raise InputError(
            f"{args.new}: holds its own translation; merge the new source into it (msgmerge, your tool), and "
            "lasformer translate fills what is missing, with the rest as context"
        )
    if args.beam < 1:
        raise InputError("--beam: at least 1")
    if args.out.resolve() in (args.old.resolve(), args.new.resolve()):
        raise InputError(f"{args.out}: is a source; choose another file with -o")
    check_writable(args.out)
    read = []
    for path in (args.old, args.translated, args.new):
        try:
            read.append(formats.read(path.read_bytes(), form, args.encoding))
        except OSError as e:
            raise InputError(f"{path}: cannot be read ({e.strerror})") from e
        except InputError as e:
            raise InputError(f"{path}: {e}") from e
    model = load_model(args.model, args.data, args.device, **decoding_of(args))
    memory = memory_of(args, (model.settings.source_lang, model.settings.target_lang))
    files = FileTranslator(model, args.beam, glossary=args.glossary, lines=args.lines, memory=memory)
    updater = FileUpdater(files, args.edits == "may-change")
    with tqdm(total=0, desc="updating", unit=" sentences", disable=args.quiet) as bar:
        try:
            found = updater.update(read[0], read[1], read[2], bar.update, bar.reset)
        except InputError as e:
            raise InputError(f"{args.translated}: {e}") from e
    with replacing(args.out, "wb") as file:
        file.write(found.made.data)
    if not args.quiet:
        print(f"{args.out}: {found.summary()}", file=sys.stderr)
    if args.exit_code and found.changed:
        sys.exit(CHANGED)
