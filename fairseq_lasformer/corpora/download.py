"""Files from the network: resumed where they were broken off, with a progress bar, checked by their hash."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from fairseq_lasformer.documents import InputError, atomic_write

CHUNK = 1 << 20


class Source(NamedTuple):
    """One file of a distribution.

    Attributes:
        name: under which it is kept. url: where it comes from. checksum: its published SHA-256 or MD5; empty where none
            is published, so that it is only taken with ``trust``, which keeps the SHA-256 that it had
            (``NAME.sha256``) for every later run.
    """

    name: str
    url: str
    checksum: str = ""


def file_hash(path: Path, kind: str = "sha256") -> str:
    """A file's checksum, in hexadecimal digits."""
    digest = hashlib.new(kind)
    with open(path, "rb") as f:
        while block := f.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def fetch(source: Source, folder: Path, trust: bool = False) -> Path:
    """The file in ``folder``: the one that is there, or downloaded.

    Args:
        trust: take a file whose hash is not known.

    Raises:
        InputError: not to be had, or its hash is another than the known one (the file is then left as
            ``NAME.part``).
    """
    path, kept = folder / source.name, folder / f"{source.name}.sha256"
    expected = source.checksum or (kept.read_text().split()[0] if kept.exists() else "")
    if path.exists():
        if not expected and not trust:
            return path  # put there by hand
        return _checked(path, path, expected, kept)
    if not expected and not trust:
        raise InputError(
            f"{path}: not there, and no checksum of {source.url} is published; put the file there, or add "
            "--trust-first-download"
        )
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{source.name}.part"
    _download(source.url, part)
    return _checked(part, path, expected, kept)


def _checked(have: Path, path: Path, expected: str, kept: Path) -> Path:
    kind = "md5" if len(expected) == 32 else "sha256"
    found = file_hash(have, kind)
    if expected and found != expected:
        raise InputError(f"{have}: its {kind} is {found}, expected {expected}; remove it and try again")
    if not expected:
        atomic_write(kept, f"{found}  {path.name}\n")
        print(f"{path}: SHA-256 {found}, kept for later runs")
    if have != path:
        os.replace(have, path)
    return path


def _download(url: str, part: Path) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            if have and answer.status != 206:  # the server sends the whole file again
                have = 0
            total = int(answer.headers.get("Content-Length") or 0) + have
            with (
                open(part, "ab" if have else "wb") as out,
                tqdm(total=total or None, initial=have, desc=part.stem, unit="B", unit_scale=True) as bar,
            ):
                while block := answer.read(CHUNK):
                    out.write(block)
                    bar.update(len(block))
            if total and part.stat().st_size != total:
                raise OSError(f"broke off after {part.stat().st_size} of {total} bytes")
    except urllib.error.HTTPError as e:
        if e.code == 416 and have:
            return  # it was whole already
        raise InputError(f"{url}: {e}; put the file at {part.with_suffix('')} yourself") from e
    except (urllib.error.URLError, OSError) as e:
        raise InputError(f"{url}: {e}; try again (it goes on), or put the file at {part.with_suffix('')}") from e
