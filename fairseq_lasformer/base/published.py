"""Models that others have published: a folder at an address, with a ``model.json`` of its files and their hashes.

A model is downloaded once, into the user's cache, and each of its files is checked before anything reads it. Where a
hash of ``model.json`` is known, from an index or behind ``#sha256=``, it is also checked: then nobody who can change
the address's files can change the model. An index is a file ``{"models": {NAME: {"url": ..., "sha256": ...}}}``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import locked, shared

INDEX = "LASFORMER_MODELS"
"""Environment variable with the address of an index."""

CARD = "model.json"
LARGEST_CARD, LARGEST = 1 << 20, 20 << 30
"""Bytes of a card or an index, and of all files of a model, at most."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_HASH = re.compile("[0-9a-f]{64}")


def cache() -> Path:
    """Return the folder of the models that were downloaded."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairseq_lasformer" / "models"


def model_path(model: str | Path) -> Path:
    """Return the place of a model: a path as it is, otherwise by name (the clone's, an index's), or by address.

    Raises:
        InputError: the model cannot be downloaded, or differs from its hashes.
    """
    text, place = str(model), Path(model)
    if re.match("https?://", text):
        address, _, fragment = text.partition("#")
        wanted = fragment.removeprefix("sha256=")
        if fragment and not (fragment != wanted and _HASH.fullmatch(wanted)):
            raise InputError(f"{text}: expected #sha256= and 64 digits of the {CARD}'s hash, or nothing")
        return _held(address.removesuffix(CARD).rstrip("/") + "/", wanted)
    if place.exists() or len(place.parts) != 1 or not _NAME.fullmatch(text):
        return place
    if (held := shared("data/models") / place).is_dir():
        return held
    index = os.environ.get(INDEX)
    return _from_index(index, text) if index else place


def _from_index(index: str, name: str) -> Path:
    known = _object(_read(index), index).get("models")
    if not isinstance(known, dict) or name not in known:
        names = ", ".join(sorted(known)) if isinstance(known, dict) else "no models"
        raise InputError(f"{name}: no such file, and no such model in {index} ({names})")
    entry = known[name]
    url, wanted = (entry.get(key) if isinstance(entry, dict) else None for key in ("url", "sha256"))
    if not isinstance(url, str) or not isinstance(wanted, str) or not _HASH.fullmatch(wanted):
        raise InputError(f"{index}: {name}: expected its url, and the sha256 of its {CARD}")
    return _held(urljoin(index, url).removesuffix(CARD).rstrip("/") + "/", wanted)


def _held(address: str, wanted: str) -> Path:
    """Return the folder of a model in the cache; it is downloaded if it is not there.

    Args:
        address: of its folder, with a slash at the end.
        wanted: SHA-256 of its card; empty if it is not known.
    """
    from fairseq_lasformer.base.download import RemoteFile, fetch

    short = hashlib.sha256(f"{address} {wanted}".encode()).hexdigest()[:12]
    name = re.sub("[^A-Za-z0-9_.-]", "_", address.rstrip("/").rpartition("/")[2])[:60]
    folder = cache() / f"{name}-{short}"
    if (folder / CARD).is_file():
        return folder
    card = _read(address + CARD)
    found = hashlib.sha256(card).hexdigest()
    if wanted and found != wanted:
        raise InputError(f"{address}{CARD}: its SHA-256 is {found}, expected {wanted}; not the model that was meant")
    files = _files(_object(card, address + CARD), address)
    cache().mkdir(parents=True, exist_ok=True)
    part = cache() / f"{folder.name}.part"
    with locked(cache() / f"{folder.name}.lock", "a download of this model"):
        if not (folder / CARD).is_file():
            part.mkdir(exist_ok=True)
            for name, size, digest in files:
                fetch(RemoteFile(name, _checked(urljoin(address, name)), digest, size), part)
            (part / CARD).write_bytes(card)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(part, folder)
    return folder


def _files(card: dict[str, Any], address: str) -> list[tuple[str, int, str]]:
    """Return name, size and SHA-256 of each file of a card."""
    entries, found = card.get("files"), dict[str, tuple[int, str]]()
    for entry in entries if isinstance(entries, list) else []:
        name, size, digest = (entry.get(key) if isinstance(entry, dict) else None for key in ("name", "size", "sha256"))
        named = isinstance(name, str) and _NAME.fullmatch(name) and name not in (CARD, *found)
        if not (named and type(size) is int and size >= 0 and isinstance(digest, str) and _HASH.fullmatch(digest)):
            raise InputError(f"{address}{CARD}: {str(entry)[:80]}: expected a file's name, size and sha256, each once")
        found[str(name)] = size, digest
    if not found:
        raise InputError(f"{address}{CARD}: names no files; not written by lasformer pack")
    if (total := sum(size for size, _ in found.values())) > LARGEST:
        raise InputError(f"{address}: {total / 1e9:.0f} GB; a model has at most {LARGEST / 1e9:.0f} GB")
    return [(name, *rest) for name, rest in found.items()]


def _checked(address: str) -> str:
    """Return an address that may be read: with TLS, or on this machine."""
    parts = urlsplit(address)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")):
        return address
    raise InputError(f"{address}: expected https://")


def _read(address: str) -> bytes:
    """Return the content of a small file."""
    import http.client
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(_checked(address), timeout=60) as answer:
            _checked(answer.geturl())
            content: bytes = answer.read(LARGEST_CARD + 1)
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as e:
        raise InputError(f"{address}: {' '.join(str(e).split()) or type(e).__name__}") from e
    if len(content) > LARGEST_CARD:
        raise InputError(f"{address}: more than {LARGEST_CARD >> 20} MB; expected a list of files")
    return content


def _object(content: bytes, address: str) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{address}: no JSON: {e}") from e
    if not isinstance(found, dict):
        raise InputError(f"{address}: expected an object")
    return found
