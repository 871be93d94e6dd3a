"""Options of ``lasformer translate``, and what they configure: a translator, and how files are read and written."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_regular, check_writable, file_hash
from fairseq_lasformer.base.options import NOTHING, OWN, argument, option
from fairseq_lasformer.base.shared_options import (
    Beam,
    Data,
    Decoding,
    Device,
    Engine,
    Messages,
    Remembering,
    glossary,
    jobs,
    max_tokens,
    model,
    overlap,
    report,
)
from fairseq_lasformer.formats.encoding import check_encoding

if TYPE_CHECKING:
    from fairseq_lasformer.apps.files.file_translator import FileTranslator
    from fairseq_lasformer.apps.files.files_worker import Options
    from fairseq_lasformer.apps.files.reading import Blocks
    from fairseq_lasformer.data.subwords import DataConfig
    from fairseq_lasformer.translation_memory.remembering import Memory


def _forms() -> list[str]:
    from fairseq_lasformer.formats import FORMATS

    return [*FORMATS]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Reading of files."""

    form: str | None = option(
        None,
        "text, wrapped (text whose lines are wrapped), markdown, html, docx, odt, epub, subtitles, cues (each cue "
        "by itself), ass, po or xliff (default: by the file's extension)",
        flag="--from",
        metavar="FORMAT",
        values=_forms,
    )
    lines: bool = option(False, "every line is one sentence (default: sentences are detected)")
    encoding: str | None = option(None, "encoding of text files (default: detected)")


def given() -> Any:
    """Return the field of ``--given``."""
    return option(
        None,
        "existing translations. For text: a table of line number, tab, translation, or as many lines, empty where the "
        "translation is missing; for other formats: a copy of the file in which some texts are translated",
        metavar="FILE",
    )


@dataclass(frozen=True, kw_only=True)
class Translate(Data, Reading, Beam, Remembering, Device, Decoding, Engine, Messages):
    """A translation of files."""

    model: Path = model()
    input: tuple[str, ...] = argument(
        "what to translate: files, a folder or standard input (default: standard input)",
        ("-",),
        metavar="FILE|FOLDER|-",
        place=True,
        apart=True,
    )
    out: str | None = option(
        None, "file or folder to write (default: standard output)", short="-o", place=True, writes=OWN
    )
    format: str = option(
        "text",
        "text: like the input; tsv or jsonl: source, translation, score and whether it was repaired, per sentence; "
        "jsonl also has the matches of a memory",
        metavar="FORMAT",
        values=("text", "tsv", "jsonl"),
    )
    bilingual: bool = option(
        False, "both languages: each text with its translation below it (text, markdown, html, docx, epub, subtitles)"
    )
    encoding_out: str | None = option(
        None, "encoding of translated text files (default: that of the original)", metavar="ENCODING"
    )
    nbest: int = option(1, "translations per sentence, with --format tsv or jsonl", minimum=1)
    overlap: int | None = overlap()
    glossary: Path | None = glossary()
    given: Path | None = given()
    since: tuple[Path, ...] = option(
        (),
        "an earlier version of the file or folder, and its translation, edited or not: what has not changed keeps it, "
        "and the rest is translated in between",
        metavar=("OLD", "OLD_TRANSLATION"),
        number=2,
        apart=True,
    )
    unreviewed: bool = option(
        False, "also read fuzzy and unreviewed translations of .po and XLIFF files as context (default: finished ones)"
    )
    max_tokens: int = max_tokens(8192)
    report: Path | None = report("file")
    strict: bool = option(
        False,
        "end with exit code 1 if a file contains text that its reader does not understand, which stays as it is",
        changes=NOTHING,
    )
    shard: str | None = option(
        None, "translate every Nth of a folder's files, from the Ith on", metavar="I/N", changes=NOTHING
    )
    jobs: int = jobs("workers for a folder, each with its own model")
    overwrite: bool = option(False, "replace existing files (default: only those that this run wrote)", changes=NOTHING)
    any_language: bool = option(False, "translate .po and XLIFF files whose stated languages differ from the model's")
    no_review_marks: bool = option(
        False, 'do not mark translations in .po ("fuzzy") and XLIFF ("needs-review-translation") for review'
    )
    subtitle_width: int = option(
        42, "rewrap lines of subtitles that are longer than this; 0: never", metavar="CHARACTERS", minimum=0
    )
    epilog = (
        "Examples: lasformer translate checkpoints/mine letter.docx -o brief.docx; … translate checkpoints/mine < a.txt"
    )

    @property
    def place(self) -> str:
        """``out`` of a translation that needs one; empty without it."""
        return self.out or ""

    @property
    def former(self) -> tuple[Path, Path] | None:
        """``since``; None without it."""
        return (self.since[0], self.since[1]) if self.since else None


FILES = ("glossary", "memory", "given")
"""Options that name the files on which a translation depends."""


