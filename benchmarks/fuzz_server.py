"""Clients that leave, archives that unpack, explanations: what an honest client waits for meanwhile, and memory.

``python -m benchmarks.fuzz_server [MODEL] [--attack NAME]`` starts a server with the model to try, and prints a line
for each attack: the longest wait for one line, threads and memory at most. ``make fuzz`` runs all. Exit code 1 beyond
the bars.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WAIT, MEMORY, THREADS = 2.0, 1 << 30, 24
"""Bars, on two cores: seconds for one line, bytes, and threads more than before."""


class Seen(NamedTuple):
    """What happened during an attack: seconds of the slowest answer, their number, bytes and further threads."""

    wait: float
    answers: int
    memory: int
    threads: int


class Server:
    """A server in a process of its own."""

    def __init__(self, model: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        command = [str(Path(sys.executable).with_name("lasformer")), "serve", str(model), "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            time.sleep(0.1)
        raise RuntimeError("the server did not start")

    def status(self, name: str) -> int:
        """Return a number of /proc: ``Threads``, or ``VmRSS`` in KiB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))

    def begin(self, path: str, body: bytes, kind: str) -> socket.socket:
        """Send a request, and return before it is answered."""
        made = socket.create_connection(("127.0.0.1", self.port))
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nContent-Type: {kind}\r\n"
        made.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return made

    def upload(self, name: str, data: bytes, path: str = "/translate_file") -> socket.socket:
        """Begin the translation of a file."""
        head = f'--XX\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
        return self.begin(path, head + data + b"\r\n--XX--\r\n", "multipart/form-data; boundary=XX")

    def line(self) -> float:
        """Return the seconds that an honest client waits for one line."""
        begun = time.monotonic()
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = json.dumps({"q": "Click the button.", "source": "en", "target": "de"})
        client.request("POST", "/translate", body, {"Content-Type": "application/json"})
        answer = client.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"an honest client was refused: {answer.status}")
        return time.monotonic() - begun


def _left(server: Server, files: int, path: str) -> None:
    """Send files of 3 MB, whose clients leave at once."""
    text = b"<b>a</b> " * 333_000
    for _ in range(files):
        with server.upload("a.md", text, path):
            time.sleep(0.9)


def leavers(server: Server) -> None:
    """30 files of 3 MB, whose clients leave at once."""
    _left(server, 30, "/translate_file")


def unpacking(server: Server) -> None:
    """8 Word files of 204 KB with a comment of 200 MB, whose clients leave."""
    made = io.BytesIO()
    xml = (
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><!--{}--><w:body><w:p><w:r>'
    )
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr(
            "word/document.xml", f"{xml.format('x' * 200_000_000)}<w:t>A.</w:t></w:r></w:p></w:body></w:document>"
        )
    for _ in range(8):
        with server.upload("a.docx", made.getvalue()):
            time.sleep(0.9)


def explanations(server: Server) -> None:
    """Two texts of 120 KB with all translations given, to be explained; and two as long as is allowed."""
    open_ones = []
    for lines in (1200, 1200, 300, 300):
        its = range(1, lines + 1)
        text = "\n".join(f"Click the button {i} in the dialog that appears, and choose a colour for it." for i in its)
        given = {str(i): f"Klicken Sie auf die Schaltfläche {i} und wählen Sie eine Farbe dafür." for i in its}
        body = json.dumps({"q": text, "source": "en", "target": "de", "given": given, "because": True}).encode()
        open_ones.append(server.begin("/translate", body, "application/json"))
    time.sleep(25)
    for one in open_ones:
        one.close()


def jobs(server: Server) -> None:
    """15 files of 3 MB as jobs: one address may have 16 translations, and the honest client has it, too."""
    _left(server, 15, "/jobs")
    time.sleep(30)


ATTACKS: dict[str, Callable[[Server], None]] = {
    "leavers": leavers,
    "unpacking": unpacking,
    "explanations": explanations,
    "jobs": jobs,
}


def attacked(server: Server, attack: Callable[[Server], None]) -> Seen:
    """Attack a server, while an honest client asks for one line after the other."""
    server.line()
    threads, waits, memory, most = server.status("Threads"), [], 0, 0
    attacking = threading.Thread(target=attack, args=(server,))
    attacking.start()
    after = time.monotonic() + 3600
    while time.monotonic() < after:
        waits.append(server.line())
        memory, most = max(memory, server.status("VmRSS") << 10), max(most, server.status("Threads"))
        if not attacking.is_alive():
            after = min(after, time.monotonic() + 5)
        time.sleep(0.2)
    return Seen(max(waits), len(waits), memory, most - threads)


def measured(model: Path, names: list[str]) -> Iterator[tuple[str, Seen]]:
    for name in names:
        server = Server(model)
        try:
            yield name, attacked(server, ATTACKS[name])
        finally:
            server.process.kill()
            server.process.wait()


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, default=ROOT / "data/models/help_en-de")
    parser.add_argument("--attack", choices=ATTACKS, action="append")
    args = parser.parse_args(words)
    beyond = False
    print("attack         slowest line   answers   memory    further threads")
    for name, seen in measured(args.model, args.attack or [*ATTACKS]):
        bad = seen.wait > WAIT or seen.memory > MEMORY or seen.threads > THREADS
        beyond |= bad
        print(
            f"{name:14} {seen.wait:8.2f} s {seen.answers:11} {seen.memory >> 20:6} MiB {seen.threads:10}"
            + ("   beyond the bars" if bad else ""),
            flush=True,
        )
    sys.exit(beyond)


if __name__ == "__main__":
    main()
