"""Work on behalf of clients: reading their requests, in turn and within limits, in threads that end with them."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request

from fairseq_lasformer import formats
from fairseq_lasformer.records import Json
from fairseq_lasformer.server.fields import read_fields
from fairseq_lasformer.server.models import ServedModel
from fairseq_lasformer.server.pages import Limits, Pages

PREPARING = 2
"""Threads that read and write files: a reader cannot be interrupted, and continues after its client has left."""

LOOK = 0.5
"""Seconds between checks that a client is still there."""

T = TypeVar("T")


class Turns(Pages):
    """Requests for work; see :class:`Server` for the arguments."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, keys: Sequence[str] | None = None) -> None:
        super().__init__(models, limits, keys)
        self.busy: Counter[str] = Counter()
        self.preparing = anyio.CapacityLimiter(PREPARING)

    async def _fields(self, request: Request, most: int) -> Json:
        return await read_fields(request, most, self.limits.body_seconds, self.keys)

    def _model(self, asked: Json) -> ServedModel:
        """Return the model that a request asks for."""
        source, target, name = (asked[key] for key in ("source", "target", "model"))
        found = _spoken([m for m in self.models if not name or m.name == name], 1, target)
        if source not in ("", "auto"):
            found = _spoken(found, 0, source)
        elif len({m.languages[0] for m in found}) > 1:
            raise HTTPException(400, "name the source language; this server cannot detect it")
        if not found:
            known = ", ".join(sorted({"-".join(m.languages) for m in self.models}))
            raise HTTPException(400, f"no such model; there are {known}")
        return found[0]

    @contextmanager
    def _turn(self, request: Request) -> Any:
        """Take one of the simultaneous translations that an address may have."""
        client = request.client.host if request.client else ""
        if self.busy[client] >= self.limits.per_client:
            raise HTTPException(429, "too many translations at the same time", {"Retry-After": "5"})
        self.busy[client] += 1
        try:
            yield
        finally:
            self.busy[client] -= 1
            if not self.busy[client]:
                del self.busy[client]

    async def _work(self, request: Request, function: Callable[..., T], *args: Any) -> T:
        """Run a function that reads or writes a file in a thread, and return its result."""

        async def run() -> T:
            work = functools.partial(function, *args)
            return await anyio.to_thread.run_sync(work, limiter=self.preparing, abandon_on_cancel=True)

        task = asyncio.ensure_future(run())
        try:
            async with asyncio.timeout(self.limits.seconds):
                while not (await asyncio.wait({task}, timeout=LOOK))[0]:
                    if await request.is_disconnected():
                        raise HTTPException(499, "the client has left")
                return task.result()
        except TimeoutError as e:
            raise HTTPException(503, f"not read within {self.limits.seconds:g} seconds", {"Retry-After": "60"}) from e
        finally:
            task.cancel()

    def _not_done(self) -> HTTPException:
        return HTTPException(503, f"not done within {self.limits.seconds:g} seconds", {"Retry-After": "60"})


def _spoken(models: list[ServedModel], side: int, code: str) -> list[ServedModel]:
    """Return the models of a language on a side: of ``en-US`` if there are any, otherwise of ``en``."""
    exact = [m for m in models if not code or m.languages[side] == code]
    return exact or [m for m in models if formats.language(m.languages[side]) == formats.language(code)]
