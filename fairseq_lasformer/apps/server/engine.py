"""Translation of many clients' documents in common batches, part by part; lines are passed on once they are settled.

A model has lanes: threads with a translator each, the first of which takes only short parts. Between two batches a lane
admits new documents and drops cancelled ones, and those that it has worked on go to the end of the queue. So a document
waits only for parts, never for whole documents, and a short one never waits for long ones.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from starlette.exceptions import HTTPException

from fairseq_lasformer.documents.source import Line, Source
from fairseq_lasformer.documents.streaming import Stopped
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.text.documents import Span

logger = logging.getLogger(__name__)

SHORT = 512
"""Tokens of the longest part that the first lane takes, if there are other lanes."""

MOST = 256
"""Documents in the queue."""

ALIKE = 4
"""Parts are translated together if none has this many times the tokens of another."""


SENTENCES = 32
"""Sentences of a document that a model of single sentences translates together."""


class QueueFull(HTTPException):
    """The queue is full (503)."""

    def __init__(self) -> None:
        super().__init__(503, "too many documents are waiting; try again", {"Retry-After": "10"})


class Event(NamedTuple):
    """An event of a document."""

    kind: str  # `line` (a line is settled), `revised` (it has changed since), `done` or `failed`
    number: int = -1  # of the line, from 0
    line: Line | None = None
    error: str = ""


class QueuedDocument:
    """A document in the queue.

    Args:
        tell: called with each event, from the engine's thread.
        known: lines of parts that were translated before.
        keep: called with the lines of each part.
    """

    def __init__(
        self,
        source: Source,
        tell: Callable[[Event], object],
        known: Sequence[Line] = (),
        keep: Callable[[list[Line]], object] = lambda lines: None,
    ) -> None:
        self.source, self.tell, self.keep = source, tell, keep
        self.lines, self.shown = list(known), len(known)
        self.cancelled = threading.Event()
        self.taken = False  # by a lane

    def parts(self, most: int) -> list[Span]:
        """Return the next parts, at most ``most``; none after the last."""
        return [part for part in self.source.parts if part.start >= len(self.lines)][:most]

    def say(self, event: Event) -> None:
        """Report an event; a client that has gone is not a failure of the translation."""
        if self.cancelled.is_set():
            return
        try:
            self.tell(event)
        except Exception as e:
            logger.warning("a client has gone: %s", e)
            self.cancelled.set()

    def emit(self, number: int, line: Line) -> None:
        """Pass on a line, unless that was done before."""
        if number == self.shown:
            self.shown += 1
            self.say(Event("line", number, line))


class Engine:
    """The queue of a model.

    Args:
        translators: one per lane, with aligned lines or of a model of single sentences.
        max_tokens: tokens, with padding, that are translated together.
    """

    def __init__(
        self,
        translators: Sequence[Translator],
        device: Any,
        max_tokens: int = 4096,
    ) -> None:
        self.device = device
        self.max_tokens = max_tokens
        self.jobs: deque[QueuedDocument] = deque()
        self.changed = threading.Condition()
        self.closed = False
        self.most = SENTENCES if translators[0].independent else 1
        shorts = [SHORT, *[sys.maxsize] * (len(translators) - 1)] if len(translators) > 1 else [sys.maxsize]
        lanes = zip(translators, shorts)
        self.threads = [threading.Thread(target=self._run, args=lane, daemon=True) for lane in lanes]
        for thread in self.threads:
            thread.start()

    @property
    def alive(self) -> bool:
        """Return whether all lanes work."""
        return all(thread.is_alive() for thread in self.threads)

    def submit(self, source: Source, tell: Callable[[Event], object], *journal: Any) -> QueuedDocument:
        """Queue a document; see :class:`QueuedDocument`."""
        job = QueuedDocument(source, tell, *journal)
        with self.changed:
            if self.closed or len(self.jobs) >= MOST:
                raise QueueFull
            self.jobs.append(job)
            self.changed.notify_all()
        return job

    def cancel(self, job: QueuedDocument) -> None:
        """Drop a document; its client hears nothing more."""
        job.cancelled.set()

    def close(self) -> None:
        """Stop after the current step."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()

    def _run(self, translator: Translator, longest: int) -> None:
        """Run a lane; ``longest`` is the length of the longest parts it takes."""
        while True:
            with self.changed:
                while not (batch := self._batch(translator, longest)) and not self.closed:
                    self.changed.wait()
                if self.closed:
                    return
            try:
                self._step(translator, batch)
            except Stopped:
                continue
            except Exception as e:  # one batch must not end the server
                logger.exception("a batch failed")
                self._fail(translator, batch, e)
            finally:
                with self.changed:
                    for job in batch:
                        job.taken = False
                        if job in self.jobs:  # each in turn has a part translated: a line does not wait for pages
                            self.jobs.remove(job)
                            self.jobs.append(job)
                    self.changed.notify_all()

    def _batch(self, translator: Translator, longest: int) -> list[QueuedDocument]:
        """Choose the first document that a lane takes and, in order, all of similar length that fit with it."""
        self.jobs = deque(job for job in self.jobs if job.taken or not job.cancelled.is_set())
        chosen: list[tuple[int, QueuedDocument]] = []
        for job in self.jobs:
            parts = job.parts(self.most)
            length = len(parts) * max((len(translator.example(job.source, part)) for part in parts), default=0)
            if job.taken or length > longest:
                continue
            lengths = [length, *(n for n, _ in chosen)]
            alike = max(lengths) < ALIKE * max(1, min(lengths))
            if not chosen or (alike and max(lengths) * len(lengths) <= self.max_tokens):
                chosen.append((length, job))
                job.taken = True
        return [job for _, job in chosen]

    def _step(self, translator: Translator, batch: Sequence[QueuedDocument]) -> None:
        """Translate one part of each document, or several that need not wait for each other."""
        tasks = [(job, part) for job in batch for part in job.parts(self.most)]

        def check() -> None:
            if self.closed or all(job.cancelled.is_set() for job in batch):
                raise Stopped

        if tasks:
            parts = [(job.source._replace(terms=None), part, job.lines) for job, part in tasks]
            translated = translator.translate_parts(parts, self.device, check)
            for (job, _), lines in zip(tasks, translated):
                first = len(job.lines)
                job.lines += lines
                if not job.cancelled.is_set():
                    job.keep(lines)
                for number, line in enumerate(lines, first):
                    job.emit(number, line)
        self._finish(translator, [job for job in batch if not job.parts(1) and not job.cancelled.is_set()])

    def _finish(self, translator: Translator, jobs: Sequence[QueuedDocument]) -> None:
        """Finish documents as a whole, report what has changed, and end them."""
        if not jobs:
            return
        before = [list(job.lines) for job in jobs]
        lines = [list(job.lines) for job in jobs]
        translator.finish([job.source for job in jobs], lines, self.device)
        for job, old, new in zip(jobs, before, lines):
            for number, (a, b) in enumerate(zip(old, new)):
                if not torch.equal(a.tokens, b.tokens) or a[1:] != b[1:]:
                    job.say(Event("revised", number, b))
            job.say(Event("done"))
            self._remove(job)

    def _remove(self, job: QueuedDocument) -> None:
        with self.changed:
            if job in self.jobs:
                self.jobs.remove(job)

    def _fail(self, translator: Translator, batch: Sequence[QueuedDocument], error: Exception) -> None:
        """Retry the documents of a batch one by one; those that fail alone are to blame."""
        if len(batch) == 1:
            (job,) = batch
            self._remove(job)
            job.say(Event("failed", error=f"the translation failed ({type(error).__name__})"))
            return
        for job in batch:
            try:
                self._step(translator, [job])
            except Stopped:
                continue
            except Exception as e:
                self._fail(translator, [job], e)
