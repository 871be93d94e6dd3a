"""Subcommand ``translate``: translates files, folders and standard input."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from fairseq_lasformer.apps.files.translate_options import (
    Translate,
    check,
    data_and_memory_of,
    elsewhere,
    files_options,
    given_of,
    languages_of,
    model_of,
    read_by,
    sent,
    set_verbosity,
    translator_of,
    worker_of,
)
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.machine import cores
from fairseq_lasformer.base.options import text_settings
from fairseq_lasformer.base.published import CARD, model_path, speed
from fairseq_lasformer.base.shared_options import shard_of
from fairseq_lasformer.base.targets import check_targets
from fairseq_lasformer.base.terminal import progress_bar

if TYPE_CHECKING:
    from fairseq_lasformer.apps.files.file_translator import FileTranslator
    from fairseq_lasformer.apps.files.files_worker import Job, Options, Result
    from fairseq_lasformer.apps.files.reading import Blocks, Given

LONG = 90
"""Seconds from which a translation is said to take minutes."""

_BINARY = ("docx", "odt", "epub")


def run_translate(args: Translate) -> None:
    set_verbosity(args.verbose)
    check(args)
    shard_of(args.shard)
    places = [Path(name) for name in args.input]
    _check_places(args, places)
    args = replace(args, model=model_path(args.model))
    if len(places) > 1 or places[0].is_dir():
        if args.given:
            raise InputError("--given: only for a single text, not for a folder or several files")
        _check_folder(args)
    if len(places) > 1:
        _files(args, places)
    elif places[0].is_dir():
        _folder(args, places[0])
    elif args.out is None:
        _to_standard_output(args, places[0])
    else:
        _file(args, places[0])


def _is_input(place: Path) -> bool:
    """Return whether a file is standard input."""
    return str(place) == "-"


def _check_places(args: Translate, places: Sequence[Path]) -> None:
    """Catch the usual mix-ups of model, input and output."""
    from fairseq_lasformer.formats import INSTEAD, format_of

    place = places[0]
    if args.model.is_file() and (format_of(args.model.name) or args.model.suffix.lower() in INSTEAD):
        model = place if place.is_dir() else "MODEL"
        raise InputError(f"{args.model}: not a model; the model comes first: lasformer translate {model} {args.model}")
    if len(places) == 1 and _is_input(place):
        if sys.stdin is None:
            raise InputError("standard input is closed; name a file or a folder")
        if sys.stdin.isatty():
            print("reading from the keyboard; end with Ctrl-D", file=sys.stderr)
        return
    for one in places:
        if not one.exists():
            raise InputError(f"{one}: no such file or folder")
        if len(places) > 1 and not one.is_file():
            raise InputError(f"{one}: not a file; translate a folder, or standard input, by itself")
    language = args.out and re.fullmatch(r"[a-z]{2,3}([-_][A-Za-z]{2,4})?", args.out)
    if language and place.is_file() and len(places) == 1 and not Path(args.place).exists():
        raise InputError(
            f"-o {args.out}: would be a file of this name; write {args.out}/ for a folder, or a name with an "
            "extension. A model translates into one language"
        )


def _check_folder(args: Translate) -> None:
    """Refuse what cannot be the folder of several translations."""
    if args.out is None:
        raise InputError("several files: name the folder for the translations with -o")
    if Path(args.place).exists() and not Path(args.place).is_dir():
        raise InputError(f"-o {args.out}: exists and is not a folder; several translations need one")


def _bar(args: Translate, files: int = 0, hidden: bool = False) -> tqdm:
    """Return a run's progress bar, of sentences, whose number grows, or of files translated elsewhere."""
    total, unit = (files, " files") if elsewhere(args) else (0, " sentences")
    return progress_bar(total=total, desc="translating", unit=unit, disable=args.quiet or hidden)


def growing(args: Translate, bar: tqdm, device: str) -> Callable[[int, int], None]:
    """Return a function that adds sentences to a bar's total, and says how long they take if that is known."""
    rate = speed(args.model) if device == "cpu" else 0.0

    def begin(sentences: int, tokens: int) -> None:
        if rate and tokens > LONG * rate and not bar.disable:
            text = f"about {round(tokens / rate / 60)} minutes, by the {rate:.0f} tokens a second of its {CARD}"
            bar.write(text, file=sys.stderr)
        bar.total = (bar.total or 0) + sentences
        bar.refresh()

    return begin


