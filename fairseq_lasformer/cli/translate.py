"""Subcommand ``translate``: files, folders and standard input."""

from __future__ import annotations

import argparse
import logging
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from fairseq_lasformer.cli import (
    add_beam,
    add_decoding,
    add_device,
    add_max_tokens,
    add_memory_options,
    decoding_of,
    memory_of,
    shard_of,
)
from fairseq_lasformer.errors import InputError

if TYPE_CHECKING:
    from fairseq_lasformer.file_translation.file_jobs import Job, Options
    from fairseq_lasformer.file_translation.file_translator import FileTranslator
    from fairseq_lasformer.file_translation.reading import Blocks

_BINARY = ("docx", "odt")


def add_translate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="a checkpoint, or the folder of one")
    parser.add_argument(
        "input", nargs="?", default="-", metavar="FILE|FOLDER|-", help="what to translate (default: standard input)"
    )
    parser.add_argument("-o", "--out", help="file or folder to write (default: standard output)")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument(
        "--from",
        dest="form",
        metavar="FORMAT",
        help="text, wrapped (text whose lines are wrapped), markdown, html, docx, odt, subtitles, cues (subtitles, "
        "each for itself), po or xliff (default: by the end of the file's name)",
    )
    parser.add_argument(
        "--format",
        default="text",
        metavar="FORMAT",
        help="text: as the input; tsv or jsonl: source, translation, score and whether it was repaired, per sentence, "
        "jsonl with the matches of a memory (default: %(default)s)",
    )
    parser.add_argument(
        "--lines", action="store_true", help="every line is one sentence (default: sentences are found)"
    )
    parser.add_argument("--encoding", help="encoding of text files (default: detected)")
    add_beam(parser)
    parser.add_argument("--nbest", type=int, default=1, help="translations per sentence, with --format tsv or jsonl")
    parser.add_argument("--overlap", type=int, metavar="SENTENCES", help="see lasformer generate")
    parser.add_argument(
        "--glossary", type=Path, metavar="FILE", help="required translations: source term, tab, target term"
    )
    add_memory_options(parser)
    parser.add_argument(
        "--consistent",
        action="store_true",
        help="give each term of a document one translation: lines with another one are translated again, unless they "
        "lose too much by it",
    )
    parser.add_argument(
        "--given",
        type=Path,
        metavar="FILE",
        help="what is translated already. Of a text: a table of line number, tab, translation, or as many lines, empty "
        "where the translation is missing; of another format: a copy of the file in which some texts are translated",
    )
    parser.add_argument("--no-look-ahead", action="store_true", help="lines before given ones do not depend on these")
    parser.add_argument(
        "--unreviewed",
        action="store_true",
        help="read fuzzy and unreviewed translations of .po and XLIFF files as context, too (default: finished ones)",
    )
    add_max_tokens(parser, 8192)
    add_device(parser)
    add_decoding(parser)
    parser.add_argument("--shard", metavar="I/N", help="of a folder's files, every Nth, from the Ith on")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace files that exist (default: only those that this run wrote)"
    )
    parser.add_argument(
        "--any-language",
        action="store_true",
        help="translate .po and XLIFF files that say that they are in other languages than the model's",
    )
    parser.add_argument(
        "--no-review-marks",
        action="store_true",
        help='do not mark translations in .po ("fuzzy") and XLIFF ("needs-review-translation") for review',
    )
    parser.add_argument(
        "--subtitle-width",
        type=int,
        default=42,
        metavar="CHARACTERS",
        help="lines of subtitles beyond this are wrapped anew; 0: never (default: %(default)s)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    parser.add_argument("--verbose", action="store_true", help="show what fairseq logs")
    parser.set_defaults(late=("input", "-"))
    parser.epilog = (
        "Examples: lasformer translate checkpoints/mine letter.docx -o brief.docx; … translate checkpoints/mine < a.txt"
    )


def set_verbosity(verbose: bool) -> None:
    """Shows the log lines of fairseq, Hydra and torch, or keeps them and all warnings from the terminal."""
    if verbose:
        logging.getLogger().setLevel(logging.INFO)
    else:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)


