"""Fields of a request: its body, read within bounds, its key, and its values."""

import asyncio
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from fairseq_lasformer.base.records import Json

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
MOST_FIELDS = 40


async def read_fields(request: Request, most: int, seconds: float, keys: Sequence[str] | None) -> Json:
    """Read the fields of a request in JSON or as a form.

    A key in the header or the address is checked before anything is read; otherwise it must be one of the fields.

    Args:
        most: maximum bytes of the body, however it is sent.
        seconds: time limit for receiving it.
        keys: API keys; None requires none.
    """
    given = request.headers.get("authorization", "").removeprefix("Bearer ") or request.query_params.get("api_key", "")
    if given:
        check_key(given, keys)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise HTTPException(413, f"too large: at most {most} bytes")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in FORMS and (not length.isdecimal() or "transfer-encoding" in request.headers):
        # a form is written to disk while it is read, and its end must be known
        raise HTTPException(411, "a form needs a content-length, and no transfer-encoding")
    bounded = Request(request.scope, _bounded(request, most))
    try:
        async with asyncio.timeout(seconds):
            if kind in FORMS:
                fields = dict(await bounded.form(max_files=1, max_fields=MOST_FIELDS, max_part_size=most))
            else:
                fields = json.loads(await bounded.body())
    except TimeoutError as e:
        raise HTTPException(408, f"the request did not arrive within {seconds:g} seconds") from e
    except (ValueError, RecursionError) as e:
        raise HTTPException(400, "expected JSON or a form") from e
    if not isinstance(fields, dict):
        raise HTTPException(400, "expected an object with names and values")
    if not given:
        check_key(fields.get("api_key"), keys)
    return fields


def _bounded(request: Request, most: int) -> Any:
    """Return a function that receives a request's messages, of at most ``most`` bytes in all."""
    received = 0

    async def receive() -> Any:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"too large: at most {most} bytes")
        return message

    return receive


def check_key(given: object, keys: Sequence[str] | None) -> None:
    """Refuse a wrong key; compare in constant time, and in bytes, because keys need not be ASCII."""
    if keys is None:
        return
    text = given if isinstance(given, str) else ""
    # a header's bytes come as latin-1
    forms = [text.encode("utf-8", "replace"), text.encode("latin-1", "replace")]
    equal = [hmac.compare_digest(form, key.encode()) for key in keys for form in forms]
    if not any(equal):
        raise HTTPException(403, "a valid api_key is needed")


def number(given: Any) -> int:
    """Parse a number in a request, from 0; more than a million counts as a million."""
    try:
        value = int(given or 0)
    except (TypeError, ValueError, OverflowError):
        value = -1
    if value < 0:
        raise HTTPException(400, "expected a number")
    return min(value, 10**6)


def given_lines(given: object) -> dict[int, str]:
    """Parse translations of some sentences in a request, an object of number and text (as JSON in a form)."""
    message = 'given: expected an object of sentence number and text, {"1": "…"}'
    pairs = _structure(given, message)
    if not pairs:
        return {}
    keys = pairs if isinstance(pairs, dict) else [None]
    if not all(isinstance(key, str) and key.isdecimal() and len(key) < 10 for key in keys):
        raise HTTPException(400, message)
    texts(list(pairs.values()), "given: expected texts")
    return {int(key): text for key, text in pairs.items()}


def _structure(given: object, message: str) -> Any:
    """Decode a field that is an object or a list (as JSON in a form)."""
    if not isinstance(given, str) or not given.strip():
        return given
    try:
        decoded = json.loads(given)
    except (ValueError, RecursionError):
        decoded = None
    if decoded is None:
        raise HTTPException(400, message)
    return decoded


def yes(given: object) -> bool:
    """Return whether a field is switched on; forms have only words."""
    return str(given or "").strip().lower() not in ("", "0", "false", "no", "off", "none")


def texts(given: object, message: str) -> list[str]:
    """Check texts in a request."""
    if not isinstance(given, list) or not given or not all(isinstance(text, str) for text in given):
        raise HTTPException(400, message)
    try:
        for text in given:
            text.encode()
    except UnicodeEncodeError as e:
        raise HTTPException(400, f"{message} in UTF-8, without lone surrogates") from e
    return given


def _text_or_texts(given: object) -> str | list[str]:
    checked = texts(given if isinstance(given, list) else [given], "q: expected a text, or a list of texts")
    return checked if isinstance(given, list) else checked[0]


def _word(given: object) -> str:
    return str(given or "")


def _lines(name: str) -> Callable[[Any], list[str]]:
    return lambda given: texts(given, f"{name}: expected texts")


def _form(given: object) -> str:
    form = str(given or "text")
    if form not in READ:
        raise HTTPException(400, f"format: expected {', '.join(READ[:-1])} or {READ[-1]}")
    return form


READ = ("text", "html", "markdown")
"""Formats of texts in ``/translate``."""

TEXT, NUMBER, YES = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
TEXTS: Json = {"type": "array", "items": TEXT}


class Field(NamedTuple):
    """A field of a request."""

    schema: Json  # its description in OpenAPI's terms
    read: Callable[[Any], Any]  # returns its value, of None if it is missing; raises HTTPException
    required: bool = False  # whether it may not be missing


_LANGUAGES = {
    "source": Field(TEXT | {"description": "code, or auto"}, _word),
    "target": Field(TEXT, _word),
    "model": Field(TEXT | {"description": "name, if several have the same languages"}, _word),
    "glossary": Field(TEXT | {"description": "lines of source term, tab, target term"}, _word),
}
TRANSLATE = {
    "q": Field({"oneOf": [TEXT, TEXTS]}, _text_or_texts, True),
    "format": Field({"enum": [*READ]}, _form),
    "alternatives": Field(NUMBER, number),
    "given": Field({"type": "object", "additionalProperties": TEXT}, given_lines),
    "because": Field(YES | {"description": "also explain words by the lines that decided them"}, yes),
    "stream": Field(YES | {"description": "server-sent events: source, line, revised, done, error"}, yes),
    **_LANGUAGES,
}
FILE = {
    "file": Field({"type": "string", "format": "binary"}, lambda given: given, True),
    **_LANGUAGES,
}
_SIDES = {
    "source_lines": Field(TEXTS, _lines("source_lines"), True),
    "target_lines": Field(TEXTS, _lines("target_lines"), True),
}
ATTENTION = {**_SIDES, "line": Field(NUMBER, number), "word": Field(NUMBER, number), **_LANGUAGES}
BECAUSE = {**_SIDES, "number": Field(NUMBER | {"description": "of the sentence, from 1"}, number, True), **_LANGUAGES}


def values(given: Mapping[str, Any], fields: Mapping[str, Field]) -> Json:
    """Return the values of a request's fields."""
    return {name: field.read(given.get(name)) for name, field in fields.items()}
