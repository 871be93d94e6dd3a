"""Answers of the server other than translations: page, languages, limits, description, health, errors, metrics."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from fairseq_lasformer import formats
from fairseq_lasformer.apps.server.engine import Engine
from fairseq_lasformer.apps.server.models import ServedModel
from fairseq_lasformer.apps.server.spec import openapi
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.version import __version__

NAMES = {"en": "English", "de": "German", "fr": "French", "zh": "Chinese", "es": "Spanish", "it": "Italian"}

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


@dataclass(frozen=True)
class Limits:
    """Limits on a client's requests."""

    characters: int = 500_000
    file_bytes: int = 20 << 20
    seconds: float = 600.0  # time limit of a translation
    body_seconds: float = 60.0  # time limit for receiving a request
    per_client: int = 16  # simultaneous translations per address
    # bytes of waiting files, and of translated files kept for download, of which the oldest go first
    kept_bytes: int = 256 << 20
    alternatives: int = 4  # maximum per sentence


class Pages:
    """The answers of a server that need no translation.

    Args:
        models, limits, keys: see :class:`app.Server`.
    """

    def __init__(self, models: Sequence[ServedModel], limits: Limits, keys: Sequence[str] | None = None) -> None:
        self.models, self.limits, self.keys = list(models), limits, keys
        self.metrics = Metrics(models)

    async def refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        self._count(request, error.status_code)
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    async def wrong(self, request: Request, error: Exception) -> Response:
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

    async def spec(self, request: Request) -> Response:
        return JSONResponse(openapi(__version__))

    async def settings(self, request: Request) -> Response:
        """Return the settings that LibreTranslate's pages and clients ask for."""
        source, target = ({"code": code, "name": NAMES.get(code, code)} for code in self.models[0].languages)
        suffixes = [suffix for form in formats.FORMATS.values() for suffix in form.suffixes]
        values: Json = {
            "apiKeys": self.keys is not None,
            "keyRequired": self.keys is not None,
            "suggestions": False,
        }
        values |= {"charLimit": self.limits.characters, "frontendTimeout": 500, "supportedFilesFormat": suffixes}
        return JSONResponse(values | {"language": {"source": source, "target": target}})

    async def languages(self, request: Request) -> Response:
        targets: dict[str, list[str]] = {}
        for model in self.models:
            source, target = model.languages
            targets.setdefault(source, []).append(target)
        known = [
            {"code": code, "name": NAMES.get(code, code), "targets": sorted(set(names))}
            for code, names in targets.items()
        ]
        return JSONResponse(known)

    async def detect(self, request: Request) -> Response:
        raise HTTPException(501, "this server cannot detect languages; name the source language")

    async def show_metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")


PATHS = (
    "/",
    "/translate",
    "/translate_file",
    "/jobs",
    "/download_file",
    "/attention",
    "/because",
    "/detect",
    "/languages",
    "/health",
)


class Metrics:
    """Metrics that Prometheus reads from ``/metrics``."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("lasformer_requests", "Requests", ["path", "status"], registry=self.registry)
        self.sentences = Counter("lasformer_sentences", "Translated sentences", ["model"], registry=self.registry)
        self.seconds = Histogram("lasformer_translation_seconds", "Time of a translation", registry=self.registry)
        self.waiting = Gauge("lasformer_queue", "Documents in the queue", ["model"], registry=self.registry)
        self.engines: dict[str, Engine] = {model.name: model.engine for model in models}

    def request(self, path: str, status: int) -> None:
        """Count a request."""
        first = "/" + path.split("/")[1]
        self.requests.labels(first if first in PATHS else "other", str(status)).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' format."""
        for name, engine in self.engines.items():
            self.waiting.labels(name).set(len(engine.jobs))
        return generate_latest(self.registry)
