"""The HTTP interface: LibreTranslate's, with lines as they are settled, a page, and metrics.

docs.libretranslate.com describes ``/translate``, ``/translate_file``, ``/languages``, ``/detect`` and ``/health``.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fairseq_lasformer import formats
from fairseq_lasformer.documents.source import Line
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.server.engine import QueueFull
from fairseq_lasformer.server.fields import ATTENTION, FILE, TRANSLATE, read_fields, values
from fairseq_lasformer.server.hosts import Guard
from fairseq_lasformer.server.models import PreparedText, ServedModel
from fairseq_lasformer.server.pages import Limits, Pages

TOGETHER = 64
"""Texts of one request that are in the queue at the same time."""

MOST_TEXTS = 1000
"""Texts of one request; empty ones take time and memory as well."""

PREPARING = 2
"""Threads that read and write files: a reader cannot be interrupted, and continues after its client has left."""

LOOK = 0.5
"""Seconds between checks that a client is still there."""

T = TypeVar("T")


class Server(Pages):
    """The server's state: models, limits, keys, files to download.

    Args:
        models: the models; of those with the same languages, the first one is the default.
        limits: see :class:`Limits`.
        keys: API keys; None requires none.
    """

    def __init__(self, models: Sequence[ServedModel], limits: Limits, keys: Sequence[str] | None = None) -> None:
        super().__init__(models, limits, keys)
        self.busy: Counter[str] = Counter()
        self.files: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self.preparing = anyio.CapacityLimiter(PREPARING)

    def app(self, hosts: Sequence[str] = ("*",), addresses: bool = False, origins: Sequence[str] = ()) -> Starlette:
        """Return the application.

        Args:
            hosts: names that it answers to; others are refused, so no web page can reach a local server under the
                page's own name.
            addresses: whether it also answers to any IP address.
            origins: origins of other web pages that may use it (CORS); ``*`` is any.
        """

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            for model in self.models:
                model.engine.close()

        routes = [
            Route("/", self.page),
            Route("/translate", self.translate, methods=["POST"]),
            Route("/translate_file", self.translate_file, methods=["POST"]),
            Route("/download_file/{token}/{name}", self.download),
            Route("/attention", self.attention, methods=["POST"]),
            Route("/languages", self.languages),
            Route("/detect", self.detect, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.show_metrics),
            Route("/spec", self.spec),
            Route("/frontend/settings", self.settings),
        ]
        handlers: Any = {HTTPException: self.refused, InputError: self.wrong, Exception: self.broken}
        guards = [Middleware(Guard, hosts=hosts, addresses=addresses, origins=origins)]
        if origins:
            allowed = {"allow_methods": ["GET", "POST"], "allow_headers": ["Authorization", "Content-Type"]}
            guards.append(Middleware(CORSMiddleware, allow_origins=list(origins), **allowed))  # type: ignore[arg-type]
        return Starlette(routes=routes, exception_handlers=handlers, middleware=guards, lifespan=lifespan)

    async def _fields(self, request: Request, most: int) -> dict[str, Any]:
        return await read_fields(request, most, self.limits.body_seconds, self.keys)

    def _model(self, asked: dict[str, Any]) -> ServedModel:
        """Return the model that a request asks for.

        Raises:
            HTTPException: there is none.
        """
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
        """Take one of the simultaneous translations that an address may have.

        Raises:
            HTTPException: all are taken.
        """
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
        """Run a function that reads or writes a file in a thread, and return its result.

        Raises:
            HTTPException: it takes too long, or the client has left. The thread goes on, and keeps its place until
                it is done.
        """

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

    async def _lines(
        self,
        request: Request,
        model: ServedModel,
        prepared: PreparedText,
        tell: Callable[[int], object] = lambda n: None,
    ) -> list[Line]:
        """Return the lines of a translation; end it when the client leaves. ``tell`` is called with their number.

        Raises:
            HTTPException: the queue is full, it took too long, it failed, or the client has left.
        """
        lines: dict[int, Line] = {}
        begun = time.monotonic()
        try:
            async with aclosing(model.events(prepared, self.limits.seconds)) as events:
                async for event in events:
                    if event.kind == "failed":
                        raise HTTPException(500, event.error)
                    if event.line is not None:
                        lines[event.number] = event.line
                        tell(len(lines))
                    if await request.is_disconnected():
                        raise HTTPException(499, "the client has left")
        except QueueFull as e:
            raise HTTPException(503, "too many documents are waiting; try again", {"Retry-After": "10"}) from e
        except TimeoutError as e:
            raise self._not_done() from e
        self.metrics.seconds.observe(time.monotonic() - begun)
        self.metrics.sentences.labels(model.name).inc(len(lines))
        return [lines[i] for i in range(len(lines))]

    def _not_done(self) -> HTTPException:
        return HTTPException(503, f"not done within {self.limits.seconds:g} seconds", {"Retry-After": "60"})

    async def translate(self, request: Request) -> Response:
        fields = await self._fields(request, 4 * self.limits.characters + 10_000)
        asked = values(fields, TRANSLATE)
        several = isinstance(asked["q"], list)
        given = asked["q"] if several else [asked["q"]]
        if sum(map(len, given)) > self.limits.characters:
            raise HTTPException(413, f"too long: at most {self.limits.characters} characters")
        if len(given) > MOST_TEXTS:
            raise HTTPException(413, f"too many texts: at most {MOST_TEXTS} in a request")
        model, known = self._model(asked), asked["given"]
        ask = asked["format"], asked["glossary"], "utf-8", known, asked["consistent"], asked["corrected"]
        if sum(map(len, known.values())) > self.limits.characters:
            raise HTTPException(413, f"given: too long: at most {self.limits.characters} characters")
        if known and len(given) > 1:
            raise HTTPException(400, "given: one text at a time")
        most, encoded = min(asked["alternatives"], self.limits.alternatives), [text.encode() for text in given]
        if asked["stream"]:
            if len(given) > 1:
                raise HTTPException(400, "stream: one text at a time")
            with self._turn(request):  # unreadable text is refused before the answer begins
                prepared = await self._work(request, model.prepare, encoded[0], *ask)
            return self._streamed(request, model, prepared)
        places = asyncio.Semaphore(TOGETHER)

        async def one(data: bytes) -> tuple[str, list[str]]:
            async with places:
                prepared = await self._work(request, model.prepare, data, *ask)
                lines = await self._lines(request, model, prepared)
                text = (await self._work(request, model.finished, prepared, lines)).data.decode()
                others = await self._work(request, model.alternatives, prepared, lines, most) if most else []
                return text, [" ".join(options) for options in zip(*others)]

        with self._turn(request):
            try:
                async with asyncio.timeout(self.limits.seconds):
                    found = await _together([one(data) for data in encoded])
            except TimeoutError as e:
                raise self._not_done() from e
        self._count(request, 200)
        answer: dict[str, Any] = {"translatedText": [text for text, _ in found]}
        if most:
            answer["alternatives"] = [others for _, others in found]
        if asked["source"] == "auto":  # the models' only source language: nothing is detected
            answer["detectedLanguage"] = [{"language": model.languages[0], "confidence": 0.0}] * len(found)
        return JSONResponse(answer if several else {name: values[0] for name, values in answer.items()})

    def _streamed(self, request: Request, model: ServedModel, prepared: PreparedText) -> Response:
        """Send events: ``source``, each ``line``, ``revised`` lines, then ``done`` with the text, or ``error``."""

        async def events() -> AsyncIterator[str]:
            lines: dict[int, Line] = {}
            try:
                with self._turn(request):
                    matches = {"matches": prepared.matches} if prepared.matches else {}
                    yield _event("source", {"sentences": prepared.texts, **matches})
                    async with aclosing(model.events(prepared, self.limits.seconds)) as found:
                        async for event in found:
                            if event.line is not None:
                                lines[event.number] = event.line
                                line = model.line(prepared, event.number, event.line)
                                yield _event(event.kind, line._asdict())
                            elif event.kind == "failed":
                                yield _event("error", {"error": event.error})
                                return
                    done = [lines[i] for i in range(len(lines))]
                    file = await self._work(request, model.finished, prepared, done)
                    self.metrics.sentences.labels(model.name).inc(len(lines))
                    yield _event("done", {"translatedText": file.data.decode()})
            except QueueFull:
                yield _event("error", {"error": "too many documents are waiting; try again"})
            except TimeoutError:
                yield _event("error", {"error": f"not done within {self.limits.seconds:g} seconds"})
            except HTTPException as e:
                yield _event("error", {"error": e.detail})

        return self._events(request, events())

    def _events(self, request: Request, events: AsyncIterator[str]) -> Response:
        """Return an answer of server-sent events."""
        self._count(request, 200)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def translate_file(self, request: Request) -> Response:
        fields = await self._fields(request, self.limits.file_bytes + 10_000)
        asked = values(fields, FILE)
        upload = asked["file"]
        if not isinstance(upload, UploadFile):
            raise HTTPException(400, "file: expected a file")
        data, name = await upload.read(), PurePosixPath((upload.filename or "").replace("\\", "/")).name
        if len(data) > self.limits.file_bytes:
            raise HTTPException(413, f"too large: at most {self.limits.file_bytes} bytes")
        form, model = formats.check_format(name), self._model(asked)
        ask = model.prepare, data, form, asked["glossary"], None, None, asked["consistent"]
        if asked["stream"]:
            return self._followed(request, model, name, ask)
        with self._turn(request):
            prepared = await self._work(request, *ask)
            answer = await self._kept(request, model, name, prepared)
        self._count(request, 200)
        return JSONResponse(answer)

    async def _kept(
        self,
        request: Request,
        model: ServedModel,
        name: str,
        prepared: PreparedText,
        tell: Callable[[int], object] = lambda n: None,
    ) -> dict[str, Any]:
        """Translate a file and keep it; return its address, its counts and what was not understood."""
        lines = await self._lines(request, model, prepared, tell)
        made = await self._work(request, model.finished, prepared, lines)
        stem, dot, end = name.rpartition(".")
        token, named = uuid.uuid4().hex, f"{stem}.{model.languages[1]}{dot}{end}"
        self.files[token] = named, made.data
        while len(self.files) > 1 and self._kept_bytes() > self.limits.kept_bytes:
            self.files.popitem(last=False)
        path = f"/download_file/{token}/{quote(named, safe='')}"
        unread = {"notUnderstood": [one._asdict() for one in made.counts.unread]} if made.counts.unread else {}
        url = f"{str(request.base_url).rstrip('/')}{path}"
        return {"translatedFileUrl": url, "summary": made.counts.summary(), **unread}

    def _kept_bytes(self) -> int:
        return sum(len(data) + len(name) + 200 for name, data in self.files.values())

    def _followed(self, request: Request, model: ServedModel, name: str, ask: tuple[Any, ...]) -> Response:
        """Send events: ``progress`` with the numbers of sentences done and in all, then ``done`` or ``error``.

        Args:
            name: name of the file.
            ask: the function that prepares it, and its arguments.
        """
        with self._turn(request):
            pass  # a refusal must come before the answer begins
        messages: asyncio.Queue[tuple[str, dict[str, Any]] | None] = asyncio.Queue()

        async def work() -> None:
            try:
                with self._turn(request):
                    prepared = await self._work(request, *ask)
                    total = len(prepared.texts)
                    messages.put_nowait(("progress", {"done": 0, "total": total}))
                    answer = await self._kept(
                        request,
                        model,
                        name,
                        prepared,
                        lambda n: messages.put_nowait(("progress", {"done": n, "total": total})),
                    )
                    messages.put_nowait(("done", answer))
            except HTTPException as e:
                messages.put_nowait(("error", {"error": e.detail}))
            except InputError as e:
                messages.put_nowait(("error", {"error": str(e)}))
            finally:
                messages.put_nowait(None)

        async def events() -> AsyncIterator[str]:
            task = asyncio.create_task(work())
            try:
                while (event := await messages.get()) is not None:
                    yield _event(*event)
                await task
            finally:
                task.cancel()

        return self._events(request, events())

    async def download(self, request: Request) -> Response:
        found = self.files.get(request.path_params["token"])
        if found is None:
            raise HTTPException(404, "no such file, or no longer kept")
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in found[0])
        disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(found[0], safe='')}"
        headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
        return Response(found[1], media_type="application/octet-stream", headers=headers)

    async def attention(self, request: Request) -> Response:
        fields = await self._fields(request, 4 * self.limits.characters + 10_000)
        asked = values(fields, ATTENTION)
        source, target, line, word = (asked[name] for name in ("source_lines", "target_lines", "line", "word"))
        model = self._model(asked)
        if sum(map(len, (*source, *target))) > self.limits.characters:
            raise HTTPException(413, f"too long: at most {self.limits.characters} characters")
        with self._turn(request):
            found = await self._work(request, model.attended, source, target, line, word)
        self._count(request, 200)
        return JSONResponse(found)


async def _together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _spoken(models: list[ServedModel], side: int, code: str) -> list[ServedModel]:
    """Return the models of a language on a side: of ``en-US`` if there are any, otherwise of ``en``."""
    exact = [m for m in models if not code or m.languages[side] == code]
    return exact or [m for m in models if formats.language(m.languages[side]) == formats.language(code)]


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
