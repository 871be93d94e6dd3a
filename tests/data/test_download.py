"""Downloads: resumed, checked, and never trusted without a checksum."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fairseq_lasformer.base.download import RemoteFile, fetch
from fairseq_lasformer.base.errors import InputError

DATA = bytes(range(256)) * 9000


class Server(BaseHTTPRequestHandler):
    """Server of DATA, with ranges; every request is recorded."""

    asked: list[str | None] = []

    def do_GET(self):
        wanted = self.headers.get("Range")
        Server.asked.append(wanted)
        if self.path == "/none":
            self.send_error(404)
            return
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(DATA) - begin))
        self.end_headers()
        self.wfile.write(DATA[begin:] if self.path != "/short" else DATA[begin : begin + 5000])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Server.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_downloads_go_on_where_they_broke_off_and_are_checked(server, tmp_path):
    source = RemoteFile("file.bin", f"{server}/file", hashlib.sha256(DATA).hexdigest())
    (tmp_path / "file.bin.part").write_bytes(DATA[:70_000])
    assert fetch(source, tmp_path).read_bytes() == DATA and Server.asked == ["bytes=70000-"]
    assert fetch(source, tmp_path) == tmp_path / "file.bin" and len(Server.asked) == 1  # it is already there
    (tmp_path / "file.bin").write_bytes(DATA[:-1])
    with pytest.raises(InputError, match="its sha256 is .* expected"):
        fetch(source, tmp_path)
    with pytest.raises(InputError, match="404"):
        fetch(RemoteFile("x", f"{server}/none", "0" * 64), tmp_path)


def test_a_download_that_breaks_off_is_not_taken(server, tmp_path):
    source = RemoteFile("file.bin", f"{server}/short")
    with pytest.raises(InputError, match="broke off after 5000 of"):
        fetch(source, tmp_path, trust=True)
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin.part"]
    fetch(source._replace(url=f"{server}/file"), tmp_path, trust=True)
    assert (tmp_path / "file.bin").read_bytes() == DATA


def test_a_file_without_a_published_checksum_needs_trust_once(server, tmp_path, capsys):
    source = RemoteFile("file.bin", f"{server}/file")
    with pytest.raises(InputError, match="--trust-first-download"):
        fetch(source, tmp_path)
    assert Server.asked == []
    fetch(source, tmp_path, trust=True)
    assert hashlib.sha256(DATA).hexdigest() in capsys.readouterr().out
    (tmp_path / "file.bin").write_bytes(b"other")
    with pytest.raises(InputError, match="expected"):
        fetch(source, tmp_path)
    (tmp_path / "own.bin").write_bytes(b"put there by hand")
    assert fetch(RemoteFile("own.bin", f"{server}/file"), tmp_path).read_bytes() == b"put there by hand"


class Hostile(BaseHTTPRequestHandler):
    """Server of what ``kind`` says, and of version ``version`` of DATA where a request continues one."""

    kind, version = "", '"2"'

    def do_GET(self):
        kind, wanted = Hostile.kind, self.headers.get("Range")
        if kind == "nonsense":
            self.wfile.write(b"gibberish\r\n\r\n")
            return
        begin = 0
        if kind == "versions":
            begin = int(wanted[6:-1]) if wanted and self.headers.get("If-Range") == Hostile.version else 0
        if kind == "past the end" and wanted:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(DATA)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = {"page": b"<!DOCTYPE html><html>log in</html>", "empty": b""}.get(kind, DATA[begin:])
        self.send_response(206 if begin else 200)
        if kind == "not a number":
            self.send_header("Content-Length", "abc")
        elif kind == "chunks":
            self.send_header("Transfer-Encoding", "chunked")
        elif kind != "no length":
            self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", Hostile.version)
        self.end_headers()
        if kind == "chunks":
            self.wfile.write(b"ffff\r\n" + body[:1000])  # and breaks off
        else:
            self.wfile.write(body[:5000] if kind in ("no length", "breaks off") else body)

    def log_message(self, *_):
        pass


@pytest.fixture
def hostile():
    Hostile.kind, Hostile.version = "", '"2"'
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


@pytest.mark.parametrize(
    "kind, message",
    [
        ("page", "a web page, not f.zip"),
        ("empty", "empty, not f.zip"),
        ("no length", "does not state the file's length"),
        ("chunks", "IncompleteRead|try again"),
        ("not a number", "Content-Length is 'abc'"),
        ("breaks off", "broke off after 5000"),
        ("nonsense", "gibberish|try again"),
    ],
)
def test_nothing_wrong_is_kept_as_the_truth(hostile, tmp_path, kind, message):
    Hostile.kind = kind
    with pytest.raises(InputError, match=message) as caught:
        fetch(RemoteFile("f.zip", f"{hostile}/f"), tmp_path, trust=True)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "f.zip").exists() and not (tmp_path / "f.zip.sha256").exists()


def test_half_of_an_older_version_is_not_continued_with_the_new_one(hostile, tmp_path):
    source = RemoteFile("f.bin", f"{hostile}/f")
    Hostile.kind, Hostile.version = "breaks off", '"1"'
    with pytest.raises(InputError, match="broke off"):
        fetch(source, tmp_path, trust=True)
    (tmp_path / "f.bin.part").write_bytes(b"x" * 5000)  # its content in version 1
    Hostile.kind, Hostile.version = "versions", '"2"'
    assert fetch(source, tmp_path, trust=True).read_bytes() == DATA
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.bin", "f.bin.sha256"]


def test_a_part_longer_than_the_file_is_fetched_anew(hostile, tmp_path):
    Hostile.kind = "past the end"
    (tmp_path / "f.bin.part").write_bytes(DATA + b"more")
    assert fetch(RemoteFile("f.bin", f"{hostile}/f", hashlib.sha256(DATA).hexdigest()), tmp_path).read_bytes() == DATA
    (tmp_path / "g.bin.part").write_bytes(DATA)
    assert fetch(RemoteFile("g.bin", f"{hostile}/f", hashlib.sha256(DATA).hexdigest()), tmp_path).read_bytes() == DATA


def test_a_folder_or_an_empty_hash_in_a_files_place_is_named(hostile, tmp_path):
    (tmp_path / "f.bin").mkdir()
    with pytest.raises(InputError, match="f.bin: is a folder; expected the file"):
        fetch(RemoteFile("f.bin", f"{hostile}/f"), tmp_path, trust=True)
    (tmp_path / "g.bin.sha256").touch()
    with pytest.raises(InputError, match="g.bin.sha256: contains no SHA-256"):
        fetch(RemoteFile("g.bin", f"{hostile}/f"), tmp_path, trust=True)
