"""The HTTP interface: LibreTranslate's, with lines as they are settled, a page, and metrics.

docs.libretranslate.com describes ``/translate``, ``/translate_file``, ``/languages``, ``/detect`` and ``/health``.
"""

import asyncio
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import PurePosixPath
from typing import Any, TypeVar
from urllib.parse import quote

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
from fairseq_lasformer.file_translation.translated import TranslatedFile
from fairseq_lasformer.records import Json
from fairseq_lasformer.server.engine import QueueFull
from fairseq_lasformer.server.fields import FILE, TRANSLATE, values
from fairseq_lasformer.server.hosts import Guard
from fairseq_lasformer.server.models import PreparedText, ServedModel
from fairseq_lasformer.server.pages import Limits
from fairseq_lasformer.server.word_pages import WordPages

TOGETHER = 64
"""Texts of one request that are in the queue at the same time."""

MOST_TEXTS = 1000
"""Texts of one request; empty ones take time and memory as well."""

T = TypeVar("T")


class Server(WordPages):
    """The server's state: models, limits, keys, files to download.

    Args:
        models: the models; of those with the same languages, the first one is the default.
        limits: see :class:`Limits`.
        keys: API keys; None requires none.
    """

    def __init__(self, models: Sequence[ServedModel], limits: Limits, keys: Sequence[str] | None = None) -> None:
        super().__init__(models, limits, keys)
        self.files: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

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
            Route("/because", self.because, methods=["POST"]),
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

    async def _lines(
        self,
        request: Request,
        model: ServedModel,
        prepared: PreparedText,
        tell: Callable[[int], object] = lambda n: None,
    ) -> list[Line]:
        """Return the lines of a translation; end it when the client leaves. ``tell`` is called with their number."""
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
        ask = asked["format"], asked["glossary"], "utf-8", known
        if sum(map(len, known.values())) > self.limits.characters:
            raise HTTPException(413, f"given: too long: at most {self.limits.characters} characters")
        if asked["because"] and not model.reads_documents:
            raise HTTPException(400, "because: needs a model of documents")
        if known and len(given) > 1:
            raise HTTPException(400, "given: one text at a time")
        most, encoded = min(asked["alternatives"], self.limits.alternatives), [text.encode() for text in given]
        if asked["stream"]:
            if len(given) > 1:
                raise HTTPException(400, "stream: one text at a time")
            with self._turn(request):  # unreadable text is refused before the answer begins
                prepared = await self._work(request, model.prepare, encoded[0], *ask)
            return self._streamed(request, model, prepared, asked["because"])
        places = asyncio.Semaphore(TOGETHER)

        async def one(data: bytes) -> Json:
            async with places:
                prepared = await self._work(request, model.prepare, data, *ask)
                lines = await self._lines(request, model, prepared)
                made = await self._work(request, model.finished, prepared, lines)
                answer: Json = {"translatedText": made.data.decode()}
                if most:
                    others = await self._work(request, model.alternatives, prepared, lines, most)
                    answer["alternatives"] = [" ".join(options) for options in zip(*others)]
                if asked["because"]:
                    answer["because"] = await self._explained(request, model, prepared, made)
                if asked["source"] == "auto":  # the models' only source language: nothing is detected
                    answer["detectedLanguage"] = {"language": model.languages[0], "confidence": 0.0}
                return answer

        with self._turn(request):
            try:
                async with asyncio.timeout(self.limits.seconds):
                    found = await _together([one(data) for data in encoded])
            except TimeoutError as e:
                raise self._not_done() from e
        self._count(request, 200)
        # several texts: each field is a list
        return JSONResponse({name: [one[name] for one in found] for name in found[0]} if several else found[0])

    async def _explained(
        self, request: Request, model: ServedModel, prepared: PreparedText, made: TranslatedFile
    ) -> list[Json]:
        """Return the explanation of a translated text."""
        translations = [sentence.line.translation for sentence in made.lines]
        return await self._work(request, model.explained, prepared.texts, translations)

    def _streamed(self, request: Request, model: ServedModel, prepared: PreparedText, because: bool) -> Response:
        """Send events: ``source``, each ``line``, ``revised`` lines, then ``done`` with the text, or ``error``.

        Args:
            because: whether ``done`` also has the explanation.
        """

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
                    answer: Json = {"translatedText": file.data.decode()}
                    if because:
                        answer["because"] = await self._explained(request, model, prepared, file)
                    yield _event("done", answer)
            except QueueFull:
                yield _event("error", {"error": "too many documents are waiting; try again"})
            except TimeoutError:
                yield _event("error", {"error": f"not done within {self.limits.seconds:g} seconds"})
            except HTTPException as e:
                yield _event("error", {"error": e.detail})
            except InputError as e:  # a line that is too long to be explained
                yield _event("error", {"error": str(e)})

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
        ask = model.prepare, data, form, asked["glossary"]
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
    ) -> Json:
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
        messages: asyncio.Queue[tuple[str, Json] | None] = asyncio.Queue()

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


async def _together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of coroutines; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _event(kind: str, data: Json) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
