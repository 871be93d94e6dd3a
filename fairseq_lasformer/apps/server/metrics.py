"""Metrics that Prometheus reads from ``/metrics``."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fairseq_lasformer.apps.server.engine import Engine
from fairseq_lasformer.apps.server.models import ServedModel

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
