"""Threads for work that nobody can interrupt: a place is free when its thread ends, not when its client leaves."""

import asyncio
import functools
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from starlette.exceptions import HTTPException

LOOK = 0.5
"""Seconds between checks that a client is still there."""

MOST, MOST_BYTES = 1024, 128 << 20
"""Pieces of work that may wait for places or have them, and their bytes."""

SWITCH = 0.00002
"""Seconds after which a thread in a place lets others run: each step of a search waits for that many times. It is not
set all the time, because it costs some of the load (SECURITY.md)."""

T = TypeVar("T")


class Client(Protocol):
    """A request or a job, which waits for work."""

    async def is_disconnected(self) -> bool: ...


async def attend(task: asyncio.Future[Any], client: Client, seconds: float | None) -> None:
    """Wait until a task is done.

    Raises:
        HTTPException: the client has left (499).
        TimeoutError: it is not done within so many seconds.
    """
    async with asyncio.timeout(seconds):
        while not (await asyncio.wait({task}, timeout=LOOK))[0]:
            if await client.is_disconnected():
                raise HTTPException(499, "the client has left")


class Turn:
    """A request or a job: held until its client has an answer, or has left, and all its threads have ended.

    Args:
        seconds: time limit of each piece of work; None: none.
        release: called once, at the end, from any thread.

    Attributes:
        left: whether the client has its answer or has left.
    """

    def __init__(self, client: Client, seconds: float | None, release: Callable[[], object]) -> None:
        self.client, self.seconds, self.release = client, seconds, release
        self.left = threading.Event()
        self._lock, self._holders = threading.Lock(), 1

    def begin(self) -> None:
        with self._lock:
            self._holders += 1

    def end(self) -> None:
        with self._lock:
            self._holders -= 1
            last = not self._holders
        if last:
            self.release()

    def leave(self) -> None:
        """The client has its answer, or has left."""
        self.left.set()
        self.end()

    async def work(self, places: "Places", size: int, function: Callable[..., T], *args: Any) -> T:
        """Run a function in a thread, in turn, and return its result.

        Args:
            size: bytes that it keeps in memory while it waits; 0 if they are there in any case.
        """
        task = asyncio.ensure_future(places.run(self, size, functools.partial(function, *args)))
        try:
            await attend(task, self.client, self.seconds)
            return task.result()
        except TimeoutError as e:
            raise HTTPException(503, f"not read within {self.seconds:g} seconds", {"Retry-After": "60"}) from e
        finally:
            task.cancel()


class _Giving:
    """A context in which threads take turns often, as long as any thread is in it."""

    def __init__(self) -> None:
        self._lock, self._inside, self._usual = threading.Lock(), 0, 0.0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                sys.setswitchinterval(self._usual)


_GIVING = _Giving()


class Places:
    """So many threads, which take work in order. They start with the first piece, and end with the process.

    Args:
        threads: their number.
        long: whether the work takes seconds, so that it must let other threads run.
    """

    def __init__(self, threads: int, long: bool = False) -> None:
        self.threads, self.long, self.started = threads, long, 0
        self.held, self.bytes, self._lock = 0, 0, threading.Lock()
        self._queue: SimpleQueue[tuple[list[Callable[[], Any]], Callable[[], object], Callable[..., object]]]
        self._queue = SimpleQueue()

    async def run(self, turn: Turn, size: int, function: Callable[[], T]) -> T:
        """Return a function's result.

        Raises:
            HTTPException: too much is waiting (503).
        """
        with self._lock:
            if self.held >= MOST or (size and self.held and self.bytes + size > MOST_BYTES):
                raise HTTPException(503, "too many are waiting to be read; try again", {"Retry-After": "10"})
            self.held, self.bytes = self.held + 1, self.bytes + size
            while self.started < self.threads:
                threading.Thread(target=self._serve, daemon=True).start()
                self.started += 1
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_result(result) if error is None else done.set_exception(error)

        def tell(result: Any, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(settle, result, error)

        def end() -> None:
            with self._lock:
                self.held, self.bytes = self.held - 1, self.bytes - size
            turn.end()

        turn.begin()
        waiting: list[Callable[[], Any]] = [function]
        self._queue.put((waiting, end, tell))
        try:
            return await done
        finally:
            if self._taken(waiting):  # the client has left before its turn
                end()

    def _taken(self, waiting: list[Callable[[], Any]]) -> list[Callable[[], Any]]:
        """Take a function from those that wait; nothing if it was taken before."""
        with self._lock:
            taken, waiting[:] = list(waiting), []
        return taken

    def _serve(self) -> None:
        while True:
            waiting, end, tell = self._queue.get()
            for function in self._taken(waiting):
                result, error = None, None
                try:
                    with _GIVING if self.long else nullcontext():
                        result = function()
                except BaseException as e:
                    error = e
                end()  # before the client hears of it: what it asks next finds a place
                tell(result, error)
                del result, error, function
            del waiting, end, tell  # what they hold is free while the next is awaited
