"""The HTTP interface: LibreTranslate's, with lines as they are settled, a page, and metrics.

docs.libretranslate.com describes ``/translate``, ``/translate_file``, ``/languages``, ``/detect`` and ``/health``.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from fairseq_lasformer.apps.files.translated import TranslatedFile
from fairseq_lasformer.apps.server.connections import Guard
from fairseq_lasformer.apps.server.fields import TRANSLATE, values
from fairseq_lasformer.apps.server.file_pages import FilePages
from fairseq_lasformer.apps.server.models import EXPLAINED, PreparedText, ServedModel
from fairseq_lasformer.apps.server.places import Turn
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.documents.source import Line

TOGETHER = 64
"""Texts of one request that are in the queue at the same time."""

MOST_TEXTS = 1000
"""Texts of one request; empty ones take time and memory as well."""

T = TypeVar("T")


class Server(FilePages):
    """The server's state: models, limits, keys, jobs.

    Args:
        models: the models; of those with the same languages, the first one is the default.
        limits: see :class:`Limits`.
        keys: API keys; None requires none.
        jobs: folder of files to translate and translated files; default: a temporary one.
    """

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
            self.go_on()
            yield
            self.jobs.close()
            for model in self.models:
                model.engine.close()

        routes = [
            Route("/", self.page),
            Route("/translate", self.translate, methods=["POST"]),
            Route("/translate_file", self.translate_file, methods=["POST"]),
            Route("/jobs", self.begin_job, methods=["POST"]),
            Route("/jobs/{job}", self.job, methods=["GET", "DELETE"]),
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
            allowed = {"allow_methods": ["GET", "POST", "DELETE"], "allow_headers": ["Authorization", "Content-Type"]}
            guards.append(Middleware(CORSMiddleware, allow_origins=list(origins), **allowed))  # type: ignore[arg-type]
        return Starlette(routes=routes, exception_handlers=handlers, middleware=guards, lifespan=lifespan)

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
        if asked["alternatives"]:
            model.files.translator.check_alternatives()
        most, encoded = min(asked["alternatives"], self.limits.alternatives), [text.encode() for text in given]
        if asked["stream"]:
            if len(given) > 1:
                raise HTTPException(400, "stream: one text at a time")
            with self._turn(request) as turn:  # unreadable text is refused before the answer begins
                prepared = await self._prepared(turn, model, encoded[0], *ask)
            if asked["because"]:
                _check_explained(prepared)
            return self._streamed(request, model, prepared, asked["because"])
        places = asyncio.Semaphore(TOGETHER)

        async def one(turn: Turn, data: bytes) -> Json:
            async with places:
                prepared = await self._prepared(turn, model, data, *ask)
                if asked["because"]:
                    _check_explained(prepared)
                lines = await self._lines(turn, model, prepared)
                translated = await self._finished(turn, model, prepared, lines)
                answer: Json = {"translatedText": translated.data.decode()}
                if most:
                    others = await turn.work(self._places(prepared.size), 0, model.alternatives, prepared, lines, most)
                    answer["alternatives"] = [" ".join(options) for options in zip(*others)]
                if asked["because"]:
                    answer["because"] = await self._explained(turn, model, prepared, translated)
                if asked["source"] == "auto":  # the models' only source language: nothing is detected
                    answer["detectedLanguage"] = {"language": model.languages[0], "confidence": 0.0}
                return answer

        with self._turn(request) as turn:
            try:
                async with asyncio.timeout(self.limits.seconds):
                    answers = await _together([one(turn, data) for data in encoded])
            except TimeoutError as e:
                raise self._not_done() from e
        self._count(request, 200)
        # several texts: each field is a list
        return JSONResponse({name: [one[name] for one in answers] for name in answers[0]} if several else answers[0])

    async def _explained(
        self, turn: Turn, model: ServedModel, prepared: PreparedText, translated: TranslatedFile
    ) -> list[Json]:
        """Return the explanation of a translated text."""
        translations = [sentence.line.translation for sentence in translated.lines]
        return await turn.work(self.explanations, 0, model.explained, turn.left, prepared.texts, translations)

    def _streamed(self, request: Request, model: ServedModel, prepared: PreparedText, because: bool) -> Response:
        """Send events: ``source``, each ``line``, ``revised`` lines, then ``done`` with the text, or ``error``.

        Args:
            because: whether ``done`` also has the explanation.
        """

        async def events() -> AsyncIterator[str]:
            lines: dict[int, Line] = {}
            try:
                with self._turn(request) as turn:
                    matches = {"matches": prepared.matches} if prepared.matches else {}
                    yield _event("source", {"sentences": prepared.texts, **matches})
                    async with aclosing(model.events(prepared, self.limits.seconds)) as events:
                        async for event in events:
                            if event.line is not None:
                                lines[event.number] = event.line
                                line = model.line(prepared, event.number, event.line)
                                yield _event(event.kind, line._asdict())
                            elif event.kind == "failed":
                                yield _event("error", {"error": event.error})
                                return
                    done = [lines[i] for i in range(len(lines))]
                    file = await self._finished(turn, model, prepared, done)
                    self.metrics.sentences.labels(model.name).inc(len(lines))
                    answer: Json = {"translatedText": file.data.decode()}
                    if because:
                        answer["because"] = await self._explained(turn, model, prepared, file)
                    yield _event("done", answer)
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


def _check_explained(prepared: PreparedText) -> None:
    """Refuse a text that is too long to be explained, before it is translated."""
    if len(prepared.texts) > EXPLAINED:
        raise HTTPException(413, f"because: {len(prepared.texts)} lines; at most {EXPLAINED} are explained together")


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