def _form(args: Translate, place: Path) -> str:
    """Return the format of a file; standard input is text by default."""
    from fairseq_lasformer.formats import check_format

    form = args.form or ("text" if _is_input(place) else check_format(place.name, "; or choose one with --from"))
    # a sentence of several cues can only be translated as a whole, but each cue may be given
    return "cues" if args.given and form == "subtitles" else str(form)


def _to_standard_output(args: Translate, place: Path) -> None:
    from fairseq_lasformer import formats
    from fairseq_lasformer.apps.files.files_worker import earlier
    from fairseq_lasformer.apps.files.outputs import present

    form = _form(args, place)
    if form in _BINARY and args.format == "text":
        raise InputError(f"{place}: name the translated file with -o")
    try:
        data = sys.stdin.buffer.read() if _is_input(place) else place.read_bytes()
    except OSError as e:
        raise InputError(f"{place}: cannot be read ({e.strerror})") from e
    name = "standard input" if _is_input(place) else str(place)
    try:
        languages = languages_of(args)
        file = formats.read(data, form, args.encoding, files_options(args).finishing, *languages)
        translator = translator_of(args)
        if not args.any_language:
            formats.check_languages(file, *languages)
    except InputError as e:
        raise InputError(str(e) if str(e).startswith(str(args.model)) else f"{name}: {e}") from e
    with _bar(args, hidden=not sys.stderr.isatty()) as bar:
        given: Given | None = given_of(args.given, data, form, args.encoding, languages)
        if args.former is not None:
            given = earlier(args.former, form, files_options(args), languages)
        (done,) = translator.translate(
            [file], bar.update, begin=growing(args, bar, translator.model.device.type), given=[given]
        )
    try:
        sys.stdout.buffer.write(present(done, args.format))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as e:
        raise InputError(f"standard output: cannot be written ({e.strerror})") from e
    if not args.quiet and (not _is_input(place) or sys.stderr.isatty()):
        print(f"{name}: {done.counts.summary()}", file=sys.stderr)
    _check_understood(args, len(done.counts.unread))


def _check_understood(args: Translate, unread: int) -> None:
    """Refuse, with ``--strict``, that something was not understood; translations have been written."""
    if args.strict and unread:
        raise InputError(f"--strict: not understood, and left as it is: {unread} (see the summary of each file)")


def _file(args: Translate, place: Path) -> None:
    from fairseq_lasformer.apps.files.files_worker import Job
    from fairseq_lasformer.apps.files.outputs import suffix
    from fairseq_lasformer.base.files import short_name

    form = _form(args, place)
    target = Path(args.place)
    if target.is_dir() or args.place.endswith("/"):
        target = target / ((place.name if not _is_input(place) else "translation.txt") + suffix(args.format))
    source = Path("/dev/stdin") if _is_input(place) else place
    try:
        target.stat()
    except OSError as e:
        if e.errno == errno.ELOOP:
            raise InputError(f"{target}: cannot be written (a link to itself)") from e
    jobs = [Job(source, target, form, args.former)]
    _check_targets(args, jobs)
    _run(args, jobs, target.parent / f".{short_name(target.name)}.lasformer")


def _files(args: Translate, places: Sequence[Path]) -> None:
    """Translate several files into one folder."""
    from fairseq_lasformer.apps.files.files_worker import Job
    from fairseq_lasformer.apps.files.outputs import suffix

    out, ending = Path(args.place), suffix(args.format)
    jobs = [Job(place, out / (place.name + ending), _form(args, place)) for place in places]
    _check_targets(args, jobs)
    number, total = shard_of(args.shard)
    _run(args, jobs[number::total], _folders_state(out, number, total))


def _check_targets(args: Translate, jobs: Sequence[Job]) -> None:
    """Refuse to write two files in one place, or over one that is read; before anything is written."""
    outputs = [(job.target, f"the translation of {job.source}") for job in jobs]
    if args.report is not None:
        outputs.append((args.report, "the report"))
    check_targets(outputs, [*read_by(args), *(path for job in jobs for path in (job.source, *(job.since or ())))])


def _folders_state(out: Path, number: int, total: int) -> Path:
    """Return the folder that records what has been translated into a folder."""
    return out / ".lasformer" / (f"{number + 1}-of-{total}" if total > 1 else "all")