def run_translate(args: argparse.Namespace) -> None:
    set_verbosity(args.verbose)
    from fairseq_lasformer.file_translation.file_jobs import OUTPUTS
    from fairseq_lasformer.formats import FORMATS

    if args.form is not None and args.form not in FORMATS:
        raise InputError(f"--from {args.form}: expected one of {', '.join(FORMATS)}")
    if args.format not in OUTPUTS:
        raise InputError(f"--format {args.format}: expected one of {', '.join(OUTPUTS)}")
    if args.nbest < 1 or args.beam < 1:
        raise InputError("--beam and --nbest: at least 1")
    if args.nbest > 1 and args.format == "text":
        raise InputError("--nbest: needs --format tsv or jsonl, which have room for more than one translation")
    if args.max_tokens < 1 or (args.overlap or 0) < 0 or args.subtitle_width < 0:
        raise InputError("--max-tokens: at least 1; --overlap and --subtitle-width: at least 0")
    shard_of(args.shard)
    if args.given and Path(args.input).is_dir():
        raise InputError("--given: for one text, not for a folder")
    place = Path(args.input)
    _check_places(args, place)
    if args.input != "-" and place.is_dir():
        _folder(args, place)
    elif args.out is None:
        _to_standard_output(args, place)
    else:
        _file(args, place)


def _check_places(args: argparse.Namespace, place: Path) -> None:
    """Answers the usual mix-ups of model, input and output.

    Raises:
        InputError: says what to do.
    """
    from fairseq_lasformer.formats import INSTEAD, format_of

    if args.model.is_file() and (format_of(args.model.name) or args.model.suffix.lower() in INSTEAD):
        model = "MODEL" if args.input == "-" or not place.is_dir() else args.input
        raise InputError(f"{args.model}: is no model; name the model first: lasformer translate {model} {args.model}")
    if args.input == "-":
        if sys.stdin is not None and sys.stdin.isatty():
            print("reading from the keyboard; end with Ctrl-D", file=sys.stderr)
        return
    if not place.exists():
        raise InputError(f"{place}: no such file or folder")
    language = args.out and re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?", args.out)
    if language and place.is_file() and not Path(args.out).exists():
        raise InputError(
            f"-o {args.out}: would be a file of this name; write {args.out}/ for a folder, or a name with an ending. A "
            "model translates into one language"
        )


def _options(args: argparse.Namespace, inputs: Sequence[Path] = ()) -> Options:
    from fairseq_lasformer.file_translation.file_jobs import Options
    from fairseq_lasformer.formats import Finishing

    finishing = Finishing(not args.no_review_marks, args.subtitle_width)
    return Options(args.overwrite, args.any_language, finishing, frozenset(path.resolve() for path in inputs))


def _translator(args: argparse.Namespace) -> FileTranslator:
    from fairseq_lasformer.documents.hub import load_model
    from fairseq_lasformer.file_translation.file_translator import FileTranslator

    model = load_model(args.model, args.data, args.device, **decoding_of(args))
    return FileTranslator(
        model,
        args.beam,
        args.overlap,
        args.glossary,
        lines=args.lines,
        alternatives=args.nbest - 1,
        max_tokens=args.max_tokens,
        unreviewed=args.unreviewed,
        memory=memory_of(args, (model.settings.source_lang, model.settings.target_lang)),
        consistent=args.consistent,
        **({"no_look_ahead": True} if args.no_look_ahead else {}),
    )


def _given(args: argparse.Namespace, data: bytes, form: str) -> Blocks | None:
    """The translations of ``--given`` for the blocks of a file; None without it.

    Raises:
        InputError: the file cannot be read, or does not belong to what is translated.
    """
    from fairseq_lasformer.file_translation.reading import given_blocks, given_lines_of_text

    if args.given is None:
        return None
    try:
        known = args.given.read_bytes()
    except OSError as e:
        raise InputError(f"--given {args.given}: cannot be read ({e.strerror})") from e
    given = given_lines_of_text if form == "text" else given_blocks
    return given(data, known, form, args.encoding, str(args.given))


def _bar(hidden: bool) -> tqdm:
    return tqdm(total=0, desc="translating", unit=" sentences", disable=hidden)


def _growing(bar: tqdm) -> Callable[[int], None]:
    """Adds sentences to those that a bar waits for."""

    def begin(sentences: int) -> None:
        bar.total = (bar.total or 0) + sentences
        bar.refresh()

    return begin


def _form(args: argparse.Namespace, place: Path) -> str:
    """The format of a file; text if it comes from standard input."""
    from fairseq_lasformer.formats import check_format

    form = args.form or ("text" if args.input == "-" else check_format(place.name, "; or choose one with --from"))
    # a sentence of several cues can only be translated as a whole, but each cue may be given
    return "cues" if args.given and form == "subtitles" else str(form)


