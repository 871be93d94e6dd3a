"""Files are written whole or not at all, wherever they are."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import subprocess
import tarfile

import pytest
from helpers import run, write_corpus

from fairseq_lasformer.base import files
from fairseq_lasformer.base.errors import InputError


def test_only_regular_files_of_an_archive_are_unpacked_and_none_outside(tmp_path):
    out = tmp_path / "in" / "out"
    out.mkdir(parents=True)
    kinds = {"a/b": tarfile.REGTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "pipe": tarfile.FIFOTYPE}
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w") as archive:
        for name, kind in {**kinds, "link/x": tarfile.REGTYPE, "../c": tarfile.REGTYPE}.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, "../../" if name == "link" else "a/b", 0o4777
            member.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"text"[: member.size]))
    packed.seek(0)
    with tarfile.open(fileobj=packed) as archive:
        *inside, outside = archive
        for member in inside:
            files.unpack(archive, member, out)
        with pytest.raises(tarfile.ExtractError, match="'../c' leads out of it"):
            files.unpack(archive, outside, out)
        outside.name = str(tmp_path / "d")
        with pytest.raises(tarfile.ExtractError, match="leads out of it"):
            files.unpack(archive, outside, out)
    written = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if not path.is_dir()}
    assert sorted(written) == ["in/out/a/b", "in/out/link/x"] and written["in/out/a/b"].read_text() == "text"
    assert not written["in/out/a/b"].stat().st_mode & 0o4111


def test_a_device_is_written_to_and_a_link_is_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE)
    files.atomic_write(tmp_path / "pipe", "text")
    assert reader.communicate()[0] == b"text" and (tmp_path / "pipe").is_fifo()
    (tmp_path / "target").write_text("old")
    (tmp_path / "target").chmod(0o640)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    files.atomic_write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"
    assert (tmp_path / "target").stat().st_mode & 0o777 == 0o640
    (tmp_path / ".target.1.tmp").symlink_to(tmp_path / "elsewhere")
    files.atomic_write(tmp_path / "target", "newer")
    assert not (tmp_path / "elsewhere").exists()


def test_standard_output_can_be_named_as_a_file(tmp_path):
    (tmp_path / "ref").write_text("a b c d\n")
    done = run("lasformer", "score", tmp_path / "ref", tmp_path / "ref", "--json", "/dev/stdout")
    assert json.loads(done.stdout[done.stdout.index("{") :])["systems"]["ref"]["d_bleu"] == pytest.approx(100)


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "ref", "ref", "--json", "OUT"],
        ["info", "none.pt", "--json", "OUT"],
        ["report", "run", "--document", "text", "-o", "OUT"],
        ["average", "OUT", "none.pt"],
        ["score", "contrast", "none.pt", "set", "--json", "OUT"],
        ["prepare", "OUT", "-s", "xx", "-t", "yy", "--train", "raw"],
    ],
)
@pytest.mark.parametrize("out", ["folder", "file/below"])
def test_outputs_that_cannot_be_written_are_refused_before_the_work(tmp_path, monkeypatch, capsys, arguments, out):
    from fairseq_lasformer.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref").write_text("a b\n")
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    write_corpus(tmp_path, "raw", 3)
    if arguments[0] == "prepare" and out == "folder":
        (tmp_path / "folder" / "mine").touch()
    assert main([out if a == "OUT" else a for a in arguments]) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and out in error and "\n" not in error
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_system_without_locks_is_an_error(tmp_path, monkeypatch):
    """Two processes, possibly on two machines, would write the same files."""

    def flock(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    error = pytest.raises(InputError, match="has no locks .No locks available.*use a folder on a different one")
    with error, files.locked(tmp_path / "lock", "a translation"):
        pytest.fail("went on without a lock")
    assert not os.listdir(tmp_path) or (tmp_path / "lock").read_text() == ""


@pytest.mark.parametrize("links", [True, False], ids=["links", "no hard links"])
def test_the_first_writer_of_a_file_wins_and_others_are_compared(links, tmp_path, monkeypatch):
    if not links:  # as on some network drives

        def refused(*_):
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "folder" / "0"
    for text, same in (("one", True), ("one", True), ("two", False)):
        with files.first_wins(path, same) as file:
            file.write(text)
        assert path.read_text() == "one"
    with pytest.raises(InputError, match="0: the second result, by .*, differs"), files.first_wins(path) as file:
        file.write("two")
    with pytest.raises(ZeroDivisionError), files.first_wins(tmp_path / "folder" / "1") as file:
        file.write(str(1 / 0))
    assert [p.name for p in path.parent.iterdir()] == ["0"] and path.read_text() == "one"
