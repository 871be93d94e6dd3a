"""Models that others have published: a folder at an address, with a ``model.json`` of its files and their hashes.

A model is downloaded once, into the user's cache, and each of its files is checked before anything reads it. Where a
hash of ``model.json`` is known, from an index or behind ``#sha256=``, it is also checked: then nobody who can change
the address's files can change the model. An index is a file ``{"models": {NAME: {"url": ..., "sha256": ...}}}``.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import math
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import locked, remove_folder, shared

INDEX = "LASFORMER_MODELS"
"""Environment variable with the address of an index."""

CARD = "model.json"
LARGEST_CARD, LARGEST = 1 << 20, 20 << 30
"""Bytes of a card or an index, and of all files of a model, at most."""

FILE_NAME = re.compile(r"\w[\w@.-]{0,99}(?<!\.part)(?<!\.version)")
"""Names of files of a published model."""

_HASH = re.compile("[0-9a-f]{64}")


def cache() -> Path:
    """Return the folder of the models that were downloaded."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairseq_lasformer" / "models"


def local_path(model: str | Path) -> Path:
    """Return the place of a model: a path as it is, or the folder of a model that comes with the clone, by its name."""
    place = Path(model)
    if not place.exists() and len(place.parts) == 1 and (folder := shared("data/models") / place).is_dir():
        return folder
    return place


def model_path(model: str | Path) -> Path:
    """Return :func:`local_path`, or the folder of a model at an address or in the index, which is downloaded.

    Raises:
        InputError: the model cannot be downloaded, or differs from its hashes.
    """
    place, index = local_path(model), os.environ.get(INDEX)
    # a path, as options have it, keeps one slash of two
    address = re.sub("^(https?):/+", r"\1://", str(model))
    try:
        if re.match("https?://", address):
            url, _, fragment = address.partition("#")
            wanted = fragment.removeprefix("sha256=")
            if fragment and not (fragment != wanted and _HASH.fullmatch(wanted)):
                raise InputError(f"{address}: expected #sha256= and 64 digits of the {CARD}'s hash, or nothing")
            return _held(url, wanted)
        if index and not place.exists() and len(place.parts) == 1 and FILE_NAME.fullmatch(address):
            return _from_index(index, address)
    except (OSError, RuntimeError) as e:
        raise InputError(f"{address}: cannot be kept in ~/.cache/fairseq_lasformer (or XDG_CACHE_HOME): {e}") from e
    return place


def speed(model: Path) -> float:
    """Return the source tokens a second that a model's card says were measured on a CPU; 0 if it says nothing."""
    try:
        tokens = json.loads((model / CARD).read_bytes())["measured"]["tokens_per_second"]
        return float(tokens) if 0 < tokens < math.inf else 0.0
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return 0.0


def _from_index(index: str, name: str) -> Path:
    known = _object(_read(index), index).get("models")
    if not isinstance(known, dict) or name not in known:
        names = ", ".join(sorted(known)) if isinstance(known, dict) else "no models"
        raise InputError(f"{name}: no such file, and no such model in {index} ({names})")
    entry = known[name]
    url, wanted = (entry.get(key) if isinstance(entry, dict) else None for key in ("url", "sha256"))
    if not isinstance(url, str) or not isinstance(wanted, str) or not _HASH.fullmatch(wanted):
        raise InputError(f"{index}: {name}: expected its url, and the sha256 of its {CARD}")
    return _held(_joined(index, url), wanted)


def _held(url: str, wanted: str) -> Path:
    """Return the folder of a model in the cache; it is downloaded if it is not there.

    Args:
        url: of its folder, or of its card.
        wanted: SHA-256 of its card; empty if it is not known.
    """
    from fairseq_lasformer.base.download import RemoteFile, fetch

    address = url.removesuffix(CARD).rstrip("/") + "/"
    if not address.isascii() or len(address) > 2000:
        raise InputError(f"{ascii(address[:100])}: not an address")
    key = hashlib.sha256(f"{address} {wanted}".encode()).hexdigest()
    name = re.sub("[^A-Za-z0-9_.-]", "_", address.rstrip("/").rpartition("/")[2])[:60]
    folder = cache() / f"{name}-{key[:32]}"
    if (folder / CARD).is_file() and wanted in ("", _hash((folder / CARD).read_bytes())):
        return folder
    card = _read(address + CARD)
    if wanted and _hash(card) != wanted:
        raise InputError(
            f"{address}{CARD}: its SHA-256 is {_hash(card)}, expected {wanted}; not the model that was meant"
        )
    files = _files(_object(card, address + CARD), address)
    cache().mkdir(parents=True, exist_ok=True)
    part = cache() / f"{folder.name}.{_hash(card)[:16]}.part"
    with locked(cache() / f"{folder.name}.lock", "a download of this model"):
        part.mkdir(exist_ok=True)
        for file, size, digest in files:
            fetch(RemoteFile(file, _joined(address, quote(file)), digest, size, tls=True), part)
        for path in part.iterdir():
            if path.name not in {file for file, *_ in files}:
                path.unlink()
        (part / CARD).write_bytes(card)
        remove_folder(folder)
        os.replace(part, folder)
    return folder


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _joined(address: str, part: str) -> str:
    try:
        return urljoin(address, part)
    except ValueError as e:
        raise InputError(f"{address}: {ascii(part[:100])}: not an address ({e})") from e


def _files(card: dict[str, Any], address: str) -> list[tuple[str, int, str]]:
    """Return name, size and SHA-256 of each file of a card."""
    entries, files = card.get("files"), dict[str, tuple[int, str]]()
    for entry in entries if isinstance(entries, list) else []:
        name, size, digest = (entry.get(key) if isinstance(entry, dict) else None for key in ("name", "size", "sha256"))
        named = isinstance(name, str) and FILE_NAME.fullmatch(name) and name not in (CARD, *files)
        sized = type(size) is int and 0 <= size <= LARGEST
        if not (named and sized and isinstance(digest, str) and _HASH.fullmatch(digest)):
            raise InputError(
                f"{address}{CARD}: {ascii(entry)[:80]}: expected a file's name, size and sha256, each file once, "
                f"and at most {LARGEST >> 30} GiB"
            )
        files[str(name)] = int(size or 0), digest
    if not files:
        raise InputError(f"{address}{CARD}: names no files; not written by lasformer pack")
    if sum(size for size, _ in files.values()) > LARGEST:
        raise InputError(f"{address}: a model has at most {LARGEST >> 30} GiB")
    return [(name, *rest) for name, rest in files.items()]


def _read(address: str) -> bytes:
    """Return the content of a small file."""
    from fairseq_lasformer.base.download import start

    try:
        with start(address, {}, tls=True) as answer:
            content: bytes = answer.read(LARGEST_CARD + 1)
    except InputError:
        raise
    except (http.client.HTTPException, OSError, ValueError) as e:
        raise InputError(f"{address}: {' '.join(str(e).split()) or type(e).__name__}") from e
    if len(content) > LARGEST_CARD:
        raise InputError(f"{address}: more than {LARGEST_CARD >> 20} MB; expected a list of files")
    return content


def _object(content: bytes, address: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as e:
        raise InputError(f"{address}: no JSON: {e}") from e
    if not isinstance(value, dict):
        raise InputError(f"{address}: expected an object")
    return value
