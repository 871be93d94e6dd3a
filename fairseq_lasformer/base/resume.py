"""Ledgers: what is done, kept in files to which lines are only appended; and progress of stages, kept in one."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_lasformer.base.errors import InputError

FILE = "progress.jsonl"


class Ledger:
    """Named values in a file of JSON lines, ``[name, *values]``.

    Lines are only appended. One that a kill tore off, or that is something else, is ignored.

    Attributes:
        entries: all lines, in order.
        values: the values of each name's last line.

    Raises:
        InputError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.others = path, list[str]()
        self.entries: list[tuple[str, list[Any]]] = []
        try:
            *whole, torn = path.read_bytes().split(b"\n") if path.exists() else [b""]
        except OSError as e:
            raise InputError(f"{path}: cannot be read ({e.strerror})") from e
        self._torn = bool(torn)
        for line in whole:
            try:
                name, *values = json.loads(line)
                if not isinstance(name, str):
                    raise TypeError
                self.entries.append((name, values))
            except (ValueError, TypeError, RecursionError):
                self.others.append(line.decode("utf-8", "replace"))
        self.values = dict(self.entries)

    def add(self, name: str, *values: Any, lasting: bool = False) -> None:
        """Append a line.

        Args:
            lasting: return only when it is on disk.

        Raises:
            InputError: the file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8", newline="\n") as file:
                file.write(("\n" if self._torn else "") + json.dumps([name, *values]) + "\n")
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as e:
            raise InputError(f"{self.path}: cannot be written ({e.strerror})") from e
        self._torn = False
        self.entries.append((name, list(values)))
        self.values[name] = list(values)


def key_of(*parts: object) -> str:
    """Hash everything a result depends on; values JSON cannot represent are hashed by their ``str``."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class Progress:
    """A ledger in a folder: which job it belongs to, and which of its stages are done, in which time and how.

    Args:
        folder: folder of the results; need not exist.
        key: identifies the job; see :func:`key_of`.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self.key = folder, key
        self.ledger, known, stages, bound = self._held()
        self.exists, self.matches = known is not None, known == key
        self._stages, self._bound = (stages, bound) if self.matches else ({}, {})

    def _held(self) -> tuple[Ledger, str | None, dict[str, tuple[float, str]], dict[str, str]]:
        """Return the ledger, its key, its stages, and what they are bound to; a key of None if there is no file.

        A line with a key ends an earlier job. The key of a damaged file matches nothing.
        """
        ledger, stages, bound = Ledger(self.folder / FILE), dict[str, tuple[float, str]](), dict[str, str]()
        key = "" if ledger.path.exists() else None
        for name, values in ledger.entries:
            with suppress(ValueError, TypeError, OverflowError):
                if not name:
                    key, stages, bound = str(values[0]) if values else "", {}, {}
                elif len(values) == 1:
                    bound[name] = str(values[0])
                else:
                    seconds, of = values
                    stages[name] = float(seconds), str(of)
        return ledger, key, stages, bound

    @property
    def seconds(self) -> dict[str, float]:
        """Duration of each finished stage, in order."""
        return {stage: seconds for stage, (seconds, _) in self._stages.items()}

    @property
    def known(self) -> set[str]:
        """Stages that any job has finished in this folder."""
        return set(self._held()[2])

    def begin(self) -> None:
        """Mark the folder as belonging to this job, with no stage done."""
        self.ledger.add("", self.key, lasting=True)
        self._stages, self._bound, self.exists, self.matches = {}, {}, True, True

    def check(self, message: str) -> None:
        """Refuse a folder that belongs to another job.

        Raises:
            InputError: the folder does; with this message.
        """
        if self.exists and not self.matches:
            raise InputError(message)

    def open(self, message: str) -> None:
        """Take an unmarked folder, resume this job's, and refuse another's as :meth:`check` does."""
        self.check(message)
        if not self.exists:
            self.begin()

    def done(self, stage: str, of: str = "") -> bool:
        """Return whether a stage has been finished with these settings."""
        return self._stages.get(stage, (0.0, None))[1] == of

    def finish(self, stage: str, seconds: float = 0.0, of: str = "") -> None:
        """Mark a stage as done."""
        self._stages[stage] = round(seconds, 1), of
        self.ledger.add(stage, *self._stages[stage], lasting=True)
        self.exists = self.matches = True

    def bind(self, what: str, of: str, message: str) -> None:
        """Record what the folder's results are made from.

        Raises:
            InputError: they were made from something else; with this message.
        """
        if what not in self._bound:
            self._bound[what] = of
            self.ledger.add(what, of, lasting=True)
        elif self._bound[what] != of:
            raise InputError(message)

    def run(self, stage: str, work: Callable[[], object], of: str = "", tell: bool = False) -> None:
        """Run a stage unless it is already done.

        Args:
            work: function that does the work.
            of: settings of this stage alone; if they change, the stage is run again.
            tell: report on standard error what is being done, or was already done.
        """
        if self.done(stage, of):
            if tell:
                print(f"{stage}: already done", file=sys.stderr)
            return
        if tell:
            print(f"{stage} ...", file=sys.stderr, flush=True)
        start = time.time()
        work()
        self.finish(stage, time.time() - start, of)
