"""Updates of translated files and folders on disk: one output per new source; a failure stops only its own file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer import formats
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.file_translation.file_jobs import plan
from fairseq_lasformer.file_translation.file_update import FileUpdater, UpdatedFile
from fairseq_lasformer.file_translation.update_record import Entry, UpdateRecord, digest
from fairseq_lasformer.files import check_writable, locked, replacing, short_name
from fairseq_lasformer.formats import OpenFile
from fairseq_lasformer.resume import key_of

STATE = ".lasformer-update"
"""Name of the folder, beside or in what is written, with the record of updates."""

RECORD = "updates"


class UpdateJob(NamedTuple):
    """A file to update.

    Attributes:
        old, translated: the source as it was, and its translation; None for a new file.
        new: the source as it is now.
        out: the file to write; may be ``translated``.
        form: format of all of them.
        machine: the translation as the model wrote it, if it was stored.
    """

    old: Path | None
    translated: Path | None
    new: Path
    out: Path
    form: str
    machine: Path | None = None

    @property
    def in_place(self) -> bool:
        """Return whether the old translation is replaced, by whatever name."""
        if self.translated is None or not self.translated.exists():
            return False
        return self.out.exists() and self.out.samefile(self.translated)


class UpdatePlan(NamedTuple):
    """The files of a folder.

    Attributes:
        gone: old sources that no longer exist; their translations are left alone.
        others: files of unknown formats.
    """

    jobs: list[UpdateJob]
    gone: list[Path]
    others: list[Path]


def check_form(path: Path, form: str) -> None:
    """Refuse formats that contain their own translation.

    Raises:
        InputError: the format is one of them; the message says what to do.
    """
    if form in ("po", "xliff"):
        raise InputError(
            f"{path}: contains its own translation; merge the new source into it (msgmerge, your tool); "
            "lasformer translate then fills what is missing, with the rest as context"
        )


def plan_update(
    old: Path, translated: Path, new: Path, out: Path, form: str | None = None, machine: Path | None = None
) -> UpdatePlan:
    """List the files of a folder of new sources, and those of the other folders that have the same names.

    Args:
        form: format of all files; default: by the endings of their names.
        machine: folder of the translations as the model wrote them.

    Raises:
        InputError: a folder is missing, or would be overwritten.
    """
    for folder in (old, translated, *([machine] if machine else [])):
        if not folder.is_dir():
            raise InputError(f"{folder}: not a folder, but {new} is")
    if out.resolve() in (old.resolve(), new.resolve()):
        raise InputError(f"{out}: is a folder of sources; choose a different one with -o")
    found = plan(new, out, form=form)
    jobs = []
    for job in found.jobs:
        name = job.source.relative_to(new)
        before = [path if path.is_file() else None for path in (old / name, translated / name)]
        stored = machine / name if machine is not None and (machine / name).is_file() else None
        jobs.append(UpdateJob(before[0], before[1], job.source, out / name, job.form, stored))
    names = {job.new.relative_to(new) for job in jobs}
    gone = [job.source for job in plan(old, out, form=form).jobs if job.source.relative_to(old) not in names]
    return UpdatePlan(jobs, gone, found.others)


def update_one(
    updater: FileUpdater,
    job: UpdateJob,
    encoding: str | None = None,
    tick: Callable[[int], object] = lambda n: None,
    begin: Callable[[int], object] = lambda n: None,
) -> UpdatedFile:
    """Update a file, without writing it.

    Raises:
        InputError: a file cannot be read or written, or they are not versions of the same document.
    """
    check_form(job.new, job.form)
    if (job.old is None) != (job.translated is None):
        missing = "its old source" if job.old is None else "its translation"
        raise InputError(f"{job.new}: {missing} is missing")
    check_writable(job.out)
    source, target = updater.files.languages
    new = _read(job.new, job.form, encoding, source, target)
    old = None if job.old is None else _read(job.old, job.form, encoding, source)
    translated = None if job.translated is None else _read(job.translated, job.form, encoding, target)
    machine = None if job.machine is None else _read(job.machine, job.form, encoding, target)
    try:
        if old is None or translated is None:
            nothing = new._replace(blocks=(), finished=())
            return updater.update(nothing, nothing, new, tick, begin)
        return updater.update(old, translated, new, tick, begin, machine)
    except InputError as e:
        raise InputError(f"{job.translated or job.new}: {e}") from e


def _read(path: Path, form: str, encoding: str | None, language: str, target: str = "") -> OpenFile:
    try:
        return formats.read(path.read_bytes(), form, encoding, language=language, target=target)
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except InputError as e:
        raise InputError(f"{path}: {e}") from e


def update_all(
    updater: FileUpdater,
    jobs: Sequence[UpdateJob],
    top: Path | None,
    settings: Mapping[str, object],
    encoding: str | None = None,
    overwrite: bool = False,
    tick: Callable[[int], object] = lambda n: None,
    begin: Callable[[int], object] = lambda n: None,
) -> Iterator[tuple[UpdateJob, UpdatedFile | InputError | None]]:
    """Update files one after another, and write them. Updates done before with the same settings are not repeated.

    Args:
        top: folder of all outputs, whose :data:`STATE` records updates; None for a device or pipe.
        settings: everything that updates depend on besides the files.
        overwrite: replace files that no update wrote.

    Yields:
        each file, and its result; None if it had been done before.
    """
    if top is None:
        for job in jobs:
            found = update_one(updater, job, encoding, tick, begin)
            _write(job, found)
            yield job, found
        return
    # updates of single files in the same folder may run beside each other
    lock = ".lock" if len(jobs) > 1 else f".lock.{short_name(jobs[0].out.name)}"
    with locked(top / STATE / lock, "an update"):
        record = UpdateRecord(top / STATE / RECORD)
        for job in jobs:
            try:
                wanted = _wanted(job, settings)
                name = os.path.relpath(job.out.resolve(), top.resolve())
                if record.is_done(name, wanted, job.out, job.in_place):
                    yield job, None
                    continue
                record.check_new(name, job.out, job.in_place or overwrite)
                found = update_one(updater, job, encoding, tick, begin)
                planned = wanted._replace(made=hashlib.sha256(found.made.data).hexdigest())
                record.add(name, planned)
                _write(job, found)
                record.add(name, planned._replace(done=True))
                yield job, found
            except InputError as e:
                yield job, e


def _wanted(job: UpdateJob, settings: Mapping[str, object]) -> Entry:
    """Return what an update depends on; what is missing is reported by the update."""
    old, new, before = (
        digest(path) if path is not None and path.exists() else "" for path in (job.old, job.new, job.translated)
    )
    return Entry(key_of(settings, job.form, digest(job.machine)), old, new, before)


def _write(job: UpdateJob, found: UpdatedFile) -> None:
    with replacing(job.out, "wb") as file:
        file.write(found.made.data)
