"""Options of ``lasformer translate``, and what they configure: a translator, and how files are read and written."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_lasformer.cli import (
    add_beam,
    add_decoding,
    add_device,
    add_engine,
    add_max_tokens,
    add_memory_options,
    decoding_of,
    memory_of,
)
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import check_writable, file_hash
from fairseq_lasformer.shared import model_path

if TYPE_CHECKING:
    from fairseq_lasformer.data.subwords import DataConfig
    from fairseq_lasformer.file_translation.file_translator import FileTranslator
    from fairseq_lasformer.file_translation.files_worker import Options
    from fairseq_lasformer.file_translation.reading import Blocks
    from fairseq_lasformer.file_translation.receipt import Maker
    from fairseq_lasformer.translation_memory.remembering import Memory

RECORDED = (
    *("beam", "nbest", "overlap", "lines", "memory_tokens", "exact", "no_look_ahead", "unreviewed", "decode_dtype"),
    *("cache_dtype", "format", "encoding", "encoding_out", "any_language", "no_review_marks", "subtitle_width"),
)
"""Options that a receipt records, in addition to the files named by others and the format of the source."""

FILES = ("glossary", "memory", "given")
"""Options that name the files on which a translation depends."""


def add_translate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=model_path, help="a checkpoint, its folder, or the name of a model in data/models"
    )
    parser.add_argument(
        *("input",),
        nargs="*",
        default=["-"],
        metavar="FILE|FOLDER|-",
        help="what to translate: files, a folder or standard input (default: standard input)",
    )
    parser.add_argument("-o", "--out", help="file or folder to write (default: standard output)")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument(
        "--from",
        dest="form",
        metavar="FORMAT",
        help="text, wrapped (text whose lines are wrapped), markdown, html, docx, odt, subtitles, cues (subtitles, "
        "each by itself), po or xliff (default: by the file's extension)",
    )
    parser.add_argument(
        "--format",
        default="text",
        metavar="FORMAT",
        help="text: like the input; tsv or jsonl: source, translation, score and whether it was repaired, per "
        "sentence; jsonl also has the matches of a memory (default: %(default)s)",
    )
    parser.add_argument(
        "--lines", action="store_true", help="every line is one sentence (default: sentences are detected)"
    )
    parser.add_argument("--encoding", help="encoding of text files (default: detected)")
    parser.add_argument(
        "--encoding-out", metavar="ENCODING", help="encoding of translated text files (default: that of the original)"
    )
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
        help="give each term of a document one translation: lines with a different one are translated again, unless "
        "that makes them much less probable",
    )
    parser.add_argument(
        "--given",
        type=Path,
        metavar="FILE",
        help="existing translations. For text: a table of line number, tab, translation, or as many lines, empty where "
        "the translation is missing; for other formats: a copy of the file in which some texts are translated",
    )
    parser.add_argument(
        "--no-look-ahead", action="store_true", help="ignore given lines when translating those before them"
    )
    parser.add_argument(
        "--unreviewed",
        action="store_true",
        help="also read fuzzy and unreviewed translations of .po and XLIFF files as context (default: finished ones)",
    )
    add_max_tokens(parser, 8192)
    add_device(parser)
    add_decoding(parser)
    parser.add_argument(
        "--receipt",
        action="store_true",
        help="write a receipt next to each file (NAME.receipt.json), from which translate --verify repeats and "
        "compares the translation; implies --reproducible",
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a table with a row per file: lines, repaired, doubtful, loops, length ratio, duplicates, seconds",
    )
    parser.add_argument("--shard", metavar="I/N", help="translate every Nth of a folder's files, from the Ith on")
    parser.add_argument(
        "--jobs", type=int, default=1, help="workers for a folder, each with its own model (default: %(default)s)"
    )
    add_engine(parser)
    parser.add_argument(
        "--overwrite", action="store_true", help="replace existing files (default: only those that this run wrote)"
    )
    parser.add_argument(
        "--any-language",
        action="store_true",
        help="translate .po and XLIFF files whose stated languages differ from the model's",
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
        help="rewrap lines of subtitles that are longer than this; 0: never (default: %(default)s)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    parser.add_argument("--verbose", action="store_true", help="show what fairseq logs")
    parser.set_defaults(late=("input", ["-"]))
    parser.epilog = (
        "Examples: lasformer translate checkpoints/mine letter.docx -o brief.docx; … translate checkpoints/mine < a.txt"
    )


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that are invalid or conflict.

    Raises:
        InputError: names the options.
    """
    from fairseq_lasformer.file_translation.outputs import OUTPUTS
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
    if args.jobs < 1:
        raise InputError(f"--jobs {args.jobs}: at least one is needed")
    if elsewhere(args) and len(args.input) == 1 and not Path(args.input[0]).is_dir():
        raise InputError("--jobs and --engine: only for a folder; a file is one document, which one worker translates")
    if args.encoding_out is not None:
        try:
            "".encode(args.encoding_out)
        except (LookupError, UnicodeError) as e:
            raise InputError(f"--encoding-out {args.encoding_out}: no such encoding of text") from e
    if args.receipt and args.out is None:
        raise InputError("--receipt: is written next to a file; name the translated one with -o")
    if args.report is not None:
        if args.out is None:
            raise InputError("--report: covers files; name the translated one, or the folder, with -o")
        check_writable(args.report)
    args.reproducible |= args.receipt


