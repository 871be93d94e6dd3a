"""What a request says: its body read within bounds, its key, and the fields in it."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
MOST_FIELDS = 40


async def read_fields(request: Request, most: int, seconds: float, keys: Sequence[str] | None) -> dict[str, Any]:
    """The fields of a request in JSON or as a form.

    The key is checked before anything is read, if it stands in the header or the address; otherwise it must be one of
    the fields.

    Args:
        most: bytes of the body, however it is sent.
        seconds: until it must be there.
        keys: API keys; None needs none.

    Raises:
        HTTPException: it is too large, too slow or malformed, or its key is wrong.
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
        raise HTTPException(408, f"the request was not there within {seconds:g} seconds") from e
    except (ValueError, RecursionError) as e:
        raise HTTPException(400, "expected JSON or a form") from e
    if not isinstance(fields, dict):
        raise HTTPException(400, "expected an object with names and values")
    if not given:
        check_key(fields.get("api_key"), keys)
    return fields


def _bounded(request: Request, most: int) -> Any:
    """A request's messages, of no more than ``most`` bytes in all."""
    received = 0

    async def receive() -> Any:
        nonlocal received
        message = await request.receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, f"too large: at most {most} bytes")
        return message

    return receive


def check_key(given: Any, keys: Sequence[str] | None) -> None:
    """Refuses a wrong key; compared in constant time, in bytes, because keys need not be ASCII.

    Raises:
        HTTPException: it is wrong.
    """
    if keys is None:
        return
    text = given if isinstance(given, str) else ""
    # a header's bytes come as latin-1
    forms = [text.encode("utf-8", "replace"), text.encode("latin-1", "replace")]
    found = [hmac.compare_digest(form, key.encode()) for key in keys for form in forms]
    if not any(found):
        raise HTTPException(403, "a valid api_key is needed")


def number(given: Any, most: int) -> int:
    """A number from 0 to ``most`` in a request.

    Raises:
        HTTPException: it is none.
    """
    try:
        found = int(given or 0)
    except (TypeError, ValueError, OverflowError):
        found = -1
    if found < 0:
        raise HTTPException(400, "expected a number")
    return min(found, most)


def given_lines(given: Any) -> dict[int, str]:
    """Translations of some sentences in a request, an object of number and text (a form has it as JSON).

    Raises:
        HTTPException: it is none.
    """
    message = 'given: expected an object of sentence number and text, {"1": "…"}'
    pairs = _structure(given, message)
    if not pairs:
        return {}
    keys = pairs if isinstance(pairs, dict) else [None]
    if not all(isinstance(key, str) and key.isdecimal() and len(key) < 10 for key in keys):
        raise HTTPException(400, message)
    texts(list(pairs.values()), "given: expected texts")
    return {int(key): text for key, text in pairs.items()}


def numbers(given: Any, message: str) -> frozenset[int] | None:
    """Numbers in a request, a list (a form has it as JSON); None if there is no such field.

    Raises:
        HTTPException: they are none.
    """
    listed = _structure(given, message)
    if listed is None or listed == "":
        return None
    if not isinstance(listed, list) or not all(type(number) is int for number in listed):
        raise HTTPException(400, message)
    return frozenset(listed)


def _structure(given: Any, message: str) -> Any:
    """A field that is an object or a list; a form has it as JSON.

    Raises:
        HTTPException: it is a text that is no JSON, or null.
    """
    if not isinstance(given, str) or not given.strip():
        return given
    try:
        decoded = json.loads(given)
    except (ValueError, RecursionError):
        decoded = None
    if decoded is None:
        raise HTTPException(400, message)
    return decoded


def yes(given: Any) -> bool:
    """Whether a field is switched on; forms have words only."""
    return str(given or "").strip().lower() not in ("", "0", "false", "no", "off", "none")


def texts(given: Any, message: str) -> list[str]:
    """Texts in a request.

    Raises:
        HTTPException: they are none, or hold what is no character.
    """
    if not isinstance(given, list) or not given or not all(isinstance(text, str) for text in given):
        raise HTTPException(400, message)
    try:
        for text in given:
            text.encode()
    except UnicodeEncodeError as e:
        raise HTTPException(400, f"{message} in UTF-8, without lone surrogates") from e
    return given
