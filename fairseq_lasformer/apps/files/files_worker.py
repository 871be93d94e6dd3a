"""Workers that translate batches of files: in the process that also puts them in place, or in others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer import formats
from fairseq_lasformer.apps.files.done import Made
from fairseq_lasformer.apps.files.file_translator import FileTranslator
from fairseq_lasformer.apps.files.outputs import present
from fairseq_lasformer.apps.files.reading import Earlier, Given
from fairseq_lasformer.apps.files.translated import TranslatedFile
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.resume import key_of
from fairseq_lasformer.checkpoints.loading import check_same
from fairseq_lasformer.evaluation.doubts import Facts, facts
from fairseq_lasformer.executors import Report, Worker
from fairseq_lasformer.formats import OpenFile
from fairseq_lasformer.formats.block import Unread

PARTS, MADE = ".lasformer-parts", ".lasformer-made"


class Job(NamedTuple):
    """A file to translate."""

    source: Path
    target: Path
    form: str
    # an earlier version and its translation, whose unchanged texts are kept; None for none
    since: tuple[Path, Path] | None = None

    def absolute(self) -> Job:
        """Return the job for processes with other working folders, which do not write its target."""
        since = None if self.since is None else (self.since[0].absolute(), self.since[1].absolute())
        return self._replace(source=self.source.absolute(), since=since)


class Options(NamedTuple):
    """Options for reading and writing files."""

    output: str = "text"  # see `outputs.present`
    encoding: str | None = None  # encoding of text files; None detects it
    overwrite: bool = False  # replace files that this run has not written
    any_language: bool = False  # translate files whose stated languages differ from the model's
    finishing: formats.Finishing = formats.Finishing()  # see `formats.Finishing`


class Result(NamedTuple):
    """The result of a file."""

    job: Job
    error: str = ""  # the reason why it could not be translated; empty if it was
    summary: str = ""  # what happened to its sentences; empty if it had been translated before
    note: str = ""  # a note for the user about its format
    facts: Facts = Facts()  # counts of its lines
    unread: tuple[Unread, ...] = ()  # text that was not understood, if it was translated now
    key: str = ""  # the file's key, if a worker elsewhere made the translation
    made: Path | None = None  # the place where that worker left it; None if it is in its final place
    again: bool = False  # whether it was made for comparison


class Waiting(NamedTuple):
    """A file waiting to be translated."""

    job: Job
    key: str  # hash of everything that its translation depends on
    data: bytes | None = None  # its content; None if the worker reads it
    again: bool = False  # whether it is translated a second time, for comparison

    def path(self, folder: Path, ending: str = "") -> Path:
        """Return the path of the file's own entry in a folder."""
        return folder / f"{key_of(self.key, self.job.target)[:32]}{ending}"


class Batch(NamedTuple):
    """Files that are translated together."""

    waiting: Sequence[Waiting]
    results: Sequence[Result] = ()  # results of other files, already known


class _Open(NamedTuple):
    waiting: Waiting
    file: OpenFile
    earlier: Earlier | None = None


def earlier(since: tuple[Path, Path], form: str, options: Options, languages: tuple[str, str]) -> Earlier:
    """Read an earlier version of a file and its translation, which may have another encoding."""
    if form in ("po", "xliff"):
        raise InputError(
            f"--since: not for {form}, which contains its own translation; merge the new source into it (msgmerge, "
            "your tool), and what is missing is translated, with the rest as context"
        )
    files = []
    for path, language, encoding in zip(since, languages, (options.encoding, options.finishing.encoding)):
        try:
            file = formats.read(path.read_bytes(), form, encoding, language=language)
        except OSError as e:
            raise InputError(f"--since {path}: cannot be read ({e.strerror})") from e
        except InputError as e:
            raise InputError(f"--since {path}: {e}") from e
        files.append(file._replace(finished=()))
    return Earlier(*files)