def elsewhere(args: argparse.Namespace) -> bool:
    """Return whether processes other than the command's translate."""
    return args.jobs > 1 or args.engine != "processes"


def set_verbosity(verbose: bool) -> None:
    """Show the log lines of fairseq, Hydra and torch, or keep them and all warnings off the terminal."""
    if verbose:
        logging.getLogger().setLevel(logging.INFO)
    else:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)


def options_of(args: argparse.Namespace, inputs: Sequence[Path] = ()) -> Options:
    from fairseq_lasformer.file_translation.files_worker import Options
    from fairseq_lasformer.formats import Finishing

    finishing = Finishing(not args.no_review_marks, args.subtitle_width, args.encoding_out)
    named = [Path(path) for name in (*FILES, "shortlist") if (path := getattr(args, name)) is not None]
    others = frozenset(path.resolve() for path in [*inputs, *named])
    return Options(args.format, args.encoding, args.overwrite, args.any_language, finishing, others, receipts_of(args))


def translator_of(args: argparse.Namespace) -> FileTranslator:
    from fairseq_lasformer.documents.hub import load_model
    from fairseq_lasformer.file_translation.file_translator import FileTranslator

    if args.reproducible and args.consistent:
        raise InputError("--reproducible: not with --consistent, which reads attention as PyTorch computes it")
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


def settings_of(args: argparse.Namespace) -> DataConfig:
    """Return the settings of the model's prepared folder, without loading the model."""
    from fairseq_lasformer.checkpoints.loading import chosen
    from fairseq_lasformer.data.subwords import DataConfig
    from fairseq_lasformer.documents.hub import data_of

    return DataConfig.load(args.data or data_of(chosen(args.model)))


def languages_of(args: argparse.Namespace) -> tuple[str, str]:
    """Return the languages of the model."""
    settings = settings_of(args)
    return settings.source_lang, settings.target_lang


def data_and_memory_of(args: argparse.Namespace) -> tuple[DataConfig, Memory | None]:
    """Return the settings of the prepared folder, and the memory, of a translator that workers make."""
    settings = settings_of(args)
    return settings, memory_of(args, (settings.source_lang, settings.target_lang))


def sent(args: argparse.Namespace) -> argparse.Namespace:
    """Return the options to send to workers: values only, with paths that are valid in any working folder."""
    values = {name: value for name, value in vars(args).items() if not callable(value)}
    return argparse.Namespace(
        **{name: value.absolute() if isinstance(value, Path) else value for name, value in values.items()}
    )


def worker_of(args: argparse.Namespace) -> FileTranslator:
    """Make a translator in a worker process, from :func:`sent` options."""
    set_verbosity(args.verbose)
    return translator_of(args)


def model_of(args: argparse.Namespace) -> tuple[Path, str]:
    """Return the checkpoint, and the hash that workers compare (empty on this machine: they read the same file)."""
    from fairseq_lasformer.checkpoints.loading import chosen

    checkpoint = chosen(args.model).absolute()
    return checkpoint, "" if args.engine == "processes" else file_hash(checkpoint)


def given_of(args: argparse.Namespace, data: bytes, form: str) -> Blocks | None:
    """Return the translations of ``--given`` for the blocks of a file; None without it.

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
    return given(data, known, form, args.encoding, str(args.given), languages_of(args))


def receipts_of(args: argparse.Namespace) -> Maker | None:
    """Return the maker of receipts for ``--receipt``; None without it."""
    from fairseq_lasformer.checkpoints.loading import chosen
    from fairseq_lasformer.documents.hub import data_of
    from fairseq_lasformer.file_translation.receipt import Maker

    if not args.receipt:
        return None
    checkpoint = chosen(args.model)
    files = {name: Path(path) for name in FILES if (path := getattr(args, name)) is not None}
    options = {name: getattr(args, name) for name in RECORDED}
    return Maker.of(checkpoint, args.data or data_of(checkpoint), options, files)
