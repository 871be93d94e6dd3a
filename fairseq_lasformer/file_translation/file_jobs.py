"""Translates files and folders of files on disk: one output per input, a failure stops only its own file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_lasformer import formats
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.executors import InProcess, Report, Worker
from fairseq_lasformer.file_translation.file_translator import FileTranslator, TranslatedFile, TranslatedSentence
from fairseq_lasformer.file_translation.reading import Blocks
from fairseq_lasformer.file_translation.receipt import ENDING, Maker, Receipt
from fairseq_lasformer.files import atomic_write, check_writable, locked, replacing
from fairseq_lasformer.formats import OpenFile
from fairseq_lasformer.resume import key_of

TOGETHER = 1 << 18
"""Bytes of files that are translated together."""

OUTPUTS = ("text", "tsv", "jsonl")

DONE, PARTS, LOCK = ".lasformer-done", ".lasformer-parts", ".lasformer-lock"


class Job(NamedTuple):
    """A file to translate."""

    source: Path
    target: Path
    form: str


class Plan(NamedTuple):
    """The files of a folder."""

    jobs: list[Job]
    others: list[Path]


class Options(NamedTuple):
    """How files are read and written.

    Attributes:
        overwrite: replace files that this run has not written.
        any_language: translate files that say that they are in other languages than the model's.
        finishing: see :class:`formats.Finishing`.
        inputs: other files that must not be written, resolved.
        receipts: makes receipts, which are written beside the translations; None for none.
    """

    overwrite: bool = False
    any_language: bool = False
    finishing: formats.Finishing = formats.Finishing()
    inputs: frozenset[Path] = frozenset()
    receipts: Maker | None = None


class Result(NamedTuple):
    """What became of a file.

    Attributes:
        error: why it could not be translated; empty if it was.
        summary: what happened to its sentences; empty if it had been translated before.
        note: what its user should know about its format.
    """

    job: Job
    error: str = ""
    summary: str = ""
    note: str = ""


def plan(folder: Path, out: Path, output: str = "text", form: str | None = None) -> Plan:
    """The files of a folder and its subfolders, without hidden ones, and where their translations go.

    Args:
        out: folder for the translations; it is not itself translated.
        output: see :func:`present`.
        form: format of all files; default: by the ends of their names.

    Raises:
        InputError: both folders are the same.
    """
    if folder.resolve() == out.resolve():
        raise InputError(f"{out}: is the folder that is translated; choose another one with -o")
    jobs, others = [], []
    inside = out.resolve().is_relative_to(folder.resolve())
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        made = inside and path.resolve().is_relative_to(out.resolve())  # by an earlier run
        if hidden or not path.is_file() or made:
            continue
        known = form or formats.format_of(path.name)
        if known is None:
            others.append(path)
        else:
            jobs.append(Job(path, out / name.with_name(name.name + suffix(output)), known))
    return Plan(jobs, others)


def suffix(output: str) -> str:
    """What the name of an output file ends with, after that of its input."""
    return "" if output == "text" else f".{output}"


def present(done: TranslatedFile, output: str, key: str = "") -> bytes:
    """A translated file in a form of output.

    Args:
        output: ``text`` for the format of the input; ``tsv`` for source, translation, score and ``repaired``,
            ``doubtful`` or nothing; ``jsonl`` for an object of these per line. Further translations are columns of
            text and score, or a list.
        key: that of a receipt, which stands in every object of ``jsonl``.
    """
    if output == "text":
        return done.data
    return "".join(_json(line, key) if output == "jsonl" else _row(line) for line in done.lines).encode()


def _row(sentence: TranslatedSentence) -> str:
    line = sentence.line
    state = "doubtful" if line.flawed else "repaired" if line.repaired else ""
    cells = [line.source, line.translation, f"{line.score:.4f}", state]
    for text, score in sentence.others:
        cells += [text, f"{score:.4f}"]
    return "\t".join(cell.replace("\t", " ") for cell in cells) + "\n"


def _json(sentence: TranslatedSentence, key: str) -> str:
    line = sentence.line
    found: dict[str, Any] = {
        "line": line.number,
        "source": line.source,
        "translation": line.translation,
        "score": round(line.score, 4),
        "repaired": line.repaired,
        "doubtful": line.flawed,
    }
    if sentence.others:
        found["alternatives"] = [{"translation": text, "score": round(score, 4)} for text, score in sentence.others]
    if sentence.matches:
        found["matches"] = [match.shown() for match in sentence.matches]
    if key:
        found["receipt"] = key
    return json.dumps(found, ensure_ascii=False) + "\n"


def translate_jobs(
    translator: FileTranslator,
    jobs: Sequence[Job],
    state: Path,
    settings: Sequence[object],
    output: str = "text",
    encoding: str | None = None,
    begin: Callable[[int], object] = lambda n: None,
    tick: Callable[[int], object] = lambda n: None,
    options: Options = Options(),  # noqa: B008
    given: Mapping[Path, Blocks | None] | None = None,
) -> Iterator[Result]:
    """Translates files, and yields what became of each. What was done before, with the same settings, is not repeated.

    Args:
        state: folder that remembers what is done.
        settings: everything that the translations depend on besides the files.
        output: see :func:`present`.
        encoding: encoding of text files; default: it is detected.
        begin: called with the number of sentences of files that are about to be translated.
        tick: called with the number of sentences translated.
        options: what is read, written and overwritten.
        given: translations of some blocks, by the file.

    Raises:
        InputError: another process works on the same folder, or it cannot be written.
    """
    with locked(state / LOCK, "a translation"):
        yield from _translated(translator, jobs, state, settings, output, encoding, begin, tick, options, given or {})
        (state / LOCK).unlink(missing_ok=True)


class _Open(NamedTuple):
    job: Job
    key: str
    file: OpenFile
    receipt: Receipt | None = None


def _translated(
    translator: FileTranslator,
    jobs: Sequence[Job],
    state: Path,
    settings: Sequence[object],
    output: str,
    encoding: str | None,
    begin: Callable[[int], object],
    tick: Callable[[int], object],
    options: Options,
    given: Mapping[Path, Blocks | None],
) -> Iterator[Result]:
    done = _Done(state / DONE)
    batches = _batches(translator, jobs, done, output, encoding, options, settings)
    for results in InProcess().map(_Files(translator, state, done, output, begin, given), batches, report=tick):
        yield from results
    if (state / PARTS).is_dir() and not any((state / PARTS).iterdir()):
        (state / PARTS).rmdir()


def _batches(
    translator: FileTranslator,
    jobs: Sequence[Job],
    done: _Done,
    output: str,
    encoding: str | None,
    options: Options,
    settings: Sequence[object],
) -> Iterator[list[_Open | Result]]:
    """Files that are translated together, and what became of those that are not translated."""
    inputs = {job.source.resolve() for job in jobs} | options.inputs
    batch: list[_Open | Result] = []
    size = 0
    for job in jobs:
        try:
            data = job.source.read_bytes()
            key = key_of(hashlib.sha256(data).hexdigest(), job.form, output, encoding, options.finishing, *settings)
            if done.has(key, job.target):
                batch.append(Result(job))
                continue
            _check_target(job.target, inputs, options.overwrite or done.wrote(job.target))
            file = formats.read(data, job.form, encoding, options.finishing)
            if not options.any_language:
                formats.check_languages(file, *translator.languages)
            begun = options.receipts.begin(data, job.form) if options.receipts else None
            batch.append(_Open(job, key, file, begun))
            size += len(data)
        except OSError as e:
            batch.append(Result(job, f"cannot be read ({e.strerror or e})"))
        except InputError as e:
            batch.append(Result(job, str(e)))
        if size >= TOGETHER:
            yield batch
            batch, size = [], 0
    yield batch


class _Files(Worker["Sequence[_Open | Result]", "Iterator[Result]"]):
    """Translates files together and writes each when it is done; what has a result already keeps it."""

    def __init__(
        self,
        translator: FileTranslator,
        state: Path,
        done: _Done,
        output: str,
        opening: Callable[[int], object],
        given: Mapping[Path, Blocks | None],
    ) -> None:
        self.translator, self.state, self.done, self.output, self.opening = translator, state, done, output, opening
        self.given = given

    def __call__(self, item: Sequence[_Open | Result], report: Report) -> Iterator[Result]:
        yield from (one for one in item if isinstance(one, Result))
        waiting = [one for one in item if isinstance(one, _Open)]
        for opened, made in _together(self.translator, waiting, self.state, self.opening, report, self.given):
            yield self._written(opened, made)

    def _written(self, opened: _Open, made: TranslatedFile | InputError) -> Result:
        job, note = opened.job, opened.file.note
        if isinstance(made, InputError):
            return Result(job, str(made), note=note)
        try:
            text = present(made, self.output, opened.receipt.key if opened.receipt else "")
            with replacing(job.target, "wb") as file:
                file.write(text)
            if opened.receipt:
                made_so = opened.receipt._replace(translation=hashlib.sha256(text).hexdigest())
                atomic_write(job.target.with_name(job.target.name + ENDING), made_so.text())
            self.done.add(opened.key, job.target)
            _journal(self.state, opened).unlink(missing_ok=True)
            return Result(job, summary=made.counts.summary(), note=note)
        except (InputError, OSError) as e:
            return Result(job, str(e))


def _journal(state: Path, opened: _Open) -> Path:
    return state / PARTS / f"{key_of(opened.key, opened.job.target)[:32]}.jsonl"


def _together(
    translator: FileTranslator,
    waiting: Sequence[_Open],
    state: Path,
    begin: Callable[[int], object],
    tick: Callable[[int], object],
    given: Mapping[Path, Blocks | None],
) -> Iterator[tuple[_Open, TranslatedFile | InputError]]:
    """Translates files together, each written when it is done; those that are left one by one, if one fails."""
    written: set[int] = set()
    failure: Exception | None = None
    journals = [_journal(state, w) for w in waiting]
    try:
        its = [given.get(w.job.source) for w in waiting]
        for i, made in translator.translate_each([w.file for w in waiting], tick, journals, begin, its):
            written.add(i)
            yield waiting[i], made
    except Exception as e:  # whatever a file makes go wrong must not end the work on others
        failure = e
    left = [w for i, w in enumerate(waiting) if i not in written]
    if failure is None:
        return
    if len(waiting) == 1:
        message = f"cannot be translated ({type(failure).__name__}: {' '.join(str(failure).split())[:200]})"
        for w in left:
            yield w, failure if isinstance(failure, InputError) else InputError(message)
        return
    for w in left:
        yield from _together(translator, [w], state, lambda n: None, lambda n: None, given)


def _check_target(target: Path, inputs: set[Path], replaced: bool) -> None:
    """Refuses to write where something else is.

    Raises:
        InputError: the target is, or leads to, a file that is translated; or it exists.
    """
    if target.resolve() in inputs:
        raise InputError(f"{target}: leads to a file that is translated; remove the link, or choose another folder")
    if target.is_file() and not replaced:
        raise InputError(f"{target}: exists already; --overwrite replaces it")
    check_writable(target)


class _Done:
    """Which files have been translated with which settings: a line of key and name each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
        self.found = {(key, name) for key, tab, name in (line.partition("\t") for line in text.split("\n")[:-1]) if tab}
        self.names = {name for _, name in self.found}
        self.torn = bool(text) and not text.endswith("\n")

    def _name(self, target: Path) -> str:
        return json.dumps(str(target.resolve()))

    def has(self, key: str, target: Path) -> bool:
        return target.is_file() and (key, self._name(target)) in self.found

    def wrote(self, target: Path) -> bool:
        """Whether a file was written by a run that this one goes on with."""
        return self._name(target) in self.names

    def add(self, key: str, target: Path) -> None:
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(("\n" if self.torn else "") + f"{key}\t{self._name(target)}\n")
        self.torn = False
        self.found.add((key, self._name(target)))