class Files(Worker[Batch, Iterator[Result]]):
    """A worker that translates batches of files, and stores each file when it is done.

    Args:
        put: stores a translation.
        parts: folder in which the lines of unfinished files are kept; None keeps none.
        opening: called with the number of sentences, and of tokens, in files about to be translated.
        given: what is known of the translations, by file.
    """

    def __init__(
        self,
        translator: FileTranslator,
        options: Options,
        put: Callable[[Waiting, Made], Result],
        parts: Path | None = None,
        opening: Callable[[int, int], object] = lambda n, tokens: None,
        given: Mapping[Path, Given | None] | None = None,
    ) -> None:
        self.translator, self.options, self.put, self.parts = translator, options, put, parts
        self.opening, self.given = opening, given or {}

    def __call__(self, item: Batch, report: Report) -> Iterator[Result]:
        yield from item.results
        opened = []
        for waiting in item.waiting:
            try:
                opened.append(self._open(waiting))
            except InputError as e:
                yield Result(waiting.job, str(e))
        before = time.monotonic()
        for one, translated in self._together(opened, self.opening, report):
            now = time.monotonic()
            yield self._written(one, translated, now - before)
            before = time.monotonic()

    def _open(self, waiting: Waiting) -> _Open:
        job, options, data = waiting.job, self.options, waiting.data
        if data is None:
            try:
                data = job.source.read_bytes()
            except OSError as e:
                raise InputError(f"cannot be read ({e.strerror or e})") from e
        file = self.translator.open(data, job.form, options.encoding, options.finishing, options.any_language)
        languages = self.translator.languages
        return _Open(waiting, file, None if job.since is None else earlier(job.since, job.form, options, languages))

    def _written(self, opened: _Open, translated: TranslatedFile | InputError, seconds: float) -> Result:
        job, note = opened.waiting.job, opened.file.note
        if isinstance(translated, InputError):
            return Result(job, str(translated), note=note)
        try:
            reasons = [sentence.doubts for sentence in translated.lines]
            counts = facts([sentence.pair for sentence in translated.lines], reasons, seconds)
            counts = counts._replace(unread=len(translated.counts.unread))
            result = self.put(opened.waiting, Made(present(translated, self.options.output), counts))
            if (journal := self._journal(opened)) is not None:
                journal.unlink(missing_ok=True)
            return result._replace(
                summary=translated.counts.summary(), note=note, facts=counts, unread=translated.counts.unread
            )
        except (InputError, OSError) as e:
            return Result(job, str(e))

    def _journal(self, opened: _Open) -> Path | None:
        return None if self.parts is None else opened.waiting.path(self.parts, ".jsonl")

    def _together(
        self, opened: Sequence[_Open], begin: Callable[[int, int], object], tick: Callable[[int], object]
    ) -> Iterator[tuple[_Open, TranslatedFile | InputError]]:
        """Translate files together, and yield each when it is done; if one fails, translate the rest one by one."""
        written: set[int] = set()
        failure: Exception | None = None
        try:
            journals = [self._journal(one) for one in opened]
            its = [one.earlier or self.given.get(one.waiting.job.source) for one in opened]
            for i, translated in self.translator.translate_each(
                [one.file for one in opened], tick, journals, begin, its
            ):
                written.add(i)
                yield opened[i], translated
        except Exception as e:  # a failure of one file must not end the work on others
            failure = e
        left = [one for i, one in enumerate(opened) if i not in written]
        if failure is None:
            return
        if len(opened) == 1:
            message = f"cannot be translated ({type(failure).__name__}: {' '.join(str(failure).split())[:200]})"
            for one in left:
                yield one, failure if isinstance(failure, InputError) else InputError(message)
            return
        for one in left:
            yield from self._together([one], lambda n, tokens: None, lambda n: None)


class Elsewhere(Worker[Batch, "list[Result]"]):
    """A worker in another process, which leaves translated files in a folder for the command to put in place.

    Lines of unfinished files are not kept: two workers may have the same file if the first is taken for dead.

    Args:
        make: makes the translator, after it has been pickled.
        state: the command's folder, which all machines share.
        model: the checkpoint's path and hash; the hash is compared with that of the file that a worker finds there.
    """

    def __init__(
        self, make: Callable[[], FileTranslator], state: Path, options: Options, model: tuple[Path, str]
    ) -> None:
        self.make, self.made, self.options, self.model = make, state / MADE, options, model

    def begin(self) -> None:
        check_same(*self.model)
        translator = self.make()
        same = translator.model.device.type == "cpu"

        def put(waiting: Waiting, made: Made) -> Result:
            if waiting.again and not same:
                return Result(waiting.job)
            place = waiting.path(self.made, ".again" if waiting.again else "")
            made.leave(place, same)
            return Result(waiting.job, key=waiting.key, made=place)

        self.files = Files(translator, self.options, put)

    def __call__(self, item: Batch, report: Report) -> list[Result]:
        again = any(one.again for one in item.waiting)
        return [result._replace(again=again) for result in self.files(item, report)]
