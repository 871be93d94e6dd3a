"""LibreOffice's help from Debian packages: made here, with a few pages, as dpkg-deb would make them."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from fairseq_lasformer.apps.pairing import libreoffice
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.corpora.recipes import build
from fairseq_lasformer.text.documents import read_corpus


def package(path: Path, folder: str, pages: dict[str, str]) -> Path:
    """Write a Debian package that contains pages of the help."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for name, text in pages.items():
            member = tarfile.TarInfo(f"./usr/share/libreoffice/help/{folder}/text/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": data.getvalue()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"!<arch>\n")
        for name, content in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            file.write(content + b"\n" * (len(content) % 2))
    return path


def pages(words: str, n: int = 12) -> dict[str, str]:
    return {f"w/{k}.html": f"<h1 id=h>{words} {k}</h1><p id=p>{words}, {k} {words}.</p>" for k in range(n)}


def test_the_help_is_aligned_page_by_page(tmp_path):
    package(tmp_path / "files/libreoffice-help-en-us_1_all.deb", "en-US", pages("Open the file"))
    package(tmp_path / "files/libreoffice-help-de_1_all.deb", "de", pages("Datei bitte öffnen"))
    out = tmp_path / "raw"
    lines = build(libreoffice.NAME, tmp_path / "files", out, languages=("en", "de"))
    assert "12 files, 24 pairs of blocks, 0 of them equal" in lines
    corpus = read_corpus(out / "train.en", out / "train.de")
    assert corpus.documents[0].source[1].startswith("Open the file, ")
    assert corpus.documents[0].target[1].startswith("Datei bitte öffnen, ")
    assert build(libreoffice.NAME, tmp_path / "files", out) == [f"{out}: libreoffice-help is already there"]


def test_what_is_missing_or_damaged_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(libreoffice.shutil, "which", lambda name: None)
    with pytest.raises(InputError, match=r"contains no libreoffice-help-en-us_\*.deb, and there is no apt-get"):
        build(libreoffice.NAME, tmp_path, tmp_path / "raw")
    with pytest.raises(InputError, match="--languages ../x: not a language"):
        build(libreoffice.NAME, tmp_path, tmp_path / "raw", languages=("../x", "de"))
    english = package(tmp_path / "libreoffice-help-en-us_1_all.deb", "en-US", pages("Open"))
    german = package(tmp_path / "libreoffice-help-de_1_all.deb", "de", {"../../../../../../x.html": "<p>A.</p>"})
    with pytest.raises(InputError, match="damaged|contains no page"):
        build(libreoffice.NAME, tmp_path, tmp_path / "raw")
    assert not (tmp_path / "x.html").exists() and not (tmp_path.parent / "x.html").exists()
    german.write_bytes(german.read_bytes()[:-200])
    with pytest.raises(InputError, match=f"{german}: damaged"):
        build(libreoffice.NAME, tmp_path, tmp_path / "raw")
    english.write_bytes(b"<html>log in</html>")
    with pytest.raises(InputError, match="not a Debian package"):
        build(libreoffice.NAME, tmp_path, tmp_path / "raw")
    assert not list((tmp_path / "raw").glob("train.*"))
    with pytest.raises(InputError, match="--languages: ted is en-de"):
        build("ted", tmp_path, tmp_path / "raw", languages=("en", "fr"))


@pytest.mark.skipif(not (shutil.which("zstd") and shutil.which("dpkg-deb")), reason="needs zstd and dpkg-deb")
def test_a_package_is_unpacked_only_as_far_as_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(libreoffice, "LARGEST", 1 << 20)
    plain, packed = tmp_path / "data.tar", tmp_path / "data.tar.zst"
    with tarfile.open(plain, mode="w") as archive:
        for name, size in (("./usr/share/x", 0), ("./usr/share/zeros", 1 << 30)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, _Zeros())
    subprocess.run(["zstd", "-q", str(plain), "-o", str(packed)], check=True)
    plain.unlink()
    made = tmp_path / "files/libreoffice-help-de_1_all.deb"
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.zst": packed.read_bytes()}
    made.parent.mkdir()
    with open(made, "wb") as file:
        file.write(b"!<arch>\n")
        for name, content in parts.items():
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            file.write(content + b"\n" * (len(content) % 2))
    assert made.stat().st_size < 1 << 18
    with libreoffice._content(made) as data:  # a gigabyte comes through a pipe
        assert not isinstance(data, io.BytesIO) and data.read(100).startswith(b"./usr/share/x")
    with pytest.raises(InputError, match="would unpack to more than 1,048,576 bytes"):
        libreoffice._pages(made, tmp_path / "out")


class _Zeros(io.RawIOBase):
    def read(self, size=-1):
        return bytes(size)
