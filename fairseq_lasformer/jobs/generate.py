"""Translation of a prepared split in shards, which can be resumed if killed, and collection of the documents."""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import beside, check_writable, file_hash, locked, remove_folder
from fairseq_lasformer.base.resume import Ledger, Progress, key_of
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.checkpoints.loading import identity, load
from fairseq_lasformer.data.examples import ExampleCodec
from fairseq_lasformer.data.manifest import SplitInfo
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.executors import CHECKED, Executor, Resources, executor
from fairseq_lasformer.jobs.collecting import Translation, collect
from fairseq_lasformer.jobs.shards import ShardTranslator, Unit, checked
from fairseq_lasformer.search.glossary import Glossary
from fairseq_lasformer.text.hypotheses import write_hypotheses

# Options of fairseq-generate that are set here.
_OURS = ("--gen-subset", "--path", "--task", "--user-dir", "--results-path", "--distributed-rank", "--quiet")
# Options that request other output than one translation per document.
_OTHERS = ("--nbest", "--lm-path", "--constraints", "--score-reference", "--print-alignment", "--print-step")


SHARDS = 16
"""Default number of shards: several per worker, so none waits long for another's last one."""

UNIT = 2000
"""Default number of lines of a shard with Ray."""

TOKENS = 8192
"""Default number of tokens computed together, unless an example is longer: one document alone leaves a CPU idle."""

GROUPS = 2
"""Smallest number of groups of documents that are computed together, for workers, unless shards are given."""

PATIENCE = 60.0
"""Seconds that a shard waits for another one to begin or to collect."""


