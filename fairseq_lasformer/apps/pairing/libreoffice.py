"""LibreOffice's help (MPL-2.0) in two of its languages, from Debian's packages, aligned page by page."""

import io
import lzma
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fairseq_lasformer.apps.pairing.align import align
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import unpack
from fairseq_lasformer.base.resume import Progress, key_of

NAME = "libreoffice-help"

LARGEST = 1 << 30
"""Maximum unpacked size of a package in bytes; they have some 50 million."""

PAGES = "usr/share/libreoffice/help"

_REGION = {"en": "en-us", "pt": "pt", "zh": "zh-cn"}
"""Regions of languages whose packages name one."""


def build(files: Path, out: Path, languages: tuple[str, str]) -> list[str]:
    """Write a corpus of the help's pages; see :func:`align`. Leave a finished one unchanged.

    Args:
        files: folder with the packages, ``libreoffice-help-de_*.deb``; those that are missing are downloaded by
            apt-get, which checks their signature.
        languages: codes such as ``en``, ``de``, ``pt-br``.

    Returns:
        the counts, a line each.
    """
    progress = Progress(out, key_of(NAME, languages))
    if progress.matches and progress.done("build") and (out / f"train.{languages[1]}").is_file():
        return [f"{out}: {NAME} is already there"]
    packages = [_package(language, files) for language in languages]
    with tempfile.TemporaryDirectory() as folder:
        sides = [_pages(package, Path(folder) / str(i)) for i, package in enumerate(packages)]
        summary = align((sides[0], sides[1]), languages, out)
    progress.begin()
    progress.finish("build")
    return [*(f"read {package.name}" for package in packages), *summary.splitlines()]


def _package(language: str, files: Path) -> Path:
    """Return the package of a language, which is downloaded if it is missing."""
    code = language.lower().replace("_", "-")
    if not re.fullmatch(r"[a-z]{2,3}(-[a-z]{2,8})?", code):
        raise InputError(f"--languages {language}: not a language; expected two codes such as en,de")
    name = f"{NAME}-{_REGION.get(code, code)}"
    if not list(files.glob(f"{name}_*.deb")) and shutil.which("apt-get"):
        files.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["apt-get", "download", name], cwd=files, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise InputError(
                f"apt-get download {name}: {said}; put {name}_*.deb of https://packages.debian.org/{name} into {files}"
            )
    packages = sorted(files.glob(f"{name}_*.deb"), key=lambda path: path.stat().st_mtime)
    if not packages:
        raise InputError(
            f"{files}: contains no {name}_*.deb, and there is no apt-get; put the package there "
            f"(https://packages.debian.org/{name})"
        )
    return packages[-1]


def _pages(package: Path, folder: Path) -> Path:
    """Unpack the pages of a package and return the folder of its language."""
    size = 0
    try:
        with _content(package) as data, tarfile.open(fileobj=data, mode="r|*") as archive:
            for member in archive:
                size += member.size
                if size > LARGEST:
                    raise InputError(f"{package}: would unpack to more than {LARGEST:,} bytes; not unpacked")
                if member.isfile() and member.name.removeprefix("./").startswith(PAGES):
                    unpack(archive, member, folder)
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as e:
        raise InputError(f"{package}: damaged ({e}); remove it and try again") from e
    texts = [text for text in sorted((folder / PAGES).glob("*/text")) if any(text.iterdir())]
    if not texts:
        raise InputError(f"{package}: contains no page of the help ({PAGES}/LANGUAGE/text)")
    return texts[0]


@contextmanager
def _content(package: Path) -> Iterator[IO[bytes]]:
    """Open the archive of a package's files; by dpkg-deb, if it is compressed in a way that Python lacks."""
    with open(package, "rb") as file:
        if file.read(8) != b"!<arch>\n":
            raise InputError(f"{package}: not a Debian package")
        while header := file.read(60):
            name, size = header[:16].decode("ascii", "replace").strip().rstrip("/"), header[48:58].strip()
            if len(header) < 60 or not size.isdigit():
                break
            if name.startswith("data.tar"):
                if name.endswith(".zst"):
                    with _unpacked_by_dpkg(package) as unpacked:
                        yield unpacked
                    return
                yield io.BytesIO(file.read(int(size)))
                return
            file.seek(int(size) + int(size) % 2, 1)
    raise InputError(f"{package}: damaged (it has no data); remove it and try again")


@contextmanager
def _unpacked_by_dpkg(package: Path) -> Iterator[IO[bytes]]:
    """Open the archive of a package's files; it is unpacked as it is read, and no further."""
    if shutil.which("dpkg-deb") is None:
        raise InputError(f"{package}: is compressed with zstd, which needs dpkg-deb")
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()
