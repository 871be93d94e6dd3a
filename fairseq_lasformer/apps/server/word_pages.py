"""Answers about a translated word: what the model attended to, and which line decided it."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fairseq_lasformer.apps.server.fields import ATTENTION, BECAUSE, Field, values
from fairseq_lasformer.apps.server.models import ServedModel
from fairseq_lasformer.apps.server.turns import Turns
from fairseq_lasformer.base.records import Json


class WordPages(Turns):
    """Answers about words."""

    async def attention(self, request: Request) -> Response:
        model, asked = await self._lines_of(request, ATTENTION)
        ask = model.attended, *(asked[name] for name in ("source_lines", "target_lines", "line", "word"))
        with self._turn(request) as turn:
            answer = await turn.work(self.words, 0, *ask)
        self._count(request, 200)
        return JSONResponse(answer)

    async def because(self, request: Request) -> Response:
        model, asked = await self._lines_of(request, BECAUSE)
        ask = [asked[name] for name in ("source_lines", "target_lines", "number")]
        places = self.explanations if asked["number"] is None else self.words
        with self._turn(request) as turn:
            answer = await turn.work(places, 0, model.explained, turn.left, *ask)
        self._count(request, 200)
        return JSONResponse({"words": answer})

    async def _lines_of(self, request: Request, fields: Mapping[str, Field]) -> tuple[ServedModel, Json]:
        """Return the model and the values of a request about lines."""
        asked = values(await self._fields(request, 4 * self.limits.characters + 10_000), fields)
        if sum(map(len, (*asked["source_lines"], *asked["target_lines"]))) > self.limits.characters:
            raise HTTPException(413, f"too long: at most {self.limits.characters} characters")
        return self._model(asked), asked
