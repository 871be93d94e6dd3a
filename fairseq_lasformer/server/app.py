"""The HTTP interface: that of LibreTranslate, with lines as they are settled, a page, and metrics.

``/translate``, ``/translate_file``, ``/languages``, ``/detect`` and ``/health`` are those of docs.libretranslate.com.
"""

from __future__ import annotations

import hmac
import html
import json
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fairseq_lasformer import formats
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.inference.translator import Line
from fairseq_lasformer.server.engine import Full
from fairseq_lasformer.server.metrics import Metrics
from fairseq_lasformer.server.models import Prepared, ServedModel

NAMES = {"en": "English", "de": "German", "fr": "French", "zh": "Chinese", "es": "Spanish", "it": "Italian"}

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


@dataclass(frozen=True)
class Limits:
    """What a client may ask for.

    Attributes:
        characters: of a text.
        file_bytes: of a file.
        seconds: until a translation must be done.
        per_client: translations of one address at the same time.
        kept_bytes: of translated files that are kept for downloading; the oldest go first.
        alternatives: per sentence.
    """

    characters: int = 500_000
    file_bytes: int = 20 << 20
    seconds: float = 600.0
    per_client: int = 16
    kept_bytes: int = 256 << 20
    alternatives: int = 4


class Server:
    """The server's state: models, limits, keys, files to download.

    Args:
        models: the models; of those with the same languages, the first one is the default.
        limits: see :class:`Limits`.
        keys: API keys; None needs none.
    """

    def __init__(self, models: Sequence[ServedModel], limits: Limits, keys: Sequence[str] | None = None) -> None:
        self.models, self.limits, self.keys = list(models), limits, keys
        self.metrics = Metrics(models)
        self.busy: Counter[str] = Counter()
        self.files: OrderedDict[str, tuple[str, bytes]] = OrderedDict()

    def app(self, hosts: Sequence[str] = ("*",)) -> Starlette:
        """The application.

        Args:
            hosts: names under which it answers; others are refused, so that no web page can reach a local server under
                a name of its own.
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
        ]
        handlers: Any = {HTTPException: self.refused, InputError: self.wrong, Exception: self.broken}
        hosted = Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
        return Starlette(routes=routes, exception_handlers=handlers, middleware=[hosted], lifespan=lifespan)

    # answers that are no translation

    async def refused(self, request: Request, error: Any) -> Response:
        self._count(request, error.status_code)
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    async def wrong(self, request: Request, error: Any) -> Response:
        self._count(request, 400)
        return JSONResponse({"error": str(error)}, 400)

    async def broken(self, request: Request, error: Exception) -> Response:
        self._count(request, 500)
        return JSONResponse({"error": "the server failed; its log says why"}, 500)

    def _count(self, request: Request, status: int) -> None:
        self.metrics.request(request.url.path, status)

    async def page(self, request: Request) -> Response:
        text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        pairs = [
            {"name": model.name, "source": model.languages[0], "target": model.languages[1]} for model in self.models
        ]
        data = json.dumps({"models": pairs, "key": self.keys is not None}).replace("<", "\\u003c")
        return HTMLResponse(text.replace("@DATA@", data), headers={"Content-Security-Policy": POLICY})

    async def health(self, request: Request) -> Response:
        alive = all(model.engine.alive for model in self.models)
        return JSONResponse({"status": "ok" if alive else "failed"}, 200 if alive else 500)

    async def languages(self, request: Request) -> Response:
        targets: dict[str, list[str]] = {}
        for model in self.models:
            source, target = model.languages
            targets.setdefault(source, []).append(target)
        known = [
            {"code": code, "name": NAMES.get(code, code), "targets": sorted(set(found))}
            for code, found in targets.items()
        ]
        return JSONResponse(known)

    async def detect(self, request: Request) -> Response:
        raise HTTPException(501, "this server cannot detect languages; name the source language")

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    # translations

    async def _fields(self, request: Request, most: int) -> dict[str, Any]:
        """The fields of a request in JSON or as a form, no larger than ``most`` bytes.

        Raises:
            HTTPException: it is too large, malformed, or its key is wrong.
        """
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length) > most:
            raise HTTPException(413, f"too large: at most {most} bytes")
        kind = request.headers.get("content-type", "").partition(";")[0]
        if kind in ("multipart/form-data", "application/x-www-form-urlencoded"):
            if not length.isdecimal():  # a form is written to disk while it is read
                raise HTTPException(411, "a form needs a content-length")
            fields: dict[str, Any] = dict(await request.form(max_files=1, max_part_size=most))
        else:
            body = b""
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise HTTPException(413, f"too large: at most {most} bytes")
            try:
                fields = json.loads(body)
            except ValueError as e:
                raise HTTPException(400, "expected JSON or a form") from e
            if not isinstance(fields, dict):
                raise HTTPException(400, "expected an object with names and values")
        self._check_key(request, fields.get("api_key"))
        return fields

    def _check_key(self, request: Request, given: Any) -> None:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.keys is not None and not any(hmac.compare_digest(str(given or bearer), key) for key in self.keys):
            raise HTTPException(403, "a valid api_key is needed")

    def _model(self, fields: dict[str, Any]) -> ServedModel:
        """The model that a request asks for.

        Raises:
            HTTPException: there is none.
        """
        source, target, name = (str(fields.get(key) or "") for key in ("source", "target", "model"))
        found = [m for m in self.models if (not name or m.name == name) and (not target or m.languages[1] == target)]
        if source not in ("", "auto"):
            found = [m for m in found if m.languages[0] == source]
        elif len({m.languages[0] for m in found}) > 1:
            raise HTTPException(400, "name the source language; this server cannot detect it")
        if not found:
            known = ", ".join(sorted({"-".join(m.languages) for m in self.models}))
            raise HTTPException(400, f"no such model; there are {known}")
        return found[0]

    @contextmanager
    def _turn(self, request: Request) -> Any:
        """One of the translations that an address may have at the same time.

        Raises:
            HTTPException: it has as many already.
        """
        client = request.client.host if request.client else ""
        if self.busy[client] >= self.limits.per_client:
            raise HTTPException(429, "too many translations at the same time", {"Retry-After": "5"})
        self.busy[client] += 1
        try:
            yield
        finally:
            self.busy[client] -= 1

    async def _lines(self, request: Request, model: ServedModel, prepared: Prepared) -> list[Line]:
        """The lines of a translation; ends it when the client leaves.

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
                    if await request.is_disconnected():
                        raise HTTPException(499, "the client has left")
        except Full as e:
            raise HTTPException(503, "too many documents are waiting; try again", {"Retry-After": "10"}) from e
        except TimeoutError as e:
            raise HTTPException(503, f"not done within {self.limits.seconds:g} seconds", {"Retry-After": "60"}) from e
        self.metrics.seconds.observe(time.monotonic() - begun)
        self.metrics.sentences.labels(model.name).inc(len(lines))
        return [lines[i] for i in range(len(lines))]

    async def translate(self, request: Request) -> Response:
        fields = await self._fields(request, 4 * self.limits.characters + 10_000)
        given = fields.get("q")
        texts = _texts(given if isinstance(given, list) else [given], "q: expected a text, or a list of texts")
        if sum(map(len, texts)) > self.limits.characters:
            raise HTTPException(413, f"too long: at most {self.limits.characters} characters")
        form = str(fields.get("format") or "text")
        if form not in ("text", "html", "markdown"):
            raise HTTPException(400, "format: expected text, html or markdown")
        model, glossary = self._model(fields), str(fields.get("glossary") or "")
        most = _number(fields.get("alternatives"), self.limits.alternatives)
        work = anyio.to_thread.run_sync
        prepared = [await work(model.prepare, text.encode(), form, glossary, "utf-8") for text in texts]
        if fields.get("stream"):
            if len(prepared) > 1:
                raise HTTPException(400, "stream: one text at a time")
            return self._streamed(request, model, prepared[0])
        with self._turn(request):
            translated, others = [], []
            for one in prepared:
                lines = await self._lines(request, model, one)
                translated.append((await work(model.finished, one, lines)).data.decode())
                if most:
                    found = await work(model.alternatives, one, lines, most)
                    others.append([" ".join(options) for options in zip(*found)])
        self._count(request, 200)
        several = isinstance(given, list)
        answer: dict[str, Any] = {"translatedText": translated if several else translated[0]}
        if most:
            answer["alternatives"] = others if several else others[0]
        return JSONResponse(answer)

    def _streamed(self, request: Request, model: ServedModel, prepared: Prepared) -> Response:
        """Server-sent events: ``source``, a ``line`` each, ``revised`` ones, ``done`` with the text, or ``error``."""
        with self._turn(request):
            pass  # a refusal must come before the answer begins

        async def events() -> AsyncIterator[str]:
            lines: dict[int, Line] = {}
            try:
                with self._turn(request):
                    yield _event("source", {"sentences": prepared.texts})
                    async with aclosing(model.events(prepared, self.limits.seconds)) as found:
                        async for event in found:
                            if event.line is not None:
                                lines[event.number] = event.line
                                told = model.model.line(event.number + 1, prepared.texts[event.number], event.line)
                                yield _event(event.kind, told._asdict())
                            elif event.kind == "failed":
                                yield _event("error", {"error": event.error})
                                return
                    done = [lines[i] for i in range(len(lines))]
                    file = await anyio.to_thread.run_sync(model.finished, prepared, done)
                    self.metrics.sentences.labels(model.name).inc(len(lines))
                    yield _event("done", {"translatedText": file.data.decode()})
            except Full:
                yield _event("error", {"error": "too many documents are waiting; try again"})
            except TimeoutError:
                yield _event("error", {"error": f"not done within {self.limits.seconds:g} seconds"})
            except HTTPException as e:
                yield _event("error", {"error": e.detail})

        self._count(request, 200)
        return StreamingResponse(events(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def translate_file(self, request: Request) -> Response:
        fields = await self._fields(request, self.limits.file_bytes + 10_000)
        upload = fields.get("file")
        if upload is None or isinstance(upload, str):
            raise HTTPException(400, "file: expected a file")
        data, name = await upload.read(), PurePosixPath((upload.filename or "").replace("\\", "/")).name
        if len(data) > self.limits.file_bytes:
            raise HTTPException(413, f"too large: at most {self.limits.file_bytes} bytes")
        form, model = formats.check_format(name), self._model(fields)
        with self._turn(request):
            prepared = await anyio.to_thread.run_sync(model.prepare, data, form, str(fields.get("glossary") or ""))
            lines = await self._lines(request, model, prepared)
            made = await anyio.to_thread.run_sync(model.finished, prepared, lines)
        stem, dot, end = name.rpartition(".")
        token, named = uuid.uuid4().hex, f"{stem}.{model.languages[1]}{dot}{end}"
        self.files[token] = named, made.data
        while len(self.files) > 1 and sum(len(data) for _, data in self.files.values()) > self.limits.kept_bytes:
            self.files.popitem(last=False)
        self._count(request, 200)
        url = str(request.url_for("translate_file").replace(path=f"/download_file/{token}/{named}"))
        return JSONResponse({"translatedFileUrl": url, "told": made.counts.told()})

    async def download(self, request: Request) -> Response:
        found = self.files.get(request.path_params["token"])
        if found is None:
            raise HTTPException(404, "no such file, or no longer")
        name = html.escape(found[0]).replace('"', "").encode("ascii", "replace").decode()
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "X-Content-Type-Options": "nosniff"}
        return Response(found[1], media_type="application/octet-stream", headers=headers)

    async def attention(self, request: Request) -> Response:
        fields = await self._fields(request, 4 * self.limits.characters + 10_000)
        source, target = (
            _texts(fields.get(side), f"{side}: expected texts") for side in ("source_lines", "target_lines")
        )
        line, word = _number(fields.get("line"), 10**6), _number(fields.get("word"), 10**6)
        model = self._model(fields)
        with self._turn(request):
            found = await anyio.to_thread.run_sync(model.attended, source, target, line, word)
        return JSONResponse(found)


def _number(given: Any, most: int) -> int:
    """A number from 0 to ``most`` in a request.

    Raises:
        HTTPException: it is none.
    """
    try:
        number = int(given or 0)
    except (TypeError, ValueError):
        number = -1
    if number < 0:
        raise HTTPException(400, "expected a number")
    return min(number, most)


def _texts(given: Any, message: str) -> list[str]:
    """Texts in a request.

    Raises:
        HTTPException: they are none.
    """
    if not isinstance(given, list) or not given or not all(isinstance(text, str) for text in given):
        raise HTTPException(400, message)
    return given


def _event(kind: str, data: dict[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
