"""Translation of files and folders on disk: one output per input; a failure stops only its own file."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer import formats
from fairseq_lasformer.apps.files.done import Done, Made
from fairseq_lasformer.apps.files.file_translator import FileTranslator
from fairseq_lasformer.apps.files.files_worker import (
    MADE,
    PARTS,
    Batch,
    Elsewhere,
    Files,
    Job,
    Options,
    Result,
    Waiting,
)
from fairseq_lasformer.apps.files.outputs import suffix
from fairseq_lasformer.apps.files.reading import Given
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import check_regular, file_hash, locked, remove_folder
from fairseq_lasformer.base.resume import key_of
from fairseq_lasformer.executors import Executor, InProcess, Resources

TOGETHER = 1 << 18
"""Bytes of files translated together; about two thousand lines."""

MINIMUM = 1 << 14
"""Minimum bytes of a batch for a worker elsewhere."""

DONE, LOCK = ".lasformer-done", ".lasformer-lock"


class Plan(NamedTuple):
    """The files of a folder."""

    jobs: list[Job]
    others: list[Path]  # files of unknown formats
    gone: list[Path] = []  # earlier sources that no longer exist


def plan(
    folder: Path,
    out: Path,
    output: str = "text",
    form: str | None = None,
    since: tuple[Path, Path] | None = None,
) -> Plan:
    """List the files of a folder and its subfolders, except hidden ones, and where their translations go.

    Args:
        out: folder for the translations; neither it nor those of ``since`` are themselves translated.
        output: see :func:`outputs.present`.
        form: format of all files; default: by the endings of their names.
        since: folders of the earlier sources and of their translations, whose files have the same names.
    """
    if folder.resolve() == out.resolve():
        raise InputError(f"{out}: is the folder to translate; choose a different one with -o")
    for earlier in since or ():
        if not earlier.is_dir():
            raise InputError(f"--since {earlier}: not a folder, but {folder} is")
        if out.resolve() == earlier.resolve():
            raise InputError(f"-o {out}: is also a folder of --since; choose a different one")
    jobs, others = [], []
    for path, name in _files(folder, (out, *(since or ()))):
        known = form or formats.format_of(path.name)
        if known is None:
            others.append(path)
        else:
            before = None if since is None else (since[0] / name, since[1] / name)
            if before is not None and not before[0].exists():
                before = None  # a new file
            jobs.append(Job(path, out / name.with_name(name.name + suffix(output)), known, before))
    if since is None:
        return Plan(jobs, others)
    names = {job.source.relative_to(folder) for job in jobs}
    old = _files(since[0], (out, since[1]))
    gone = [path for path, name in old if name not in names and (form or formats.format_of(path.name))]
    return Plan(jobs, others, gone)


def _files(folder: Path, apart: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Return the files of a folder that are not hidden, with their names in it, without those of folders apart."""
    inside = [one.resolve() for one in apart if one.resolve().is_relative_to(folder.resolve())]
    return [
        (path, path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not any(path.resolve().is_relative_to(one) for one in inside)
    ]


def translate_jobs(
    translator: FileTranslator,
    jobs: Sequence[Job],
    state: Path,
    settings: Sequence[object],
    options: Options = Options(),  # noqa: B008
    begin: Callable[[int, int], object] = lambda n, tokens: None,
    tick: Callable[[int], object] = lambda n: None,
    given: Mapping[Path, Given | None] | None = None,
) -> Iterator[Result]:
    """Translate files, and yield the result of each. Files done before with the same settings are not repeated.

    Args:
        state: folder that records finished files.
        settings: everything that the translations depend on besides the files.
        options: options for reading, writing and overwriting files.
        begin: called with the number of sentences, and of tokens, in files about to be translated.
        tick: called with the number of sentences translated.
        given: what is known of the translations, by file.
    """

    def put(waiting: Waiting, made: Made) -> Result:
        done.place(waiting.key, waiting.job.source, waiting.job.target, made)
        return Result(waiting.job)

    with _locked(state):
        done = Done(state / DONE)
        worker = Files(translator, options, put, state / PARTS, begin, given)
        for results in InProcess().map(worker, _batches(jobs, done, options, settings, TOGETHER), report=tick):
            yield from results


def translate_elsewhere(
    engine: Executor,
    worker: Elsewhere,
    jobs: Sequence[Job],
    state: Path,
    settings: Sequence[object],
    options: Options,
    resources: Resources,
    check: int = 0,
) -> Iterator[Result]:
    """Translate files by workers in other processes, and put their results in place; see :func:`translate_jobs`.

    Only this process writes to where translations belong. So a worker that was taken for dead, but goes on, does no
    harm.

    Args:
        check: translate one of this many batches a second time, and compare; 0: none.
    """
    with _locked(state):
        done, made = Done(state / DONE), state / MADE
        together = _share(jobs, resources.workers)
        batches = [_without_data(batch, made) for batch in _batches(jobs, done, options, settings, together)]
        batches += [_second(batch) for batch in batches[::check]] if check else []

        def known(batch: Batch) -> list[Result] | None:
            return None if batch.waiting else list(batch.results)

        for results in engine.map(worker, batches, resources, known):
            for result in results:
                if result.again:
                    _compare(result)
                    continue
                if result.made is not None:
                    left = Made.left(result.made)
                    done.place(result.key, result.job.source, result.job.target, left)
                    Made.remove(result.made)
                    result = result._replace(facts=left.facts)
                yield result
        remove_folder(made)


@contextmanager
def _locked(state: Path) -> Iterator[None]:
    with locked(state / LOCK, "a translation"):
        yield
        if (state / PARTS).is_dir() and not any((state / PARTS).iterdir()):
            (state / PARTS).rmdir()
        (state / LOCK).unlink(missing_ok=True)


def _share(jobs: Sequence[Job], workers: int) -> int:
    """Return a batch size, in bytes, with which no worker waits long for another's last batch."""
    total = 0
    for job in jobs:
        with suppress(OSError):  # reported when it is read
            total += job.source.stat().st_size
    return min(TOGETHER, max(MINIMUM, total // (8 * workers)))


def _batches(
    jobs: Sequence[Job], done: Done, options: Options, settings: Sequence[object], together: int
) -> Iterator[Batch]:
    """Yield files to translate together, with the results of those that are not translated.

    Args:
        together: approximate bytes of a batch's files.
    """
    results: list[Result] = []
    waiting: list[Waiting] = []
    size = 0
    for job in jobs:
        try:
            data = job.source.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            for path in job.since or ():
                check_regular(path, "; --since names an earlier version and its translation")
            known = [file_hash(path) for path in job.since or ()]
            key = key_of(digest, job.form, options.output, options.encoding, options.finishing, *settings, *known)
            if done.has(key, job.target):
                results.append(Result(job, facts=done.facts(key, job.target)))
                continue
            done.check(job.source, job.target, options.overwrite)
            waiting.append(Waiting(job, key, data))
            size += len(data)
        except OSError as e:
            results.append(Result(job, f"cannot be read ({e.strerror or e})"))
        except InputError as e:
            results.append(Result(job, str(e)))
        if size >= together:
            yield Batch(waiting, results)
            waiting, results, size = [], [], 0
    yield Batch(waiting, results)


def _without_data(batch: Batch, made: Path) -> Batch:
    """Return a batch for workers, which read the files themselves; take over what an earlier run's workers left."""
    left = [one for one in batch.waiting if one.path(made).exists()]
    waiting = [one._replace(data=None) for one in batch.waiting if one not in left]
    results = [Result(one.job, key=one.key, made=one.path(made)) for one in left]
    return Batch(waiting, [*batch.results, *results])


def _second(batch: Batch) -> Batch:
    """Return the same files, to be translated again."""
    return Batch([one._replace(again=True) for one in batch.waiting])


def _compare(result: Result) -> None:
    """Compare a second translation with the one in place."""
    target = result.job.target
    if result.made is None or not target.exists():
        return  # it failed, or on a GPU, where two translations may differ
    differs = file_hash(result.made) != file_hash(target)
    Made.remove(result.made)
    if differs:
        raise InputError(
            f"{target}: was translated differently a second time: not all workers have the same model, data and version"
        )
