"""Atomic file writes, folder removal and locks on folders."""

import errno
import glob
import hashlib
import os
import shutil
import socket
import stat
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fairseq_lasformer.base.errors import InputError

CHUNK = 1 << 20
"""Number of bytes of a file that are read at a time."""

_LONGEST = 140  # bytes of a name to which others are added
_STALE = 3600.0  # seconds after which the leftovers of a killed process are removed


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def remove_stale(folder: Path, pattern: str) -> None:
    """Remove leftovers of killed processes that are at least an hour old."""
    for path in folder.glob(pattern):
        try:
            if time.time() - path.lstat().st_mtime > _STALE:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError:
            continue  # owned by another user, or already gone


def file_hash(path: Path, kind: str = "sha256") -> str:
    """Return the checksum of a file, in hexadecimal."""
    digest = hashlib.new(kind)
    with open(path, "rb") as f:
        while block := f.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()


def digest(path: Path | None) -> str:
    """Return the SHA-256 of a file; empty for none.

    Raises:
        InputError: it cannot be read.
    """
    if path is None:
        return ""
    try:
        return file_hash(path)
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e


def check_regular(path: Path, hint: str) -> None:
    """Refuse anything but a file: a device, a pipe or what the kernel makes up may never end.

    Args:
        hint: what to do, added to the message.

    Raises:
        InputError: the file does not exist, or is something else.
    """
    # unlike pathlib's function, os.path.isfile also answers for names that are too long
    if not os.path.isfile(path) or os.path.realpath(path).startswith(("/proc/", "/sys/", "/dev/")):
        raise InputError(f"{str(path)[:200]}: no such file{hint}")


def beside(path: Path, ending: str) -> Path:
    """Return the path of a file in the same folder, with an ending appended to the name."""
    return path.with_name(path.name + ending)


