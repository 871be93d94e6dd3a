"""A running server under load: many clients at once compared with one alone; some leave half-way.

Needs ``lasformer serve`` on this machine. Documents of 5 to 500 sentences are runs of lines of a text; each client
requests one after another, streamed. Every document must come back with all of its lines. Times are those of whole
documents; first lines are the times until a client has something to read.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.rows import Row
from fairseq_lasformer.base.errors import InputError

BASELINES = ("1",)
LENGTHS = (5, 10, 20, 50, 100, 500)


class Answer(NamedTuple):
    """A client's record: sentences, seconds to the first line and in all, and whether it left half-way."""

    sentences: int
    first: float
    seconds: float
    left: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:5000", help="default: %(default)s")
    parser.add_argument("--source", type=Path, required=True, help="text, one sentence per line")
    parser.add_argument("--clients", default="1,50", help="default: %(default)s")
    parser.add_argument(
        "--documents", type=int, default=100, help="in all, per number of clients (default: %(default)s)"
    )
    parser.add_argument("--leaving", type=float, default=0.1, help="share that leaves half-way (default: %(default)s)")
    parser.add_argument("--memory", type=int, metavar="PID", help="process of the server, to read its memory")


def documents(lines: list[str], n: int) -> list[str]:
    """Return runs of lines, short ones often and long ones rarely, with as many sentences of each length overall."""
    rng = random.Random(1)
    lengths = rng.choices(LENGTHS, [1 / length for length in LENGTHS], k=n)
    lengths[: len(LENGTHS)] = LENGTHS[:n]
    rng.shuffle(lengths)
    starts = [rng.randrange(max(1, len(lines) - length)) for length in lengths]
    return ["\n".join(lines[a : a + length]) for a, length in zip(starts, lengths)]


async def ask(client: Any, url: str, text: str, leave: bool) -> Answer:
    """Request one document, streamed."""
    begun, first, wanted, seen = time.monotonic(), 0.0, 0, 0
    async with client.stream("POST", f"{url}/translate", json={"q": text, "stream": True}) as answer:
        if answer.status_code != 200:
            raise InputError(f"{url}: answered {answer.status_code}")
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                body = json.loads(line[6:])
                if kind == "error":
                    raise InputError(f"{url}: {body['error']}")
                if kind == "source":
                    wanted = len(body["sentences"])
                elif kind == "line":
                    first = first or time.monotonic() - begun
                    seen += 1
                    if leave and 2 * seen >= wanted:
                        return Answer(seen, first, time.monotonic() - begun, True)
                elif kind == "done" and seen != wanted:
                    raise InputError(f"{wanted} sentences, {seen} lines")
    if kind != "done":
        raise InputError("an answer broke off")
    return Answer(seen, first, time.monotonic() - begun, False)


async def load(url: str, texts: list[str], clients: int, leaving: float) -> tuple[list[Answer], float]:
    """Request all documents by a number of clients; return the results and the time taken."""
    import httpx

    waiting = iter(enumerate(texts))
    found: list[Answer] = []
    every = round(1 / leaving) if leaving else 0

    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:

        async def work() -> None:
            for i, text in waiting:
                found.append(await ask(client, url, text, bool(every) and i % every == every - 1))

        begun = time.monotonic()
        await asyncio.gather(*(work() for _ in range(clients)))
        return found, time.monotonic() - begun


def measure(args: argparse.Namespace) -> Iterator[Row]:
    lines = [line.strip() for line in args.source.read_text(encoding="utf-8").splitlines() if line.strip()]
    texts = documents(lines, args.documents)
    for clients in map(int, args.clients.split(",")):
        before = _memory(args.memory)
        found, seconds = asyncio.run(load(args.url, texts, clients, args.leaving))
        stayed = sorted(answer.seconds for answer in found if not answer.left)
        firsts = sorted(answer.first for answer in found)
        figures = {
            "documents": float(len(found)),
            "left half-way": float(sum(answer.left for answer in found)),
            "sentences/s": sum(answer.sentences for answer in found) / seconds,
            "median s": stayed[len(stayed) // 2],
            "95 % s": stayed[int(0.95 * (len(stayed) - 1))],
            "first line, median s": firsts[len(firsts) // 2],
            "first line, 95 % s": firsts[int(0.95 * (len(firsts) - 1))],
        }
        if args.memory:
            figures["MiB more"] = _memory(args.memory) - before
        yield from (Row(args.url, str(clients), name, value, name == "sentences/s") for name, value in figures.items())


def _memory(pid: int | None) -> float:
    """Return the resident memory of a process, in MiB."""
    if pid is None:
        return 0.0
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
