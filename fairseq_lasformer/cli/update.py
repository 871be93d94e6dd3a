"""Subcommand ``update``: updates a translation after its source has changed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from fairseq_lasformer.cli.translate_options import Reading, set_verbosity
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.options import NOTHING, OWN, argument, option, text_settings
from fairseq_lasformer.shared_options import Beam, Data, Decoding, Device, Messages, Remembering, glossary, model

CHANGED = 3
"""Exit code with ``--exit-code``, if the translation has changed."""


@dataclass(frozen=True, kw_only=True)
class Update(Data, Reading, Remembering, Beam, Device, Decoding, Messages):
    """An update of a translation."""

    model: Path = model()
    old: Path = argument("the source as it was, a file or a folder", apart=True)
    translated: Path = argument("its translation; in a folder, files have their source's names", apart=True)
    new: Path = argument("the source as it is now", apart=True)
    out: Path = option(help="file or folder to write; may be the old translation", short="-o", writes=OWN)
    edits: str = option(
        "stay",
        "whether edited lines, those that the model would not have written, may change",
        choices=("stay", "may-change"),
    )
    machine: Path | None = option(
        None,
        "the translation as the model wrote it; lines that differ from it count as edited",
        metavar="FILE|FOLDER",
        apart=True,
    )
    glossary: Path | None = glossary("see lasformer translate")
    exit_code: bool = option(False, f"exit with {CHANGED} if the translation differs from the old one", changes=NOTHING)
    overwrite: bool = option(
        False,
        "replace an existing file that is not the old translation (default: only those that an update wrote)",
        changes=NOTHING,
    )


def run_update(args: Update) -> None:
    set_verbosity(args.verbose)
    from fairseq_lasformer import formats
    from fairseq_lasformer.checkpoints.loading import chosen, identity
    from fairseq_lasformer.documents.hub import load_model
    from fairseq_lasformer.file_translation.file_translator import FileTranslator
    from fairseq_lasformer.file_translation.file_update import FileUpdater, UpdatedFile
    from fairseq_lasformer.file_translation.update_jobs import UpdateJob, check_form, plan_update, update_all

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
    model = load_model(args.model, args.data, args.device, **args.decoding())
    memory = args.opened_memory((model.settings.source_lang, model.settings.target_lang))
    files = FileTranslator(model, args.beam, None, args.glossary, args.lines, memory=memory)
    updater = FileUpdater(files, args.edits == "may-change")
    failed, changed = 0, gone > 0
    with tqdm(total=0, desc="updating", unit=" sentences", disable=args.quiet) as bar:

        def begin(n: int) -> None:
            bar.total += n
            bar.refresh()

        settings = text_settings(args) | {
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
