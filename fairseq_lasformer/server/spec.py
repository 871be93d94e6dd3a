"""The description of the interface (OpenAPI 3), which ``/spec`` returns."""

from __future__ import annotations

from typing import Any

_TEXT, _NUMBER, _YES = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
_KEY = {"api_key": _TEXT | {"description": "if the server needs one; or as Authorization: Bearer KEY"}}
_LANGUAGES = {
    "source": _TEXT | {"description": "code, or auto"},
    "target": _TEXT,
    "model": _TEXT | {"description": "name, if several have the same languages"},
    "glossary": _TEXT | {"description": "lines of source term, tab, target term"},
}


def _answer(properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"description": "the answer", "content": {"application/json": {"schema": schema}}}


def _post(summary: str, kinds: tuple[str, ...], fields: dict[str, Any], required: list[str], answer: Any) -> Any:
    schema = {"type": "object", "properties": fields | _KEY, "required": required}
    codes = {
        "400": "wrong input",
        "403": "a valid key is needed",
        "408": "too slow",
        "413": "too large",
        "429": "too many simultaneous translations",
        "503": "busy, or not done in time",
    }
    error = {"application/json": {"schema": {"type": "object", "properties": {"error": _TEXT}}}}
    responses = {"200": answer} | {code: {"description": text, "content": error} for code, text in codes.items()}
    body = {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}
    return {"post": {"summary": summary, "requestBody": body, "responses": responses}}


def _get(summary: str, answer: Any) -> Any:
    return {"get": {"summary": summary, "responses": {"200": answer}}}


def openapi(version: str) -> dict[str, Any]:
    """Return the description as a JSON object."""
    json, form = "application/json", "application/x-www-form-urlencoded"
    text_or_texts = {"oneOf": [_TEXT, {"type": "array", "items": _TEXT}]}
    texts = {"type": "array", "items": _TEXT}
    translate = {"q": text_or_texts, "format": {"enum": ["text", "html", "markdown"]}, "alternatives": _NUMBER}
    translate |= {"given": {"type": "object", "additionalProperties": _TEXT}, "consistent": _YES}
    translate |= {"corrected": {"type": "array", "items": _NUMBER}}
    translate |= {"stream": _YES | {"description": "server-sent events: source, line, revised, done, error"}}
    file = {"file": {"type": "string", "format": "binary"}, "stream": _YES, "consistent": _YES}
    words = {"source_lines": texts, "target_lines": texts, "line": _NUMBER, "word": _NUMBER}
    links = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
    detected = {"type": "object", "properties": {"language": _TEXT, "confidence": {"type": "number"}}}
    translated = {"translatedText": text_or_texts, "alternatives": texts, "detectedLanguage": detected}
    language = {"type": "object", "properties": {"code": _TEXT, "name": _TEXT, "targets": texts}}
    listed = {"description": "the languages", "content": {json: {"schema": {"type": "array", "items": language}}}}
    done = {"translatedFileUrl": _TEXT, "summary": _TEXT}
    paths = {
        "/translate": _post(
            "Translate a text, or a list of texts", (json, form), translate | _LANGUAGES, ["q"], _answer(translated)
        ),
        "/translate_file": _post(
            "Translate a file", ("multipart/form-data",), file | _LANGUAGES, ["file"], _answer(done)
        ),
        "/attention": _post(
            "The words that a translated word attends to",
            (json,),
            words | _LANGUAGES,
            ["source_lines", "target_lines"],
            _answer({"source": links, "target": links}),
        ),
        "/download_file/{token}/{name}": _get("A translated file", {"description": "the file"}),
        "/metrics": _get("Counters and gauges", {"description": "Prometheus' text format"}),
        "/languages": _get("The languages", listed),
        "/frontend/settings": _get("Limits and features", _answer({})),
        "/health": _get("Health of the server", _answer({"status": _TEXT})),
    }
    info = {"title": "fairseq_lasformer", "version": version, "description": "Document-level translation"}
    return {"openapi": "3.0.3", "info": info, "paths": paths}
