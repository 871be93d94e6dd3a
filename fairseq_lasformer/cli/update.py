"""Subcommand ``update``: updates a translation after its source has changed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from fairseq_lasformer.cli import add_beam, add_decoding, add_device, add_memory_options, decoding_of, memory_of
from fairseq_lasformer.cli.translate_options import set_verbosity
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.file_translation.update_record import digest
from fairseq_lasformer.shared import model_path

CHANGED = 3
"""Exit code with ``--exit-code``, if the translation has changed."""


def add_update(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=model_path, help="a checkpoint, its folder, or the name of a model in data/models"
    )
    parser.add_argument("old", type=Path, help="the source as it was, a file or a folder")
    parser.add_argument("translated", type=Path, help="its translation; in a folder, files have their source's names")
    parser.add_argument("new", type=Path, help="the source as it is now")
    parser.add_argument(
        "-o", "--out", type=Path, required=True, help="file or folder to write; may be the old translation"
    )
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument("--from", dest="form", metavar="FORMAT", help="see lasformer translate")
    parser.add_argument(
        "--lines", action="store_true", help="every line is one sentence (default: sentences are detected)"
    )
    parser.add_argument("--encoding", help="encoding of text files (default: detected)")
    parser.add_argument(
        "--edits",
        choices=("stay", "may-change"),
        default="stay",
        help="whether edited lines, those that the model would not have written, may change (default: %(default)s)",
    )
    parser.add_argument(
        "--machine",
        type=Path,
        metavar="FILE|FOLDER",
        help="the translation as the model wrote it; lines that differ from it count as edited",
    )
    parser.add_argument(
        "--consistent", action="store_true", help="use the terms of kept lines in new ones; see lasformer translate"
    )
    parser.add_argument("--glossary", type=Path, metavar="FILE", help="see lasformer translate")
    add_memory_options(parser, exact=False)
    parser.add_argument(
        "--exit-code", action="store_true", help=f"exit with {CHANGED} if the translation differs from the old one"
    )
    add_beam(parser)
    add_device(parser)
    add_decoding(parser)
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an existing file that is not the old translation (default: only those that an update wrote)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    parser.add_argument("--verbose", action="store_true", help="show what fairseq logs")


FILES = ("old", "translated", "new", "out", "machine")
NO_CHANGE = ("model", "data", "device", "memory", "exit_code", "overwrite", "quiet", "verbose", "command", "run")
"""Options that a repeated update need not share; files, the model, its data and the memory are compared themselves."""


def settings_of(args: argparse.Namespace) -> dict[str, object]:
    """Return the values of all options that the text of an update depends on, of files the content.

    Raises:
        InputError: a file cannot be read.
    """
    values = {name: value for name, value in vars(args).items() if name not in (*FILES, *NO_CHANGE)}
    return {name: digest(value) if isinstance(value, Path) else value for name, value in values.items()}


def run_update(args: argparse.Namespace) -> None:
    set_verbosity(args.verbose)
    from fairseq_lasformer import formats
    from fairseq_lasformer.checkpoints.loading import chosen, identity
    from fairseq_lasformer.documents.hub import load_model
    from fairseq_lasformer.file_translation.file_translator import FileTranslator
    from fairseq_lasformer.file_translation.file_update import FileUpdater, UpdatedFile
    from fairseq_lasformer.file_translation.update_jobs import (
        UpdateJob,
        check_form,
        plan_update,
        update_all,
    )

    if args.form is not None and args.form not in formats.FORMATS:
        raise InputError(f"--from {args.form}: expected one of {', '.join(formats.FORMATS)}")
    if args.beam < 1:
        raise InputError("--beam: at least 1")
    folder, gone = args.new.is_dir(), 0
    if folder:
        found = plan_update(args.old, args.translated, args.new, args.out, args.form, args.machine)
        jobs, gone = found.jobs, len(found.gone)
        if not jobs:
            raise InputError(f"{args.new}: contains no file of a known format; choose one with --from")
        for title, paths in (("gone; their translations are kept", found.gone), ("of unknown format", found.others)):
            if paths and not args.quiet:
                print(f"{title}: {', '.join(map(str, paths[:5]))} ({len(paths)})", file=sys.stderr)
    else:
        form = args.form or formats.check_format(args.new.name, "; or choose one with --from")
        check_form(args.new, form)
        jobs = [UpdateJob(args.old, args.translated, args.new, args.out, form, args.machine)]
    model = load_model(args.model, args.data, args.device, **decoding_of(args))
    memory = memory_of(args, (model.settings.source_lang, model.settings.target_lang))
    files = FileTranslator(model, args.beam, None, args.glossary, args.lines, memory=memory, consistent=args.consistent)
    updater = FileUpdater(files, args.edits == "may-change")
    failed, changed = 0, gone > 0
    with tqdm(total=0, desc="updating", unit=" sentences", disable=args.quiet) as bar:

        def begin(n: int) -> None:
            bar.total += n
            bar.refresh()

        settings = settings_of(args) | {
            "model": identity(chosen(args.model)),
            "data": model.settings.fingerprint,
            "memory": memory.state if memory is not None else (),
        }
        device = args.out.exists() and not (folder or args.out.is_file())
        top = None if device else args.out if folder else args.out.resolve().parent
        results = update_all(updater, jobs, top, settings, args.encoding, args.overwrite, bar.update, begin)
        for job, made in results:
            failed += isinstance(made, InputError)
            changed |= isinstance(made, UpdatedFile) and made.changed
            if isinstance(made, InputError):
                if not folder:
                    raise made
                bar.write(f"error: {made}", file=sys.stderr)
            elif not args.quiet:
                what = "done before" if made is None else made.summary()
                bar.write(f"{job.out}: {what}", file=sys.stderr)
    if failed:
        raise InputError(f"{failed} of {len(jobs)} files could not be updated")
    if args.exit_code and changed:
        sys.exit(CHANGED)
