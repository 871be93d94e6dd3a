"""Progress files: which job a folder belongs to, which of its stages are done; records of which lines are appended."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import atomic_write

FILE = "progress.json"


class AppendedLines:
    """A file whose lines are only appended; one that a kill tore off, or that is not UTF-8, is ignored.

    Raises:
        InputError: the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, list[str]()
        try:
            *whole, torn = path.read_bytes().split(b"\n") if path.exists() else [b""]
        except OSError as e:
            raise InputError(f"{path}: cannot be read ({e.strerror})") from e
        self._torn = bool(torn)
        for line in whole:
            with suppress(UnicodeDecodeError):
                self.lines.append(line.decode("utf-8"))

    def add(self, line: str, lasting: bool = False) -> None:
        """Append a line.

        Args:
            lasting: return only when it is on disk.

        Raises:
            InputError: the file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8", newline="\n") as file:
                file.write(("\n" if self._torn else "") + line + "\n")
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as e:
            raise InputError(f"{self.path}: cannot be written ({e.strerror})") from e
        self._torn = False


def key_of(*parts: object) -> str:
    """Hash everything a result depends on; values JSON cannot represent are hashed by their ``str``."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


class Progress:
    """``FOLDER/progress.json``: a key and, for every finished stage, its duration in seconds and its settings.

    Args:
        folder: folder of the results; need not exist.
        key: identifies the job; see :func:`key_of`.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.file, self.key = folder / FILE, key
        self._stages: dict[str, tuple[float, str]] = {}
        held = self._held()
        self.exists, self.matches = held is not None, held is not None and held[0] == key
        if held is not None and self.matches:
            self._stages = held[1]

    def _held(self) -> tuple[str, dict[str, tuple[float, str]]] | None:
        """Read the key and stages on disk; None if there is no file. The key of a damaged file matches nothing."""
        try:
            held = json.loads(self.file.read_text(encoding="utf-8"))
            return str(held["key"]), {str(k): (float(s), str(of)) for k, (s, of) in held["stages"].items()}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return "", {}

    @property
    def seconds(self) -> dict[str, float]:
        """Duration of each finished stage, in order."""
        return {stage: seconds for stage, (seconds, _) in self._stages.items()}

    @property
    def known(self) -> set[str]:
        """Stages that any job has finished in this folder."""
        held = self._held()
        return set() if held is None else set(held[1])

    def begin(self) -> None:
        """Mark the folder as belonging to this job, with no stage done."""
        self._stages = {}
        self._save()

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
        self._save()

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

    def _save(self) -> None:
        self.exists = self.matches = True
        atomic_write(self.file, json.dumps({"key": self.key, "stages": self._stages}, indent=1) + "\n")
