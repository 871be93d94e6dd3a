"""Requests whose cost a server must bound before any work, on a real server: sockets, time, memory, signals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import anyio
import httpx
import pytest
from starlette.testclient import TestClient

from fairseq_lasformer.apps.server import connections
from fairseq_lasformer.apps.server.app import Server
from fairseq_lasformer.apps.server.connections import BoundedServer, listen
from fairseq_lasformer.apps.server.fields import ATTENTION, FILE, TRANSLATE
from fairseq_lasformer.apps.server.pages import Limits

JSON = {"content-type": "application/json"}


def page(served, keys=None, hosts=("*",), addresses=False, origins=(), **limits):
    app = Server([served], Limits(**limits), keys).app(hosts, addresses, origins)
    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    "path, content, status",
    [
        ("/translate", b"[" * 100_000, 400),
        ("/translate", b'{"q":' * 100_000, 400),
        ("/translate", b'{"q": "\\ud800"}', 400),
        ("/translate", b'{"q": "w1", "alternatives": 1e400}', 400),
        ("/translate", b'{"q": "w1", "alternatives": NaN}', 400),
        ("/translate", b"\xff\xfe", 400),
        ("/attention", b'{"source_lines": ["w1"], "target_lines": ["w1"], "line": 1e400}', 400),
        ("/attention", b'{"source_lines": ["w1"], "target_lines": ["w1"], "line": 7}', 400),
        ("/translate_file", b'{"file": ["a"]}', 400),
        ("/translate_file", b'{"file": 1.5}', 400),
        ("/attention", b'{"source_lines": ["w1"], "target_lines": ["w1"], "line": 0, "word": 9}', 400),
    ],
)
def test_wrong_input_is_the_clients_fault(served, path, content, status):
    answer = page(served).post(path, content=content, headers=JSON)
    assert answer.status_code == status and answer.json()["error"]


def test_lines_beyond_the_models_limit_are_not_looked_at(served):
    line = "w1 " * 50_000
    given = {"source_lines": ["w1", line], "target_lines": ["w1", line], "line": 1, "word": 0}
    begun = time.monotonic()
    answer = page(served).post("/attention", json=given)
    assert answer.status_code == 400 and "line 2 is longer than the model's limit" in answer.json()["error"]
    assert time.monotonic() - begun < 5
    assert page(served, characters=1000).post("/attention", json=given).status_code == 413
    many = ["w1 w2 w3 w4 w5 w6 w7 w8"] * 30  # what does not fit into the model together is left out
    given = {"source_lines": many, "target_lines": many, "line": 29, "word": 3}
    assert page(served).post("/attention", json=given).status_code == 200


def test_keys_are_checked_first_and_need_not_be_ascii(served):
    client = page(served, keys=["schlüssel", "key"])
    assert client.post("/translate", json={"q": "w1"}, headers={"Authorization": "Bearer no"}).status_code == 403
    # nothing of the body is read
    answer = client.post("/translate", content=b"{" * 10**6, headers=JSON | {"Authorization": "Bearer no"})
    assert answer.status_code == 403
    assert client.post("/translate", json={"q": "w1", "api_key": "schlüssel"}).status_code == 200
    given = {"Authorization": "Bearer schlüssel".encode()}
    assert client.post("/translate", json={"q": "w1"}, headers=given).status_code == 200
    assert client.post("/translate?api_key=key", json={"q": "w1"}).status_code == 200
    odd = b'{"q": "w1", "api_key": "\\udcff"}'
    assert client.post("/translate", content=odd, headers=JSON).status_code == 403


def test_other_sites_pages_are_refused_unless_allowed(served):
    foreign = {"Origin": "https://other.example"}
    assert page(served).post("/translate", json={"q": "w1"}, headers=foreign).status_code == 403
    own = {"Origin": "http://testserver"}
    assert page(served).post("/translate", json={"q": "w1"}, headers=own).status_code == 200
    client = page(served, origins=["https://other.example"])
    answer = client.post("/translate", json={"q": "w1"}, headers=foreign)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://other.example"
    ask = foreign | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    assert client.options("/translate", headers=ask).status_code == 200
    assert client.post("/translate", json={"q": "w1"}, headers={"Origin": "https://third.example"}).status_code == 403


@pytest.mark.parametrize("host, allowed", [("127.0.0.1:5000", True), ("[::1]", True), ("evil.example", False)])
def test_a_public_server_answers_under_addresses_but_not_under_any_name(served, host, allowed):
    answer = page(served, hosts=["localhost"], addresses=True).get("/health", headers={"Host": host})
    assert (answer.status_code == 200) == allowed


def test_texts_of_one_request_are_translated_together(served, monkeypatch):
    sizes = []
    step = served.engine._step
    monkeypatch.setattr(served.engine, "_step", lambda t, batch: (sizes.append(len(batch)), step(t, batch)))
    texts = [f"w{i} w{i + 1}" for i in range(24)]
    several = page(served).post("/translate", json={"q": texts, "source": "auto", "alternatives": 1}).json()
    assert len(several["translatedText"]) == len(several["alternatives"]) == 24 and max(sizes) > 3
    assert several["detectedLanguage"] == [{"language": "xx", "confidence": 0.0}] * 24
    alone = [page(served).post("/translate", json={"q": text}).json()["translatedText"] for text in texts[:3]]
    assert alone == several["translatedText"][:3]
    broken = page(served).post("/translate", json={"q": ["w1"] * 5, "glossary": "no tab"})
    assert broken.status_code == 400


def test_preparing_takes_a_turn_and_has_an_end(served, monkeypatch):
    held, prepare = threading.Event(), served.prepare
    monkeypatch.setattr(served, "prepare", lambda *a: (held.wait(20), prepare(*a))[1])
    client = page(served, per_client=1, seconds=0.5)
    answers = []
    other = threading.Thread(target=lambda: answers.append(client.post("/translate", json={"q": "w1"}).status_code))
    other.start()
    time.sleep(0.2)
    assert client.post("/translate", json={"q": "w1"}).status_code == 429
    other.join(10)
    assert answers == [503]
    held.set()


def test_pictures_that_unpack_to_more_than_the_limit_are_refused(served):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        xml = '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"/>'
        archive.writestr("word/document.xml", xml)
        with archive.open("word/media/a.png", "w", force_zip64=True) as picture:
            for _ in range(600):
                picture.write(bytes(1 << 20))
    answer = page(served).post("/translate_file", files={"file": ("a.docx", made.getvalue())})
    assert answer.status_code == 400 and "unpacked, it takes up more than" in answer.json()["error"]


def test_what_a_client_of_libretranslate_asks_for(served):
    client = page(served, keys=["key"], characters=77)
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] == 77 and settings["keyRequired"] and ".docx" in settings["supportedFilesFormat"]
    spec = client.get("/spec").json()
    assert spec["openapi"].startswith("3.") and set(spec["paths"]["/translate"]) == {"post"}
    paths = {route.path for route in Server([served], Limits()).app().routes}
    assert set(spec["paths"]) == paths - {"/", "/spec", "/detect"}  # the page, this description, what is not offered
    for path, fields in (("/translate", TRANSLATE), ("/translate_file", FILE), ("/attention", ATTENTION)):
        (content,) = {json.dumps(kind) for kind in spec["paths"][path]["post"]["requestBody"]["content"].values()}
        schema = json.loads(content)["schema"]
        assert {*schema["properties"]} == {*fields, "api_key"} and schema["required"]


@pytest.fixture
def running(served, monkeypatch):
    """A server on a socket of this process, with short times; its address."""
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 1)
    monkeypatch.setattr(connections, "most_connections", lambda: 30)
    listening = listen("127.0.0.1", 0)
    config = connections.configured(Server([served], Limits(file_bytes=10_000, body_seconds=1.0)).app(), False)
    server = BoundedServer(config)
    thread = threading.Thread(target=lambda: anyio.run(server.serve, [listening]), daemon=True)
    thread.start()
    yield listening.getsockname()
    server.should_exit = True
    thread.join(15)
    assert not thread.is_alive()


def ask(address, data: bytes, seconds: float = 5.0) -> bytes:
    """Return the answer until the server closes; raise if it does not."""
    with socket.create_connection(address, timeout=seconds) as connection:
        if data:
            connection.sendall(data)
        found = b""
        while piece := connection.recv(65536):
            found += piece
        return found


POST = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.command
def test_connections_that_say_nothing_are_closed(running):
    assert ask(running, b"") == b""
    assert ask(running, b"GET /health HTTP/1.1\r\nHost: loc") == b""
    assert b"200 OK" in ask(running, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"408" in ask(running, POST + b"Content-Length: 100\r\n\r\n{")[:20]


def test_many_idle_connections_leave_room(running):
    idle = [socket.create_connection(running) for _ in range(60)]
    time.sleep(1.0)
    assert httpx.get(f"http://127.0.0.1:{running[1]}/health", timeout=5).status_code == 200
    for one in idle:
        one.close()


def test_chunks_do_not_pass_the_limits(running):
    form = POST.replace(b"application/json", b"multipart/form-data; boundary=x").replace(
        b"translate", b"translate_file"
    )
    head = form + b"Content-Length: 50\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 411 " in ask(running, head + b"10\r\n" + b"x" * 16)[:20]
    endless = POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"400000\r\n" + b"x" * (3 << 20)
    with socket.create_connection(running, timeout=5) as connection:
        with contextlib.suppress(ConnectionError):  # the server may close while it is still being sent
            connection.sendall(endless)
        assert b" 413 " in connection.recv(100)


@pytest.mark.command
@pytest.mark.parametrize("busy", ["nothing", "half a body", "a stream that nobody reads"])
def test_a_signal_ends_the_server_within_ten_seconds(trained_folder, tmp_path, busy):
    program = Path(sys.executable).with_name("lasformer")
    log = open(tmp_path / "log", "w+")  # noqa: SIM115
    process = subprocess.Popen([program, "serve", trained_folder, "--port", "0"], stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while " serves " not in (tmp_path / "log").read_text() and time.monotonic() < end:
            time.sleep(0.1)
        port = int((tmp_path / "log").read_text().partition(" serves")[0].rpartition(":")[2])
        open_connection = socket.create_connection(("127.0.0.1", port))
        if busy == "half a body":
            open_connection.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        elif busy != "nothing":
            body = json.dumps({"q": "w1 w2 w3 w4.\n\n" * 3000, "stream": True}).encode()
            open_connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            time.sleep(2)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        assert time.monotonic() - begun < 10
    finally:
        process.kill()
        log.close()


def test_a_taken_port_is_said_before_models_are_loaded(trained_folder, capsys):
    from fairseq_lasformer.cli.main import main

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", str(trained_folder), "--port", str(taken.getsockname()[1])]) == 1
    said = capsys.readouterr()
    assert ": cannot listen" in said.err and "serves" not in said.out


@pytest.mark.parametrize(
    "options, message",
    [
        (["--port", "99999"], "--port 99999"),
        (["--port", "-1"], "--port -1"),
        (["--host", "no.such.host.invalid"], ": cannot listen"),
        (["--lanes", "0"], "--lanes 0"),
        (["--lanes", "-1"], "--lanes -1"),
        (["--beam", "0"], "--beam 0"),
        (["--max-tokens", "0"], "--max-tokens 0"),
        (["--max-characters", "-1"], "--max-characters -1"),
        (["--max-seconds", "nan"], "--max-seconds nan"),
        (["--per-client", "0"], "--per-client 0"),
        (["--cors", "example.org"], "--cors example.org"),
        (["--api-keys", os.__file__.replace("os.py", "__pycache__")], "cannot be read"),
        (["--api-keys", sys.executable], "not text in UTF-8"),
    ],
)
def test_options_that_would_let_nothing_through(trained_folder, capsys, options, message):
    from fairseq_lasformer.cli.main import main

    assert main(["serve", str(trained_folder), *options]) == 1
    error = capsys.readouterr().err.strip()
    assert message in error.splitlines()[-1] and len(error.splitlines()) == 1


def test_the_number_of_texts_is_bounded(served):
    assert page(served).post("/translate", json={"q": [""] * 1000}).json()["translatedText"] == [""] * 1000
    refused = page(served).post("/translate", json={"q": [""] * 1001})
    assert refused.status_code == 413 and "at most 1000 in a request" in refused.json()["error"]


@pytest.mark.parametrize("headers", [{"host": "["}, {"host": "[::1"}, {"host": "localhost", "origin": "http://["}])
def test_addresses_that_are_none_are_refused(served, headers):
    app = Server([served], Limits()).app(["localhost"])
    found = TestClient(app, raise_server_exceptions=False).post("/translate", json={"q": "w1"}, headers=headers)
    assert found.status_code == 400 and found.json()["error"] == "not a host"


def test_nobody_names_another_address_and_no_more_connect_than_files_allow(monkeypatch):
    config = connections.configured(None, False)
    assert not config.proxy_headers and config.backlog <= 128
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (64, 64))
    assert connections.configured(None, False).backlog + connections.most_connections() < 64
