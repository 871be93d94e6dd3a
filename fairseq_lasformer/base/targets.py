"""One check of all that a call writes, before it writes anything: no two in one place, and none over an input."""

import os
from collections.abc import Iterable
from pathlib import Path

from fairseq_lasformer.base.errors import InputError

_HEAD = 4096
"""Number of bytes at the beginning of a file that tell its kind."""


def head(path: Path) -> str:
    """Return the beginning of a file, which tells its kind."""
    with open(path, "rb") as file:
        return file.read(_HEAD).decode("utf-8", "replace")


def is_page(path: Path) -> bool:
    """Return whether a file is a page of :func:`analysis.report.report`."""
    return '<meta name="generator" content="fairseq_lasformer">' in head(path)


def check_page(path: Path) -> None:
    """Refuse to replace a page that this package did not write."""
    if path.is_file() and not is_page(path):
        raise InputError(f"{path}: exists already, and is not a report of lasformer; move it, or choose another folder")


def check_targets(outputs: Iterable[tuple[Path, str]], inputs: Iterable[Path] = ()) -> None:
    """Refuse files that would be written over each other, or over what is read.

    Links are followed, and names that differ in capitals are one where the file system says so. Devices and pipes may
    be written by several, and folders may hold them.

    Args:
        outputs: each with what it is, such as ``the translation of a.txt``.
    """
    read: dict[object, Path] = {}
    for path in inputs:
        read |= dict.fromkeys(_places(path), path)
    written: dict[object, tuple[Path, str]] = {}
    for path, what in outputs:
        for place in _places(path):
            if place in read:
                how = "links to a file that is read" if path.is_symlink() else "is a file that is read"
                raise InputError(f"{path}: {how} ({read[place]}), and would be {what}; choose another name or folder")
            other, its = written.setdefault(place, (path, what))
            if (other, its) != (path, what):
                also = "" if other == path else f" ({other}, the same file)"
                raise InputError(f"{path}: would be {its}{also} and {what}; choose another name or folder")


def same_file(first: Path, second: Path) -> bool:
    """Return whether two paths are the same file, by whatever name; never for folders, which may hold both."""
    return not {*_places(first)}.isdisjoint(_places(second))


def _places(path: Path) -> list[object]:
    """Return what tells a file from others, whether it exists or not; nothing for folders and devices."""
    try:
        if os.path.exists(path):
            if not os.path.isfile(path):
                return []
            state = os.stat(path)
            return [(state.st_dev, state.st_ino)]
        real = os.path.realpath(path)
        if os.path.isdir(real):
            return []
    except (OSError, ValueError):
        return []
    return [real.casefold() if _folds_case(os.path.dirname(real)) else real]


def _folds_case(folder: str) -> bool:
    """Return whether names in a folder that differ in capitals are one file, by what the names of folders tell."""
    while folder != (above := os.path.dirname(folder)):
        name = os.path.basename(folder)
        if os.path.isdir(folder) and name.swapcase() != name:
            other = os.path.join(above, name.swapcase())
            return os.path.exists(other) and os.path.samefile(folder, other)
        folder = above
    return False