@contextmanager
def replacing(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file for writing that replaces ``path`` once it is complete; a failed write leaves nothing behind.

    Links are followed, the permissions of a replaced file are kept, and anything that is not a regular file (a device,
    a pipe) is written to directly.

    Args:
        mode: ``w`` (UTF-8, line endings untranslated) or ``wb``.

    Raises:
        InputError: the file cannot be written; the message includes the system's reason.
    """
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    temporary: Path | None = None
    try:
        check_writable(path)
        if _is_device(Path(path)):
            with open(path, mode, **text) as f:
                yield f
            return
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        prefix = _unfinished(target, ".tmp")
        temporary = target.with_name(f"{prefix}{os.getpid()}.tmp")
        temporary.unlink(missing_ok=True)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with open(handle, mode, **text) as f:
            if target.exists():
                os.fchmod(handle, stat.S_IMODE(target.stat().st_mode))
            yield f
            f.flush()
            os.fsync(handle)
        os.replace(temporary, target)
        temporary = None
    except OSError as e:
        if isinstance(e, BrokenPipeError):
            raise
        raise InputError(f"{path}: cannot be written ({_reason(e)})") from e
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def atomic_write(path: str | Path, text: str) -> None:
    """Write a file completely or not at all; see :func:`replacing`."""
    with replacing(path) as f:
        f.write(text)


def atomic_copy(source: str | Path, target: str | Path) -> None:
    """Copy a file completely or not at all.

    Raises:
        InputError: the source cannot be read, or the target cannot be written.
    """
    try:
        with open(source, "rb") as have, replacing(target, "wb") as f:
            shutil.copyfileobj(have, f, 1 << 20)
    except OSError as e:
        raise InputError(f"{source}: cannot be read ({_reason(e)})") from e


def check_writable(path: str | Path) -> None:
    """Reject a file that cannot be written, before the work on its contents begins.

    Raises:
        InputError: the path is a folder, or its parent folder is missing and cannot be created, or is not writable.
    """
    if Path(path).is_dir():
        raise InputError(f"{path}: is a folder; name a file")
    place = Path(path)
    if not _is_device(place):
        place = Path(os.path.realpath(path)).parent
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise InputError(f"{path}: cannot be written ({place} is not a folder)")
    if not os.access(place, os.W_OK):
        raise InputError(f"{path}: cannot be written ({os.strerror(errno.EACCES)})")


@contextmanager
def first_wins(path: Path, same: bool = True, binary: bool = False) -> Iterator[IO[Any]]:
    """Open a file for writing that becomes ``path`` once it is complete, unless another writer was there first.

    Writers may be on several machines that share the folder. A second file is compared with the first, and discarded.

    Args:
        same: whether the second file must be identical.
        binary: whether bytes are written instead of text.

    Raises:
        InputError: the file cannot be written, or differs from the first.
    """
    owner = f"{socket.gethostname()[:50]}.{os.getpid()}.{time.time_ns()}"
    temporary = path.with_name(f".{short_name(path.name)}.{owner}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _unfinished(path, ".tmp")
        with open(temporary, "xb") if binary else open(temporary, "x", encoding="utf-8", newline="\n") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        try:
            os.link(temporary, path)  # unlike a rename, this fails where the file exists
        except OSError as e:
            if not isinstance(e, FileExistsError) and not path.exists():  # a file system without hard links
                os.replace(temporary, path)
            elif same and temporary.read_bytes() != path.read_bytes():
                raise InputError(
                    f"{path}: the second result, by {socket.gethostname()}, differs: not all workers have the "
                    "same model, data and version"
                ) from None
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({_reason(e)})") from e
    finally:
        temporary.unlink(missing_ok=True)


def short_name(name: str) -> str:
    """Return a name that leaves room for more: file systems allow 255 bytes."""
    if len(os.fsencode(name)) <= _LONGEST:
        return name
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def _unfinished(path: Path, ending: str) -> str:
    """Remove what killed processes left of a file or folder; return how names of unfinished ones beside it begin."""
    prefix = f".{short_name(path.name)}."
    remove_stale(path.parent, f"{glob.escape(prefix)}*{ending}")
    return prefix


def _is_device(path: Path) -> bool:
    """Return whether the path exists but is not a regular file: a terminal, a pipe, ``/dev/null``."""
    return path.exists() and not path.is_file()


def remove_folder(folder: Path) -> None:
    """Remove a folder. It is renamed first, so a half-removed folder is never mistaken for a complete one."""
    prefix = _unfinished(folder, ".removed")
    if not folder.exists():
        return
    away = tempfile.mkdtemp(prefix=prefix, suffix=".removed", dir=folder.parent)
    os.replace(folder, away)
    shutil.rmtree(away)


def check_new_folder(folder: Path) -> None:
    """Reject a folder that :func:`new_folder` could not write, before the work on its contents begins.

    Raises:
        InputError: it is not empty or not a folder, or cannot be created.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is not empty; choose another folder")
    check_writable(folder / "file")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to be filled, which becomes ``folder`` once it is complete; a failure leaves nothing behind.

    What a killed process left is removed after an hour.

    Args:
        folder: new or empty, see :func:`check_new_folder`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = _unfinished(folder, ".new")
    with tempfile.TemporaryDirectory(prefix=prefix, suffix=".new", dir=folder.parent) as unfinished:
        place = Path(unfinished) / "folder"
        place.mkdir()
        yield place
        try:
            folder.mkdir(exist_ok=True)
            place.replace(folder)
        except OSError as e:  # not empty any more: another process was faster
            raise InputError(f"{folder}: cannot be written ({_reason(e)}); choose another folder") from e


@contextmanager
def locked(file: Path, what: str, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock ``file``, which is released when the process ends, however it ends.

    Args:
        what: what the lock protects, for the error message.
        patience: seconds to wait for another holder.

    Raises:
        InputError: another process holds the lock, the file system has no locks, or the file cannot be written.
    """
    handle = hold(file, what, patience)
    try:
        yield
    finally:
        os.close(handle)


def hold(file: Path, what: str, patience: float = 0.0) -> int:
    """Acquire the lock of :func:`locked` and return its file descriptor; closing it releases the lock."""
    import fcntl

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as e:
        raise InputError(f"{file}: cannot be written ({_reason(e)})") from e
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as e:
            if e.errno not in (errno.EAGAIN, errno.EACCES):
                os.close(handle)
                raise InputError(
                    f"{file}: this file system has no locks ({_reason(e)}), so two processes could write the same "
                    "files; use a folder on a different one"
                ) from e
            if time.monotonic() > end:
                holder = os.read(handle, 32).decode(errors="replace").strip()
                os.close(handle)
                raise InputError(
                    f"{file.parent}: {what} is already running here (process {holder or 'unknown'}); wait for it, or "
                    "stop it first"
                ) from e
            time.sleep(0.2)
    with suppress(OSError):  # who holds it is only told to others; a full disk does not matter
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
    return handle


def unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write a regular file of an archive into a folder; links and devices are left out (Python 3.11.2 has no filters).

    Raises:
        ExtractError: its name leads out of the folder.
    """
    place = folder / member.name
    if not place.resolve().is_relative_to(folder.resolve()):
        raise tarfile.ExtractError(f"{member.name!r} leads out of it")
    if (content := archive.extractfile(member) if member.isfile() else None) is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        with content, open(place, "wb") as file:
            shutil.copyfileobj(content, file)


def shared(name: str) -> Path:
    """Return a folder such as ``configs``: the clone's, or the one installed with the package."""
    clone = Path(__file__).resolve().parents[2] / name
    return clone if clone.is_dir() else Path(sysconfig.get_path("data")) / "share/fairseq_lasformer" / name