def generate(
    data: Path,
    checkpoint: Path,
    out: Path,
    split: str = "test",
    shards: int | None = None,
    options: Sequence[str] = (),
    jobs: int = 1,
    form: str = "lines",
    only: int | None = None,
    engine: str = "processes",
) -> Translation | None:
    """Write the translated documents of a split, detokenised, in input order.

    The output of each shard is kept in ``OUT.parts`` until all are complete, so a killed run resumes where it
    stopped.

    Args:
        out: file for the translated documents.
        shards: number of shards; default: 16, or with Ray one per :data:`UNIT` lines if that is more.
        options: further options of fairseq-generate (``--beam 5 --max-tokens 8192 …``).
        jobs: number of shards translated in parallel, each with its share of the processor cores.
        form: ``lines`` for one document per line with tabs between its sentences, or ``raw`` for one sentence per line,
            like the input.
        only: translate this shard alone (from 0); calls for others may run at the same time, on machines that share the
            folder. The one that finishes last collects the documents.
        engine: where the work runs, see :func:`executors.executor`. With Ray, the machines share the folder of ``out``,
            data and checkpoint, and one shard in a hundred is translated twice, for comparison.

    Returns:
        the translation that was written; None if other shards are not done yet.
    """
    codec, info = ExampleCodec.load(data), _split(data, split)
    _check_options(options)
    check_writable(out)
    load(checkpoint)
    here = engine == "processes"
    if not here:  # other machines have a different working folder
        data, checkpoint, out = data.absolute(), checkpoint.absolute(), out.absolute()
    groups = GROUPS if shards is None and here else shards
    if shards is None:
        shards = SHARDS if here else max(SHARDS, -(-info.sentences // UNIT))
    shards = max(1, min(shards, info.documents))
    together = -(-info.documents // (groups or shards))
    limits = ["--max-tokens", str(max(TOKENS, *info.longest)), "--batch-size", str(together)]
    arguments = [*_arguments(data, checkpoint, split, codec.settings, info), *limits, *options]
    arguments += ["--distributed-world-size", str(shards)]
    parts = beside(out, ".parts")
    place = executor(engine, "the translation", parts)
    key = [
        codec.settings.fingerprint,
        *identity(checkpoint),
        split,
        shards,
        *limits,
        *options,
        *(hashlib.sha256(path.read_bytes()).hexdigest() for path in _files(options)),
    ]
    job = _Job(codec, info, key, [parts / f"{i}" for i in range(shards)], out, form)
    worker = ShardTranslator(arguments, parts, "" if here else file_hash(checkpoint))
    units = [Unit(i) for i in range(shards)] if only is None else [Unit(only)]
    units += [] if here or only is not None else [Unit(i, again=True) for i in range(0, shards, CHECKED)]
    what = f"translating {split}" + ("" if only is None else f", shard {only + 1} of {shards}")

    def work() -> None:
        _translate(place, worker, job.logs, units, jobs, what, info)

    return job.all(work) if only is None else job.one(only, work)


class _Job(NamedTuple):
    """The translation of a split in shards."""

    codec: ExampleCodec
    info: SplitInfo
    key: Sequence[object]  # everything that the shards depend on
    logs: Sequence[Path]  # the file of each shard
    out: Path
    form: str  # see `generate`

    @property
    def parts(self) -> Path:
        """Folder of the shards' files."""
        return self.logs[0].parent

    def place(self, name: str) -> Path:
        """Return a hidden file beside the output."""
        return self.out.with_name(f".{self.out.name}.{name}")

    def begin(self) -> None:
        """Remove the shards of another job."""
        progress = Progress(self.parts, key_of(*self.key))
        if not progress.matches:
            remove_folder(self.parts)
            progress.begin()

    def finish(self) -> Translation:
        """Collect the shards."""
        done = collect(self.codec, self.info, self.logs)
        write_hypotheses(self.out, done.documents, self.form, done.blanks)
        remove_folder(self.parts)
        return done

    def all(self, work: Callable[[], None]) -> Translation:
        """Translate all shards."""
        with locked(self.place("lock"), "a translation"):
            self.begin()
            work()
            return self.finish()

    def one(self, shard: int, work: Callable[[], None]) -> Translation | None:
        """Translate a shard; collect all if it is the last one."""
        record, lock = self.place("done"), self.place("lock")
        if shard >= len(self.logs) or _recorded(record, self.key, self.out):
            return None  # there are fewer documents than shards, or all of them are translated
        with locked(lock, "a translation", PATIENCE):
            self.begin()
        with locked(self.place(f"{shard}.lock"), "this shard"):
            work()
        with locked(lock, "a translation", PATIENCE):
            if not all(log.exists() for log in self.logs):
                return None
            done = self.finish()
            Ledger(record).add("collected", key_of(*self.key, file_hash(self.out)))
            return done


def _recorded(record: Path, key: Sequence[object], out: Path) -> bool:
    """Return whether the shards of a repeated command were collected, and their output is still there."""
    with suppress(OSError):
        return Ledger(record).values.get("collected") == [key_of(*key, file_hash(out))]
    return False


def _files(options: Sequence[str]) -> list[Path]:
    """Return the files that options name, whose contents matter to a resumed run."""
    files = []
    for name in ("--glossary", "--shortlist", "--memory"):
        named = [b for a, b in zip(options, options[1:]) if a == name]
        named += [option.partition("=")[2] for option in options if option.startswith(f"{name}=")]
        if name == "--glossary":
            for path in named:
                Glossary.read(path)
        files += [Path(path) for path in named]
    if missing := [path for path in files if not path.is_file()]:
        raise InputError(f"{missing[0]}: no such file")
    return files


def _split(data: Path, split: str) -> SplitInfo:
    """Return the manifest of a split that can be translated."""
    info = SplitInfo.load(data, split)
    if info is None:
        raise InputError(f"{data}: contains no split {split}; see its documents.*.json")
    if not info.examples:
        raise InputError(
            f"{data}: the examples of {split} overlap; only test sets and the validation set are translated"
        )
    return info


def _check_options(options: Sequence[str]) -> None:
    """Refuse options of fairseq-generate that are set here, or whose output has no place in a document."""
    for name in (option.partition("=")[0] for option in options):
        if name in _OURS:
            raise InputError(f"{name}: is set by lasformer generate; leave it out (--split chooses the split)")
        if name in _OTHERS:
            raise InputError(f"{name}: lasformer generate writes one translation per document; use fairseq-generate")


def _arguments(data: Path, checkpoint: Path, split: str, settings: DataConfig, info: SplitInfo) -> list[str]:
    """Return fairseq-generate's command line, without the user's options."""
    arguments = [str(data), "--user-dir", str(Path(__file__).parent.parent), "--task", "document_translation"]
    arguments += ["-s", settings.source_lang, "-t", settings.target_lang]
    arguments += ["--path", str(checkpoint), "--gen-subset", split, "--no-progress-bar"]
    arguments += ["--num-workers", "0"]  # a worker process reads no faster, and takes up to 5 seconds to exit
    # the limits are derived from the longest example, so every example fits
    arguments += ["--max-source-positions", str(info.longest[0])]
    arguments += ["--max-target-positions", str(4 * max(info.longest) + 50)]
    return arguments


def _translate(
    engine: Executor,
    worker: ShardTranslator,
    logs: Sequence[Path],
    units: Sequence[Unit],
    jobs: int,
    what: str,
    info: SplitInfo,
) -> None:
    """Run the units that are not done yet, at most ``jobs`` at a time; each worker loads the models once."""
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else 0
    total = info.documents if len(units) >= len(logs) else None
    initial = sum(_documents_in(logs[unit.shard]) for unit in units if not unit.again and logs[unit.shard].exists())

    def done(unit: Unit) -> Path | None:
        log = logs[unit.shard]
        return log if (checked(log) if unit.again else log).exists() else None

    with progress_bar(total=total, initial=initial, desc=what, unit=" documents") as bar:
        for _ in engine.map(worker, units, Resources(jobs, threads), done, bar.update):
            pass


def _documents_in(log: Path) -> int:
    with open(log, encoding="utf-8") as lines:
        return sum(1 for _ in lines)