def _folder(args: Translate, place: Path) -> None:
    from fairseq_lasformer.apps.files.file_jobs import plan

    number, total = shard_of(args.shard)
    out = Path(args.place)
    plans = plan(place, out, args.format, args.form, args.former)
    if not plans.jobs:
        raise InputError(f"{place}: contains no file of a known format; choose one with --from")
    former = place if args.former is None else args.former[0]
    for what, paths, of in (
        ("skipped, of unknown format", plans.others, place),
        ("gone; not translated", plans.gone, former),
    ):
        if paths and not args.quiet:
            names = ", ".join(str(path.relative_to(of)) for path in paths[:5]) + (", …" if len(paths) > 5 else "")
            print(f"{what}: {names} ({len(paths)})", file=sys.stderr)
    _check_targets(args, plans.jobs)
    _run(args, plans.jobs[number::total], _folders_state(out, number, total))


def _run(args: Translate, jobs: Sequence[Job], state: Path) -> None:
    """Translate files, report each result, and fail if any file failed."""
    import shutil

    from fairseq_lasformer.apps.files.done import Done
    from fairseq_lasformer.apps.files.file_jobs import DONE
    from fairseq_lasformer.base.files import atomic_write
    from fairseq_lasformer.checkpoints.loading import chosen, identity
    from fairseq_lasformer.evaluation.doubts import report

    options = files_options(args)
    if len(jobs) == 1:  # before the model is loaded
        Done(state / DONE).check(jobs[0].source, jobs[0].target, args.overwrite)
    translator = None if elsewhere(args) else translator_of(args)  # workers load the model; the command does not
    data, memory = data_and_memory_of(args) if translator is None else (translator.model.settings, translator.memory)
    settings = (identity(chosen(args.model)), data.fingerprint, text_settings(args), memory and memory.state)
    given = None
    if args.given:
        (job,) = jobs
        if args.input == ("-",):
            raise InputError("--given: name the file of the text, or write to standard output (without -o)")
        try:
            given = {
                job.source: given_of(args.given, job.source.read_bytes(), job.form, args.encoding, languages_of(args))
            }
        except OSError as e:
            raise InputError(f"{job.source}: cannot be read ({e.strerror})") from e
    failed, rows, unread = 0, [], {}
    with _bar(args, len(jobs)) as bar:
        for result in _results(args, translator, jobs, state, settings, bar, options, given):
            failed += bool(result.error)
            name = result.job.source
            if result.error:
                bar.write(f"error: {name}: {result.error}", file=sys.stderr)
                continue
            shown = os.fsencode(name).decode("utf-8", "backslashreplace")  # a name need not be text
            rows.append((shown, result.facts))
            unread[shown] = result.unread
            if not args.quiet:
                note = f" ({result.note})" if result.note else ""
                bar.write(f"{result.job.target}: {result.summary or 'already translated'}{note}", file=sys.stderr)
    if args.report is not None:
        atomic_write(args.report, report(args.report, rows, unread))
    if not failed and len(args.input) == 1 and args.input != ("-",) and not Path(args.input[0]).is_dir():
        shutil.rmtree(state, ignore_errors=True)
    if failed:
        with suppress(OSError):  # unless it has what a further call resumes from
            state.rmdir()
        raise InputError(f"{failed} of {len(jobs)} files could not be translated")
    _check_understood(args, sum(facts.unread for _, facts in rows))


def _results(
    args: Translate,
    translator: FileTranslator | None,
    jobs: Sequence[Job],
    state: Path,
    settings: Sequence[object],
    bar: tqdm,
    options: Options,
    given: Mapping[Path, Blocks | None] | None,
) -> Iterator[Result]:
    """Yield the result of each file, translated here or elsewhere; the bar counts sentences here, files elsewhere."""
    from fairseq_lasformer.apps.files.file_jobs import translate_elsewhere, translate_jobs
    from fairseq_lasformer.apps.files.files_worker import Elsewhere
    from fairseq_lasformer.executors import CHECKED, Resources, executor

    if translator is not None:
        begin = growing(args, bar, translator.model.device.type)
        yield from translate_jobs(translator, jobs, state, settings, options, begin, bar.update, given)
        return
    engine = executor(args.engine, "the translation")
    worker = Elsewhere(partial(worker_of, sent(args)), state.absolute(), options, model_of(args))
    resources = Resources(args.jobs, max(1, cores() // args.jobs) if args.jobs > 1 else 0)
    check = 0 if args.engine == "processes" else CHECKED
    absolute = [job.absolute() for job in jobs]
    for result in translate_elsewhere(engine, worker, absolute, state, settings, options, resources, check):
        bar.update()
        yield result
