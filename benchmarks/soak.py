"""A server under attack while honest clients work, for some minutes: ``python -m benchmarks.soak URL``.

20 honest clients translate texts, one after another, each compared with its first answer. Meanwhile one attacker of
each kind repeats what a hard review tried: idle and half-sent connections, bodies that end too late, endless chunks,
nested JSON, odd numbers, huge lines for /attention, a zip bomb, a subtitle of digits, wrong keys, clients that leave.
Prints, and writes with ``--out``: requests of the honest clients, lost ones, changed ones, the slowest; the answers to
each attack; the server's memory at the start and its maximum (``--pid``). Exits with 1 if a request was lost or
changed, if anything was answered with 500, or if memory exceeded 1.5 times that at the start.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import io
import json
import re
import sys
import time
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

HONEST = 20
Answers = collections.Counter[str]


async def honest(url: str, number: int, texts: list[str], end: float, tally: dict[str, Any]) -> None:
    text = texts[number % len(texts)]
    first = None
    async with httpx.AsyncClient(timeout=120) as client:
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                answer = await client.post(f"{url}/translate", json={"q": text})
                tally["requests"] += 1
                if answer.status_code == 429:  # a client that asks again
                    await asyncio.sleep(1)
                    continue
                made = answer.json().get("translatedText")
                first = made if first is None else first
                tally["lost"] += answer.status_code != 200
                tally["changed"] += made != first
            except (httpx.HTTPError, ValueError):
                tally["requests"] += 1
                tally["lost"] += 1
            tally["slowest"] = max(tally["slowest"], time.monotonic() - begun)


async def _raw(url: str, data: bytes, wait: float) -> str:
    """Send bytes; return what a connection answers within some seconds."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(data)
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            head = await asyncio.wait_for(reader.readline(), wait)
            return head.decode("latin-1").split(" ")[1] if head else "closed"
        return "open"
    finally:
        writer.close()


def _head(path: str, more: str, host: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{more}\r\n".encode()


def _bomb(size: int) -> bytes:
    made = io.BytesIO()
    xml = '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"></w:document>'
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", xml)
        with archive.open("word/media/picture.png", "w", force_zip64=True) as picture:
            for _ in range(size >> 20):
                picture.write(bytes(1 << 20))
    return made.getvalue()


def attacks(url: str) -> dict[str, Callable[[], Awaitable[str]]]:
    """Return, by name, functions that try each attack once and return the answer."""
    host, bomb = urlsplit(url).netloc, _bomb(1 << 30)

    async def post(path: str, **request: Any) -> str:
        async with httpx.AsyncClient(timeout=60) as client:
            return str((await client.post(f"{url}{path}", **request)).status_code)

    async def chunks() -> str:
        head = _head("/translate_file", "Transfer-Encoding: chunked\r\nContent-Length: 50\r\n", host)
        head = head.replace(b"application/json", b"multipart/form-data; boundary=x")
        return await _raw(url, head + b"10000\r\n" + b"x" * 65536, 20)

    async def leave() -> str:
        with contextlib.suppress(httpx.ReadTimeout):
            async with httpx.AsyncClient(timeout=0.2) as client:
                await client.post(f"{url}/translate", json={"q": "The old bakers read. " * 200})
        return "left"

    words = "bank " * 5000
    nested = b"[" * 100_000
    kinds = {"Content-Type": "application/json"}
    return {
        "idle": lambda: _raw(url, b"", 40),
        "half a head": lambda: _raw(url, b"GET / HTTP/1.1\r\nHost: ", 40),
        "half a body": lambda: _raw(url, _head("/translate", "Content-Length: 5000\r\n", host) + b"{", 90),
        "chunks without end": chunks,
        "nested JSON": lambda: post("/translate", content=nested, headers=kinds),
        "lone surrogate": lambda: post("/translate", content=b'{"q": "\\ud800"}', headers=kinds),
        "infinite number": lambda: post("/translate", content=b'{"q": "a", "alternatives": 1e400}', headers=kinds),
        "attention to a huge line": lambda: post(
            "/attention", json={"source_lines": [words], "target_lines": [words], "line": 0, "word": 0}
        ),
        "zip bomb": lambda: post("/translate_file", files={"file": ("a.docx", bomb)}),
        "digits": lambda: post("/translate_file", files={"file": ("a.srt", b"1\n" + b"1" * 300_000 + b"\n")}),
        "open tags": lambda: post("/translate", json={"q": "<b>x" * 20_000, "format": "html"}),
        "links": lambda: post("/translate", json={"q": "[a](b) " * 20_000, "format": "markdown"}),
        "clients that leave": leave,
    }


async def attack(name: str, attempt: Callable[[], Awaitable[str]], end: float, answers: dict[str, Answers]) -> None:
    while time.monotonic() < end:
        try:
            answers[name][await attempt()] += 1
        except (httpx.HTTPError, OSError) as e:
            answers[name][type(e).__name__] += 1
        await asyncio.sleep(0.5)


def resident(pid: int) -> float:
    """Return the MiB of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


async def soak(args: argparse.Namespace) -> dict[str, Any]:
    texts = [t.strip() for t in args.text.read_text(encoding="utf-8").split("\n\n") if t.strip()] if args.text else []
    texts = [" ".join(t.split("\n")[:3]) for t in texts] or ["The old woman sees the bridge. It is new."]
    tally: dict[str, Any] = {"requests": 0, "lost": 0, "changed": 0, "slowest": 0.0}
    warm = time.monotonic() + 15
    await asyncio.gather(*(honest(args.url, i, texts, warm, tally) for i in range(HONEST)))
    start = most = resident(args.pid) if args.pid else 0.0
    end = time.monotonic() + args.seconds
    found = attacks(args.url)
    answers: dict[str, Answers] = {name: collections.Counter() for name in found}
    works = [honest(args.url, i, texts, end, tally) for i in range(HONEST)]
    works += [attack(name, attempt, end, answers) for name, attempt in found.items()]
    tasks = [asyncio.create_task(work) for work in works]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.5)
        most = max(most, resident(args.pid) if args.pid else 0.0)
    for task in tasks:
        task.result()
    told = {name: dict(counter) for name, counter in answers.items()}
    return tally | {"attacks": told, "MiB at the start": round(start), "MiB at most": round(most)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="such as http://127.0.0.1:5000; this machine only")
    parser.add_argument("--seconds", type=float, default=600, help="default: %(default)s")
    parser.add_argument("--text", type=Path, help="raw text whose documents the honest clients translate")
    parser.add_argument("--pid", type=int, help="the server's process, to watch its memory")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if urlsplit(args.url).hostname not in ("127.0.0.1", "localhost", "::1"):
        sys.exit("error: URL must be a server on this machine")
    found = asyncio.run(soak(args))
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    failed = any("500" in counter for counter in found["attacks"].values())
    grown = found["MiB at most"] > 1.5 * found["MiB at the start"]
    sys.exit(1 if found["lost"] or found["changed"] or failed or grown else 0)


if __name__ == "__main__":
    main()
