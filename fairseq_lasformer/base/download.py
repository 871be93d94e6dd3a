"""Downloads that can be resumed, with a progress bar and checksum verification."""

import http.client
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import CHUNK, atomic_write, check_writable, file_hash
from fairseq_lasformer.base.terminal import progress_bar


class RemoteFile(NamedTuple):
    """One file of a distribution."""

    name: str  # name under which the file is stored
    url: str  # where it is downloaded from
    # its published SHA-256 or MD5. Empty if none is published: the file is then only downloaded with `trust`, and its
    # SHA-256 is stored (`NAME.sha256`) for all later runs.
    checksum: str = ""
    size: int | None = None  # its number of bytes, if it is known: a server that sends more is not read on
    tls: bool = False  # whether it, and all that it redirects to, must be read with TLS, or from this machine


def fetch(source: RemoteFile, folder: Path, trust: bool = False) -> Path:
    """Return the file in ``folder``, downloading it if it is missing.

    Args:
        trust: accept a file whose checksum is unknown.
    """
    path, hash_file = folder / source.name, folder / f"{source.name}.sha256"
    if path.is_dir():
        raise InputError(f"{path}: is a folder; expected the file {source.name}")
    expected = source.checksum or _kept_hash(hash_file)
    if path.exists():
        if not expected and not trust:
            return path  # placed there by hand
        return _checked(path, path, expected, hash_file)
    if not expected and not trust:
        raise InputError(
            f"{path}: not found, and no checksum is published for {source.url}; put the file there, or add "
            "--trust-first-download (TRUST=1 for the scripts)"
        )
    check_writable(path)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{source.name}.part"
    _download(source, part, bool(expected))
    return _checked(part, path, expected, hash_file)


def _kept_hash(file: Path) -> str:
    """Return the hash that a file had when it was first downloaded; empty if none is stored."""
    if not file.exists():
        return ""
    words = file.read_text(encoding="utf-8", errors="replace").split()
    if not words or not re.fullmatch("[0-9a-f]{64}", words[0]):
        raise InputError(f"{file}: contains no SHA-256; remove it, and the file it belongs to, and download again")
    return words[0]


def _checked(have: Path, path: Path, expected: str, hash_file: Path) -> Path:
    kind = "md5" if len(expected) == 32 else "sha256"
    actual = file_hash(have, kind)
    if expected and actual != expected:
        if have != path:
            have.unlink()
            _validator(have).unlink(missing_ok=True)
        raise InputError(f"{have}: its {kind} is {actual}, expected {expected}; remove it and try again")
    if not expected:
        _check_kind(have, path.name)
        atomic_write(hash_file, f"{actual}  {path.name}\n")
        print(f"{path}: SHA-256 {actual}, kept for later runs")
    if have != path:
        os.replace(have, path)
        _validator(have).unlink(missing_ok=True)
    return path


def _check_kind(file: Path, name: str) -> None:
    """Reject a file whose content does not match its name: a server that requires a login returns a web page."""
    with open(file, "rb") as f:
        head = f.read(512)
    magic = next(
        (m for end, m in ((".zip", b"PK"), (".gz", b"\x1f\x8b"), (".tgz", b"\x1f\x8b")) if name.endswith(end)), b""
    )
    page = head.lstrip().lower().startswith((b"<!doctype html", b"<html"))
    if not head or page or not head.startswith(magic):
        what = "a web page" if page else "empty" if not head else "another kind of file"
        raise InputError(f"{file}: {what}, not {name}; remove it, and put the right file there yourself")


def _validator(part: Path) -> Path:
    """Return the file that stores the server's identifier for the version that a partial download belongs to."""
    return part.with_name(part.name + ".version")


def _download(source: RemoteFile, part: Path, known: bool) -> None:
    """Download a file, or the rest of a partial download of the same version.

    Args:
        part: where to store the download.
        known: whether a known checksum will show that the file is complete; otherwise, the server must state its
            length.
    """
    url = source.url
    try:
        _get(source, part, known)
    except urllib.error.HTTPError as e:
        raise InputError(f"{url}: {e}; put the file at {part.with_suffix('')} yourself") from e
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        raise InputError(f"{url}: {reason}; try again (it resumes), or put the file at {part.with_suffix('')}") from e


def _local(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _check_address(url: str, local: bool) -> None:
    scheme = urlsplit(url).scheme
    if scheme != "https" and not (scheme == "http" and local and _local(url)):
        raise InputError(f"{url}: expected https://")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects that do not leave TLS."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl, _local(req.full_url))
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def start(url: str, headers: dict[str, str], tls: bool) -> Any:
    """Return the answer to a request of an address.

    Args:
        tls: see :class:`RemoteFile`.
    """
    if tls:
        _check_address(url, local=True)
    opener = urllib.request.build_opener(*([_Redirects] if tls else []))
    return opener.open(urllib.request.Request(url, headers=headers), timeout=60)


def _get(source: RemoteFile, part: Path, known: bool) -> None:
    have = part.stat().st_size if part.exists() else 0
    version = _validator(part).read_text(encoding="utf-8").strip() if _validator(part).exists() else ""
    if not version and not known:
        have = 0  # there would be no way to tell whether the rest belongs to the same version
    headers = {"Range": f"bytes={have}-"} if have else {}
    headers |= {"If-Range": version} if have and version else {}
    try:
        answer = start(source.url, headers, source.tls)
    except urllib.error.HTTPError as e:
        size = (e.headers.get("Content-Range") or "").rpartition("/")[2]
        if e.code != 416 or not have:
            raise
        if size == str(have):
            return  # it was already complete
        part.unlink()
        return _get(source, part, known)
    with answer:
        if have and answer.status != 206:  # another version, or a server that always sends the whole file
            have = 0
        length = answer.headers.get("Content-Length")
        if length is not None and not length.isdecimal():
            raise ValueError(f"the server's Content-Length is {length!r}")
        if length is None and not known and answer.headers.get("Transfer-Encoding", "").lower() != "chunked":
            raise ValueError("the server does not state the file's length, so a truncated file would go unnoticed")
        total = int(length) + have if length is not None else None
        if source.size is not None and total not in (None, source.size):
            raise ValueError(f"{total} bytes, expected {source.size}")
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
        _validator(part).unlink(missing_ok=True)
        if version and not version.startswith("W/"):
            atomic_write(_validator(part), version)
        with (
            open(part, "ab" if have else "wb") as out,
            progress_bar(total=total, initial=have, desc=part.stem, unit="B", unit_scale=True) as bar,
        ):
            while block := answer.read(CHUNK):
                have += len(block)
                if source.size is not None and have > source.size:
                    raise ValueError(f"more than {source.size} bytes")
                out.write(block)
                bar.update(len(block))
    if total is not None and part.stat().st_size != total:
        raise OSError(f"broke off after {part.stat().st_size} of {total} bytes")
