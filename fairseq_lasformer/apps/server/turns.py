"""Work on behalf of clients: which model, in which threads, and how many at a time."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from fairseq_lasformer import formats
from fairseq_lasformer.apps.files.translated import TranslatedFile
from fairseq_lasformer.apps.server.fields import read_fields
from fairseq_lasformer.apps.server.models import PreparedText, ServedModel
from fairseq_lasformer.apps.server.pages import Limits, Pages
from fairseq_lasformer.apps.server.places import Places, Turn
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.documents.source import Line

PREPARING = 2
"""Threads that read and write short files; one more takes long files, one by one."""

SHORT_BYTES = 1 << 15
"""Bytes of the longest short file, which never waits for long ones."""


class Turns(Pages):
    """Requests for work; see :class:`Server` for the arguments."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, keys: Sequence[str] | None = None) -> None:
        super().__init__(models, limits, keys)
        self.busy: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.short, self.long = Places(PREPARING), Places(1, long=True)
        self.words, self.explanations = Places(1), Places(1, long=True)

    async def _fields(self, request: Request, most: int) -> Json:
        return await read_fields(request, most, self.limits.body_seconds, self.keys)

    def _model(self, asked: Json) -> ServedModel:
        """Return the model that a request asks for."""
        source, target, name = (asked[key] for key in ("source", "target", "model"))
        speaking = _spoken([m for m in self.models if not name or m.name == name], 1, target)
        if source not in ("", "auto"):
            speaking = _spoken(speaking, 0, source)
        elif len({m.languages[0] for m in speaking}) > 1:
            raise HTTPException(400, "name the source language; this server cannot detect it")
        if not speaking:
            known = ", ".join(sorted({"-".join(m.languages) for m in self.models}))
            raise HTTPException(400, f"no such model; there are {known}")
        return speaking[0]

    def _taken(self, request: Request) -> Callable[[], None]:
        """Take one of the simultaneous translations that an address may have; return what gives it back."""
        client = request.client.host if request.client else ""
        with self._lock:
            if self.busy[client] >= self.limits.per_client:
                raise HTTPException(429, "too many translations at the same time", {"Retry-After": "5"})
            self.busy[client] += 1

        def release() -> None:
            with self._lock:
                self.busy[client] -= 1
                if not self.busy[client]:
                    del self.busy[client]

        return release

    @contextmanager
    def _turn(self, request: Request) -> Iterator[Turn]:
        """Hold one of the simultaneous translations of an address, for as long as any thread works on it."""
        turn = Turn(request, self.limits.seconds, self._taken(request))
        try:
            yield turn
        finally:
            turn.leave()

    async def _prepared(self, turn: Turn, model: ServedModel, data: bytes, form: str, *rest: Any) -> PreparedText:
        """Read a text; what it holds is bounded as long as it waits."""
        return await turn.work(self._places(len(data), form), len(data), model.prepare, data, form, *rest)

    async def _finished(
        self, turn: Turn, model: ServedModel, prepared: PreparedText, lines: list[Line]
    ) -> TranslatedFile:
        """Write a translated text, which is in memory already and is not refused any more."""
        return await turn.work(self._places(prepared.size), 0, model.finished, prepared, lines)

    async def _lines(
        self,
        turn: Turn,
        model: ServedModel,
        prepared: PreparedText,
        tell: Callable[[int], object] = lambda n: None,
        place: Path | None = None,
    ) -> list[Line]:
        """Return the lines of a translation; end it when the client leaves.

        Args:
            tell: called with the number of those that are there.
            place: see :meth:`ServedModel.events`.

        Raises:
            QueueFull: too many documents are waiting.
        """
        lines: dict[int, Line] = {}
        begun = time.monotonic()
        try:
            async with aclosing(model.events(prepared, turn.seconds, place)) as events:
                async for event in events:
                    if event.kind == "failed":
                        raise HTTPException(500, event.error)
                    if event.line is not None:
                        lines[event.number] = event.line
                        tell(len(lines))
                    if await turn.client.is_disconnected():
                        raise HTTPException(499, "the client has left")
        except TimeoutError as e:
            raise self._not_done() from e
        self.metrics.seconds.observe(time.monotonic() - begun)
        self.metrics.sentences.labels(model.name).inc(len(lines))
        return [lines[i] for i in range(len(lines))]

    def _places(self, size: int, form: str = "text") -> Places:
        """Return the threads that write a file of so many bytes, or read it in a format."""
        return self.long if size > SHORT_BYTES or formats.is_archive(form) else self.short

    def _not_done(self) -> HTTPException:
        return HTTPException(503, f"not done within {self.limits.seconds:g} seconds", {"Retry-After": "60"})


def _spoken(models: list[ServedModel], side: int, code: str) -> list[ServedModel]:
    """Return the models of a language on a side: of ``en-US`` if there are any, otherwise of ``en``."""
    exact = [m for m in models if not code or m.languages[side] == code]
    return exact or [m for m in models if formats.language(m.languages[side]) == formats.language(code)]
