"""Workers in separate processes on this machine, which end when this one does, however it ends."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import IO, Any

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.machine import start
from fairseq_lasformer.executors.base import Executor, Item, Report, Resources, Result, Worker, nothing_done, silent


class Processes(Executor):
    """A process per worker, which takes the next item when it is done with one.

    Args:
        what: description of the work, for error messages.
        logs: folder for the workers' output, ``0.err`` and so on; None keeps it only for error messages.
    """

    def __init__(self, what: str, logs: Path | None = None) -> None:
        self.what, self.logs = what, logs

    def map(
        self,
        worker: Worker[Item, Result],
        items: Iterable[Item],
        resources: Resources = Resources(),  # noqa: B008
        done: Callable[[Item], Result | None] = nothing_done,
        report: Report = silent,
        retries: int = 1,
    ) -> Iterator[Result]:
        known = [(item, done(item)) for item in items]
        n = max(1, min(resources.workers, sum(result is None for _, result in known)))
        lock, children = threading.Lock(), [_Child(worker, resources, self._log(i)) for i in range(n)]
        free: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        for child in children:
            free.put(child)

        def tell(units: int) -> None:
            with lock:
                report(units)

        def work(item: Item) -> Result:
            child = free.get()
            try:
                for attempt in range(retries + 1):
                    try:
                        return child.run(item, tell)
                    except EOFError:
                        if attempt == retries or not child.killed():
                            raise InputError(f"{self.what} failed: {child.reason()}") from None
                raise AssertionError("unreachable")
            finally:
                free.put(child)

        pool = ThreadPoolExecutor(n)
        try:
            results = [(result, None if result is not None else pool.submit(work, item)) for item, result in known]
            for result, future in results:
                yield result if future is None else future.result()  # type: ignore[misc]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:
                child.end()
            pool.shutdown()

    def _log(self, number: int) -> Callable[[], IO[bytes]]:
        if self.logs is None:
            return tempfile.TemporaryFile
        path = self.logs / f"{number}.err"
        return lambda: open(path, "w+b")


class _Child:
    """A worker's process, started when it gets its first item and again after it was killed."""

    def __init__(self, worker: Worker[Any, Any], resources: Resources, log: Callable[[], IO[bytes]]) -> None:
        self.worker, self.open_log, self.over = worker, log, False
        self.process: subprocess.Popen[Any] | None = None
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
        # the same copy of this package, not one in the working folder
        places = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
        self.environment["PYTHONPATH"] = os.pathsep.join(place for place in places if place)
        if resources.threads:
            self.environment["OMP_NUM_THREADS"] = str(resources.threads)

    def _start(self) -> None:
        self.connection, theirs = Pipe()
        self.log = self.open_log()
        handle = theirs.fileno()
        command = [sys.executable, "-P", "-m", "fairseq_lasformer.executors.child", str(handle)]
        streams: dict[str, Any] = {"stdin": None, "stdout": self.log, "stderr": self.log}
        self.process = start(command, pass_fds=[handle], env=self.environment, **streams)
        theirs.close()
        self.connection.send(self.worker)

    def run(self, item: Any, report: Report) -> Any:
        """Return the result of an item."""
        try:
            if self.over:
                raise EOFError
            if self.process is None:
                self._start()
            self.connection.send(item)
            while True:
                kind, content = self.connection.recv()
                if kind == "result":
                    return content
                report(content)
        except (ConnectionError, OSError) as e:
            raise EOFError from e

    def killed(self) -> bool:
        """Return whether the process was ended by a signal, such as the one the system sends when memory is short."""
        if self.process is None or self.over or self.process.wait() >= 0:
            return False
        self.connection.close()
        self.log.close()
        self.process = None
        return True

    def reason(self) -> str:
        """Return the last message of the process."""
        if self.process is None:
            return "it was ended"
        code = self.process.wait()
        self.log.seek(0)
        said = [line for line in self.log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        for line in reversed(said):
            if line.startswith("error: "):
                return line.removeprefix("error: ")
        where = f"; see {self.log.name}" if isinstance(self.log.name, str) else ""
        return f"{said[-1] if said else 'no message'} (exit code {code}{where})"

    def end(self) -> None:
        """End the process, losing its current work."""
        self.over = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.connection.close()
            self.log.close()
