"""Jobs: files to translate and translated files, in a folder that outlives clients and the server."""

import asyncio
import json
import logging
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from starlette.exceptions import HTTPException

from fairseq_lasformer.apps.server.places import MOST
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write, new_folder, remove_folder, remove_stale, replacing
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.base.resume import Ledger

logger = logging.getLogger(__name__)

TRIES = 3
"""Servers that may end, without having translated a further part of a file, until the file is to blame."""

TOGETHER_BYTES = 8 << 20
"""Bytes of the files that are translated at the same time; a longer file counts as half of it."""


@dataclass(frozen=True)
class Asked:
    """A request for a job."""

    name: str  # of the file
    form: str  # its format
    model: str
    source: str  # language codes
    target: str
    glossary: str
    awaited: bool  # by a client: without the client, it ends
    begun: float  # seconds since the epoch


class Job:
    """A file to translate, or translated: the client of its threads.

    Args:
        folder: ``job.json`` and ``source``; a journal of lines; at the end, ``translation`` and ``answer.json``.
        size: bytes of the source, later of the translation.
        lasting: whether it outlives the server.
        answer: ``file`` (its name), ``summary`` and ``notUnderstood``; or ``error``, ``status`` and ``headers``; None:
            not done.
    """

    def __init__(self, folder: Path, asked: Asked, size: int, lasting: bool, answer: Json | None = None) -> None:
        self.folder, self.asked, self.size, self.lasting, self.answer = folder, asked, size, lasting, answer
        self.done = self.total = 0  # sentences
        self.removed = False
        self.task: asyncio.Task[None] | None = None

    async def is_disconnected(self) -> bool:
        return self.removed

    @property
    def state(self) -> str:
        """``waiting``, ``translating``, ``done`` or ``failed``."""
        if self.answer is None:
            return "translating" if self.total else "waiting"
        return "failed" if "error" in self.answer else "done"

    def write(self, data: bytes) -> None:
        """Put it on disk."""
        with new_folder(self.folder) as place:
            (place / "source").write_bytes(data)
            (place / "job.json").write_text(json.dumps(asdict(self.asked)), encoding="utf-8")
        if self.removed:
            remove_folder(self.folder)

    def journal(self, key: str) -> Path | None:
        """Return the file of its translated lines; None if no other server will read it."""
        return self.folder / f"{key}.jsonl" if self.lasting else None

    def read(self, key: str) -> bytes:
        """Return the source.

        Raises:
            InputError: too many servers have ended over it.
        """
        if (journal := self.journal(key)) is not None:
            tries, size = Ledger(self.folder / "tries"), journal.stat().st_size if journal.exists() else 0
            if [name for name, _ in tries.entries].count(str(size)) >= TRIES:
                raise InputError(f"the server has ended {TRIES} times while it translated this file")
            tries.add(str(size), lasting=True)
        return (self.folder / "source").read_bytes()

    def settle(self, answer: Json, data: bytes) -> None:
        """Write its answer, and its translation if there is one; the source is not needed any more."""
        if "file" in answer:
            with replacing(self.folder / "translation", "wb") as file:
                file.write(data)
        atomic_write(self.folder / "answer.json", json.dumps(answer))
        for path in self.folder.iterdir():
            if path.name not in ("job.json", "answer.json", "translation"):
                path.unlink()
        if self.removed:
            remove_folder(self.folder)


