"""Files: translated while their client waits, or as jobs, which nobody needs to wait for."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from fairseq_lasformer import formats
from fairseq_lasformer.apps.server.engine import QueueFull
from fairseq_lasformer.apps.server.fields import FILE, values
from fairseq_lasformer.apps.server.jobs import Job, Jobs, no_room
from fairseq_lasformer.apps.server.models import PreparedText, ServedModel
from fairseq_lasformer.apps.server.pages import Limits
from fairseq_lasformer.apps.server.places import LOOK, Turn, attend
from fairseq_lasformer.apps.server.word_pages import WordPages
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.documents.source import Line

logger = logging.getLogger(__name__)


class FilePages(WordPages):
    """Answers about files; see :class:`app.Server` for the arguments."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        limits: Limits,
        keys: Sequence[str] | None = None,
        jobs: Path | None = None,
    ) -> None:
        super().__init__(models, limits, keys)
        self.jobs = Jobs(jobs, limits.kept_bytes)

    def go_on(self) -> None:
        """Go on with the jobs that an earlier server left."""
        for job in list(self.jobs.jobs.values()):
            if job.answer is None:
                self._start(job, Turn(job, None, lambda: None))

    def _start(self, job: Job, turn: Turn) -> None:
        job.task = asyncio.get_running_loop().create_task(self._work(job, turn))

    async def _begun(self, request: Request, awaited: bool) -> Job:
        """Read a request, and begin its job."""
        fields = await self._fields(request, self.limits.file_bytes + 10_000)
        asked = values(fields, FILE)
        upload = asked["file"]
        if not isinstance(upload, UploadFile):
            raise HTTPException(400, "file: expected a file")
        data, name = await upload.read(), PurePosixPath((upload.filename or "").replace("\\", "/")).name
        if len(data) > self.limits.file_bytes:
            raise HTTPException(413, f"too large: at most {self.limits.file_bytes} bytes")
        form, model = formats.check_format(name), self._model(asked)
        source, target = model.languages
        of = {"name": name, "form": form, "model": model.name, "source": source, "target": target}
        release = self._taken(request)
        try:
            job = self.jobs.new(len(data), **of, glossary=asked["glossary"], awaited=awaited)
        except HTTPException:
            release()
            raise
        turn = Turn(job, self.limits.seconds if awaited else None, release)
        try:
            # never behind files that are read: whoever leaves meanwhile would keep his place
            await turn.work(self.short, len(data), job.write, data)
        except BaseException as e:
            turn.leave()
            self.jobs.remove(job)
            if isinstance(e, (OSError, InputError)):
                raise no_room(e) from e
            raise
        self._start(job, turn)
        return job

    async def _work(self, job: Job, turn: Turn) -> None:
        """Translate a job's file; what is wrong with it is its answer."""
        try:
            weight = await self.jobs.place(job)
            try:
                await self._translate(job, turn)
            finally:
                await self.jobs.release(weight)
        except HTTPException as e:
            self.jobs.settled(job, {"error": e.detail, "status": e.status_code, "headers": e.headers}, 0)
        except Exception:
            logger.exception("a job failed")
            self.jobs.settled(job, {"error": "the server failed; its log says why", "status": 500}, 0)
        finally:
            turn.leave()

    async def _translate(self, job: Job, turn: Turn) -> None:
        """Translate a job's file; wait for a place in the queue if nobody else does."""
        asked = job.asked
        model = self._model({"source": asked.source, "target": asked.target, "model": asked.model})
        try:
            prepared = await turn.work(self._places(job.size, asked.form), 0, _read, model, job)
        except InputError as e:
            await self._settle(job, turn, {"error": str(e), "status": 400})
            return
        job.total = len(prepared.texts)
        lines = await self._translated(job, turn, model, prepared)
        translated = await self._finished(turn, model, prepared, lines)
        stem, dot, end = asked.name.rpartition(".")
        answer: Json = {"file": f"{stem}.{asked.target}{dot}{end}", "summary": translated.counts.summary()}
        if translated.counts.unread:
            answer["notUnderstood"] = [one._asdict() for one in translated.counts.unread]
        await self._settle(job, turn, answer, translated.data)

    async def _settle(self, job: Job, turn: Turn, answer: Json, data: bytes = b"") -> None:
        """Write the answer of a job, and its translation."""
        try:
            await turn.work(self._places(len(data)), 0, job.settle, answer, data)
        except (OSError, InputError) as e:
            raise no_room(e) from e
        self.jobs.settled(job, answer, len(data))

    async def _translated(self, job: Job, turn: Turn, model: ServedModel, prepared: PreparedText) -> list[Line]:
        """Return a file's lines."""

        def tell(done: int) -> None:
            job.done = done

        while True:
            try:
                return await self._lines(turn, model, prepared, tell, job.journal(model.key))
            except QueueFull:
                if job.asked.awaited:
                    raise
            await asyncio.sleep(LOOK)

    async def translate_file(self, request: Request) -> Response:
        job = await self._begun(request, True)
        assert job.task is not None
        try:
            await attend(job.task, request, self.limits.seconds)
        except TimeoutError as e:
            raise self._not_done() from e
        finally:
            if job.state != "done":
                self.jobs.remove(job)
        if job.answer is None:
            raise HTTPException(503, "the server ends")
        if "error" in job.answer:
            raise HTTPException(job.answer["status"], job.answer["error"], job.answer.get("headers"))
        self._count(request, 200)
        return JSONResponse(self._shown(request, job))

    async def begin_job(self, request: Request) -> Response:
        job = await self._begun(request, False)
        self._count(request, 202)
        number = job.folder.name
        return JSONResponse({"job": number}, 202, headers={"Location": f"/jobs/{number}"})

    async def job(self, request: Request) -> Response:
        job = self.jobs[request.path_params["job"]]
        if request.method == "DELETE":
            self.jobs.remove(job)
            return Response(status_code=204)
        counts = {"state": job.state, "done": job.done, "total": job.total}
        return JSONResponse(counts | self._shown(request, job))

    def _shown(self, request: Request, job: Job) -> Json:
        """Return what a client sees of a job's answer, and where its translation is."""
        hidden = ("file", "status", "headers")
        shown = {name: value for name, value in (job.answer or {}).items() if name not in hidden}
        if job.answer is None or job.state != "done":
            return shown
        path = f"/download_file/{job.folder.name}/{quote(job.answer['file'], safe='')}"
        return shown | {"translatedFileUrl": f"{str(request.base_url).rstrip('/')}{path}"}

    async def download(self, request: Request) -> Response:
        job = self.jobs[request.path_params["token"]]
        if job.answer is None or job.state != "done":
            raise HTTPException(404, "no such file, or no longer kept")
        name = job.answer["file"]
        plain = "".join(c if c.isascii() and (c.isalnum() or c in "._- ") else "_" for c in name)
        disposition = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
        headers = {"Content-Disposition": disposition, "X-Content-Type-Options": "nosniff"}
        return FileResponse(job.folder / "translation", media_type="application/octet-stream", headers=headers)


def _read(model: ServedModel, job: Job) -> PreparedText:
    """Read the file of a job."""
    return model.prepare(job.read(model.key), job.asked.form, job.asked.glossary)