def _to_standard_output(args: argparse.Namespace, place: Path) -> None:
    from fairseq_lasformer import formats
    from fairseq_lasformer.file_translation.file_jobs import present

    form = _form(args, place)
    if form in _BINARY and args.format == "text":
        raise InputError(f"{place}: name the translated file with -o")
    try:
        data = sys.stdin.buffer.read() if args.input == "-" else place.read_bytes()
    except OSError as e:
        raise InputError(f"{place}: cannot be read ({e.strerror})") from e
    name = "standard input" if args.input == "-" else str(place)
    try:
        file = formats.read(data, form, args.encoding, _options(args).finishing)
        translator = _translator(args)
        if not args.any_language:
            formats.check_languages(file, *translator.languages)
    except InputError as e:
        raise InputError(str(e) if str(e).startswith(str(args.model)) else f"{name}: {e}") from e
    with _bar(args.quiet or not sys.stderr.isatty()) as bar:
        given = _given(args, data, form)
        (done,) = translator.translate([file], bar.update, begin=_growing(bar), given=[given])
    sys.stdout.buffer.write(present(done, args.format))
    sys.stdout.buffer.flush()
    if not args.quiet and (args.input != "-" or sys.stderr.isatty()):
        print(f"{name}: {done.counts.summary()}", file=sys.stderr)


def _file(args: argparse.Namespace, place: Path) -> None:
    from fairseq_lasformer.file_translation.file_jobs import Job, suffix

    form = _form(args, place)
    target = Path(args.out)
    if target.is_dir() or args.out.endswith("/"):
        target = target / ((place.name if args.input != "-" else "translation.txt") + suffix(args.format))
    source = Path("/dev/stdin") if args.input == "-" else place
    try:
        same = source.resolve() == target.resolve()
    except (OSError, RuntimeError) as e:
        raise InputError(f"{target}: cannot be written (a link that leads to itself)") from e
    if same:
        raise InputError(f"{target}: is the file that is translated; choose another one with -o")
    _run(args, [Job(source, target, form)], target.parent / f".{target.name}.lasformer")


def _folder(args: argparse.Namespace, place: Path) -> None:
    from fairseq_lasformer.file_translation.file_jobs import plan

    if args.out is None:
        raise InputError(f"{place}: name the folder for the translations with -o")
    number, total = shard_of(args.shard)
    out = Path(args.out)
    found = plan(place, out, args.format, args.form)
    if not found.jobs:
        raise InputError(f"{place}: holds no file of a known format; choose one with --from")
    if found.others and not args.quiet:
        names = ", ".join(str(path.relative_to(place)) for path in found.others[:5])
        more = ", …" if len(found.others) > 5 else ""
        print(f"left alone, of unknown format: {names}{more} ({len(found.others)})", file=sys.stderr)
    state = out / ".lasformer" / (f"{number + 1}-of-{total}" if total > 1 else "all")
    _run(args, found.jobs[number::total], state, [job.source for job in found.jobs])


def _run(args: argparse.Namespace, jobs: Sequence[Job], state: Path, inputs: Sequence[Path] = ()) -> None:
    """Translates files, tells what became of them, and fails if one of them did."""
    import hashlib
    import shutil

    from fairseq_lasformer.checkpoints.loading import chosen, identity
    from fairseq_lasformer.file_translation.file_jobs import translate_jobs

    translator, options = _translator(args), _options(args, inputs)
    glossary = args.glossary.read_text(encoding="utf-8") if args.glossary else ""
    settings: tuple[object, ...] = (*identity(chosen(args.model)), translator.model.settings.fingerprint)
    settings += (args.beam, args.nbest, args.overlap, args.lines, glossary, args.decode_dtype, args.cache_dtype)
    settings += (hashlib.sha256(args.shortlist.read_bytes()).hexdigest() if args.shortlist else "",)
    given = None
    if args.given:
        (job,) = jobs
        if args.input == "-":
            raise InputError("--given: name the file of the text, or write to standard output (without -o)")
        try:
            given = {job.source: _given(args, job.source.read_bytes(), job.form)}
        except OSError as e:
            raise InputError(f"{job.source}: cannot be read ({e.strerror})") from e
    known = [(i, block.text) for its in (given or {}).values() for i, block in (its or {}).items()]
    settings += (args.no_look_ahead, args.unreviewed, args.consistent, known)
    settings += translator.memory.state if translator.memory is not None else ()
    failed = 0
    with _bar(args.quiet) as bar:
        begin = _growing(bar)
        for result in translate_jobs(
            translator, jobs, state, settings, args.format, args.encoding, begin, bar.update, options, given
        ):
            failed += bool(result.error)
            name = result.job.source
            if result.error:
                bar.write(f"error: {name}: {result.error}", file=sys.stderr)
            elif not args.quiet:
                note = f" ({result.note})" if result.note else ""
                bar.write(f"{result.job.target}: {result.summary or 'already translated'}{note}", file=sys.stderr)
    if len(jobs) == 1 and not failed and args.input != "-" and not Path(args.input).is_dir():
        shutil.rmtree(state, ignore_errors=True)
    if failed:
        raise InputError(f"{failed} of {len(jobs)} files could not be translated")
