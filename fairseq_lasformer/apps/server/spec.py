"""The description of the interface (OpenAPI 3), which ``/spec`` returns."""

from collections.abc import Mapping
from typing import Any

from fairseq_lasformer.apps.server.fields import ATTENTION, BECAUSE, FILE, TEXT, TEXTS, TRANSLATE, Field
from fairseq_lasformer.base.records import Json

_KEY = {"api_key": TEXT | {"description": "if the server needs one; or as Authorization: Bearer KEY"}}


def _answer(properties: Json) -> Json:
    schema = {"type": "object", "properties": properties}
    return {"description": "the answer", "content": {"application/json": {"schema": schema}}}


def _post(summary: str, kinds: tuple[str, ...], fields: Mapping[str, Field], answer: Any, code: str = "200") -> Any:
    properties = {name: field.schema for name, field in fields.items()}
    needed = [name for name, field in fields.items() if field.required]
    schema = {"type": "object", "properties": properties | _KEY, "required": needed}
    codes = {
        "400": "wrong input",
        "403": "a valid key is needed",
        "408": "too slow",
        "413": "too large",
        "429": "too many simultaneous translations",
        "503": "busy, or not done in time",
        "507": "no room on the server",
    }
    error = {"application/json": {"schema": {"type": "object", "properties": {"error": TEXT}}}}
    responses = {code: answer} | {code: {"description": text, "content": error} for code, text in codes.items()}
    body = {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}
    return {"post": {"summary": summary, "requestBody": body, "responses": responses}}


def _get(summary: str, answer: Any) -> Any:
    return {"get": {"summary": summary, "responses": {"200": answer}}}


def openapi(version: str) -> Json:
    """Return the description as a JSON object."""
    json, form = "application/json", "application/x-www-form-urlencoded"
    links = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
    detected = {"type": "object", "properties": {"language": TEXT, "confidence": {"type": "number"}}}
    translated = {"translatedText": TRANSLATE["q"].schema, "alternatives": TEXTS, "detectedLanguage": detected}
    explained = {"type": "array", "items": {"type": "object"}}
    translated["because"] = explained
    language = {"type": "object", "properties": {"code": TEXT, "name": TEXT, "targets": TEXTS}}
    listed = {"description": "the languages", "content": {json: {"schema": {"type": "array", "items": language}}}}
    part = {"line": {"type": "integer"}, "what": TEXT, "place": TEXT}
    unread = {"type": "array", "items": {"type": "object", "properties": part}}
    done = {"translatedFileUrl": TEXT, "summary": TEXT, "notUnderstood": unread}
    states = {"enum": ["waiting", "translating", "done", "failed"]}
    state = {"state": states, "done": {"type": "integer"}, "total": {"type": "integer"}, **done, "error": TEXT}
    gone = {"delete": {"summary": "End a job, and remove its files", "responses": {"204": {"description": "gone"}}}}
    paths = {
        "/translate": _post("Translate a text, or a list of texts", (json, form), TRANSLATE, _answer(translated)),
        "/translate_file": _post("Translate a file", ("multipart/form-data",), FILE, _answer(done)),
        "/jobs": _post(
            "Begin a job: a file that nobody waits for", ("multipart/form-data",), FILE, _answer({"job": TEXT}), "202"
        ),
        "/jobs/{job}": _get("The state of a job, in sentences, and its end", _answer(state)) | gone,
        "/attention": _post(
            "The words that a translated word attends to",
            (json,),
            ATTENTION,
            _answer({"source": links, "target": links}),
        ),
        "/because": _post("The lines that decided a line's words", (json,), BECAUSE, _answer({"words": explained})),
        "/download_file/{token}/{name}": _get("A translated file", {"description": "the file"}),
        "/metrics": _get("Counters and gauges", {"description": "Prometheus' text format"}),
        "/languages": _get("The languages", listed),
        "/frontend/settings": _get("Limits and features", _answer({})),
        "/health": _get("Health of the server", _answer({"status": TEXT})),
    }
    info = {"title": "fairseq_lasformer", "version": version, "description": "Document-level translation"}
    return {"openapi": "3.0.3", "info": info, "paths": paths}