class Jobs:
    """The jobs of a server, the one that waits or was done the longest time ago first.

    Args:
        folder: where they are; default: a temporary folder, which ends with the server.
        most_bytes: of waiting files, and of translated ones, of which the oldest go first.
    """

    def __init__(self, folder: Path | None, most_bytes: int) -> None:
        self.temporary = TemporaryDirectory(prefix="lasformer-jobs") if folder is None else None
        self.folder = folder or Path(self.temporary.name)  # type: ignore[union-attr]
        self.most_bytes, self.jobs = most_bytes, dict[str, Job]()
        self._room, self._bytes = asyncio.Condition(), 0
        if folder is not None and folder.is_dir():
            remove_stale(folder, ".*")
            self._read(folder)

    def __getitem__(self, number: str) -> Job:
        if number not in self.jobs:
            raise HTTPException(404, "no such file, or no longer kept")
        return self.jobs[number]

    def new(self, size: int, **asked: str | bool) -> Job:
        """Return a new job, which is not on disk yet.

        Raises:
            HTTPException: too many are waiting (503).
        """
        waiting = [job.size for job in self.jobs.values() if job.answer is None]
        if waiting and (len(waiting) >= MOST or sum(waiting) + size > self.most_bytes):
            raise HTTPException(503, "too many files are waiting; try again", {"Retry-After": "10"})
        number = uuid.uuid4().hex  # who does not know it cannot ask
        of = Asked(**asked, begun=time.time())  # type: ignore[arg-type]
        job = self.jobs[number] = Job(self.folder / number, of, size, self.temporary is None and not of.awaited)
        return job

    def settled(self, job: Job, answer: Json, size: int) -> None:
        """Note that a job is done, and remove the oldest translations if there are too many."""
        if job.removed:
            return
        job.answer, job.size = answer, size
        self.jobs[job.folder.name] = self.jobs.pop(job.folder.name)  # the last one
        done = [job for job in self.jobs.values() if job.answer is not None]
        while len(done) > 1 and sum(other.size + 200 for other in done) > self.most_bytes:
            self.remove(done.pop(0))

    def remove(self, job: Job) -> None:
        """End a job, and forget it and its files."""
        job.removed = True
        self.jobs.pop(job.folder.name, None)
        if job.task is not None:
            job.task.cancel()
        remove_folder(job.folder)

    async def place(self, job: Job) -> int:
        """Wait until a job's file can be read along with those that are being translated; return what to release."""
        weight = min(job.size, TOGETHER_BYTES // 2)
        async with self._room:
            await self._room.wait_for(lambda: self._bytes + weight <= TOGETHER_BYTES)
            self._bytes += weight
        return weight

    async def release(self, weight: int) -> None:
        async with self._room:
            self._bytes -= weight
            self._room.notify_all()

    def _read(self, folder: Path) -> None:
        """Read the jobs that an earlier server left; those that a client of it awaited go."""
        left = []
        for place in folder.iterdir():
            if len(place.name) != 32 or not place.is_dir():
                continue
            if not (place / "job.json").exists():
                remove_folder(place)  # a thread wrote a line after its removal
                continue
            try:
                asked = Asked(**json.loads((place / "job.json").read_text(encoding="utf-8")))
                answered = (place / "answer.json").exists()
                answer = json.loads((place / "answer.json").read_text(encoding="utf-8")) if answered else None
                file = "translation" if answered else "source"
                size = (place / file).stat().st_size if (place / file).exists() else 0
                left.append(Job(place, asked, size, True, answer))
            except (OSError, ValueError, TypeError) as e:
                logger.warning("%s: a damaged job, left where it is (%s)", place, type(e).__name__)
        for job in sorted(left, key=lambda job: job.asked.begun):
            if job.asked.awaited and job.answer is None:
                remove_folder(job.folder)
            else:
                self.jobs[job.folder.name] = job

    def close(self) -> None:
        """End the threads' work; what is not done goes on with the next server."""
        for job in self.jobs.values():
            if job.task is not None:
                job.task.cancel()
            (job.folder / "tries").unlink(missing_ok=True)  # none of them is to blame
        if self.temporary is not None:
            self.temporary.cleanup()


def no_room(error: OSError | InputError) -> HTTPException:
    """Return the answer where the disk refuses; the log says where."""
    logger.error("a file cannot be written: %s", error)
    return HTTPException(507, "the server has no room for the file; its log says why")