def check(args: Translate) -> None:
    """Refuse options that are invalid or conflict."""
    if args.nbest > 1 and args.format == "text":
        raise InputError("--nbest: needs --format tsv or jsonl, which have room for more than one translation")
    if args.bilingual and args.format != "text":
        raise InputError("--bilingual: not with --format tsv or jsonl, which have both languages anyway")
    if elsewhere(args) and len(args.input) == 1 and not Path(args.input[0]).is_dir():
        raise InputError("--jobs and --engine: only for a folder; a file is one document, which one worker translates")
    if args.since and (args.given or len(args.input) > 1 or args.input == ("-",)):
        raise InputError("--since: for one file or folder that is named, without --given")
    for path in args.since:
        if not path.is_dir():
            check_regular(path, "; --since names an earlier version and its translation")
    if args.given is not None:
        check_regular(args.given, "; --given names a file with translations")
    if args.encoding_out is not None:
        check_encoding("--encoding-out", args.encoding_out)
    if args.encoding is not None:
        check_encoding("--encoding", args.encoding)
    if args.report is not None:
        if args.out is None:
            raise InputError("--report: covers files; name the translated one, or the folder, with -o")
        check_writable(args.report)


def elsewhere(args: Translate) -> bool:
    """Return whether processes other than the command's translate."""
    return args.jobs > 1 or args.engine != "processes"


def set_verbosity(verbose: bool) -> None:
    """Show the log lines of fairseq, Hydra and torch, or keep them and all warnings off the terminal."""
    if verbose:
        logging.getLogger().setLevel(logging.INFO)
    else:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)


def files_options(args: Translate) -> Options:
    from fairseq_lasformer.apps.files.files_worker import Options
    from fairseq_lasformer.formats import Finishing

    finishing = Finishing(not args.no_review_marks, args.subtitle_width, args.encoding_out, args.bilingual)
    return Options(args.format, args.encoding, args.overwrite, args.any_language, finishing)


def read_by(args: Translate) -> list[Path]:
    """Return the files that are read besides those that are translated."""
    named = [getattr(args, name) for name in (*FILES, "shortlist")]
    return [Path(path) for path in (*named, *args.since) if path is not None]


def translator_of(args: Translate) -> FileTranslator:
    from fairseq_lasformer.apps.files.file_translator import FileTranslator
    from fairseq_lasformer.documents.hub import load_model

    model = load_model(args.model, args.data, args.device, **args.decoding())
    return FileTranslator(
        model,
        args.beam,
        args.overlap,
        args.glossary,
        lines=args.lines,
        alternatives=args.nbest - 1,
        max_tokens=args.max_tokens,
        unreviewed=args.unreviewed,
        memory=opened_memory(args, (model.settings.source_lang, model.settings.target_lang)),
    )


def settings_of(args: Translate) -> DataConfig:
    """Return the settings of the model's prepared folder, without loading the model."""
    from fairseq_lasformer.checkpoints.loading import chosen
    from fairseq_lasformer.data.subwords import DataConfig
    from fairseq_lasformer.documents.hub import data_of

    return DataConfig.load(args.data or data_of(chosen(args.model)))


def languages_of(args: Translate) -> tuple[str, str]:
    """Return the languages of the model."""
    settings = settings_of(args)
    return settings.source_lang, settings.target_lang


def data_and_memory_of(args: Translate) -> tuple[DataConfig, Memory | None]:
    """Return the settings of the prepared folder, and the memory, of a translator that workers make."""
    settings = settings_of(args)
    return settings, opened_memory(args, (settings.source_lang, settings.target_lang))


def sent(args: Translate) -> Translate:
    """Return the options to send to workers, with paths that are valid in any working folder."""
    paths: dict[str, Any] = {name: value.absolute() for name, value in vars(args).items() if isinstance(value, Path)}
    return replace(args, **paths, since=())


def worker_of(args: Translate) -> FileTranslator:
    """Make a translator in a worker process, from :func:`sent` options."""
    set_verbosity(args.verbose)
    return translator_of(args)


def model_of(args: Translate) -> tuple[Path, str]:
    """Return the checkpoint, and the hash that workers compare (empty on this machine: they read the same file)."""
    from fairseq_lasformer.checkpoints.loading import chosen

    checkpoint = chosen(args.model).absolute()
    return checkpoint, "" if args.engine == "processes" else file_hash(checkpoint)


def given_of(
    path: Path | None, data: bytes, form: str, encoding: str | None, languages: tuple[str, str]
) -> Blocks | None:
    """Return the translations of ``--given`` for the blocks of a file; None without it.

    Args:
        data, form, encoding: the file, its format and encoding.
        languages: of the model.
    """
    from fairseq_lasformer.apps.files.reading import given_blocks, given_lines_of_text

    if path is None:
        return None
    try:
        known = path.read_bytes()
    except OSError as e:
        raise InputError(f"--given {path}: cannot be read ({e.strerror})") from e
    read = given_lines_of_text if form == "text" else given_blocks
    return read(data, known, form, encoding, str(path), languages)


def opened_memory(args: Remembering, languages: tuple[str, str]) -> Any:
    """Return the memory for a model's source and target language; None without one.

    Raises:
        InputError: it cannot be used.
    """
    if args.memory is None:
        return None
    from fairseq_lasformer.translation_memory.remembering import Memory

    return Memory(args.memory, languages)
