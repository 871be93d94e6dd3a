"""Places belong to threads: whoever leaves keeps his until his thread has ended."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from fairseq_lasformer import formats
from fairseq_lasformer.apps.server import places as module
from fairseq_lasformer.apps.server.app import Server
from fairseq_lasformer.apps.server.models import EXPLAINED
from fairseq_lasformer.apps.server.pages import Limits
from fairseq_lasformer.apps.server.places import Places, Turn
from fairseq_lasformer.documents.streaming import Stopped


class Client:
    """What is asked of a request."""

    gone = False

    async def is_disconnected(self) -> bool:
        return self.gone


def turn(released=lambda: None, client=None, seconds=20.0):
    return Turn(client or Client(), seconds, released)


async def wait_for(held):
    while not held():
        await asyncio.sleep(0.01)


def test_a_client_that_leaves_keeps_its_place_until_its_thread_ends(monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.02)
    places, released, go, began = Places(1), [], threading.Event(), threading.Event()

    def work():
        began.set()
        go.wait(20)

    async def leave():
        client = Client()
        mine = turn(lambda: released.append(1), client)
        task = asyncio.ensure_future(mine.work(places, 5, work))
        await asyncio.to_thread(began.wait, 20)
        client.gone = True
        with pytest.raises(HTTPException) as left:
            await task
        assert left.value.status_code == 499
        mine.end()
        assert (places.held, places.bytes, released) == (1, 5, [])
        other = asyncio.ensure_future(turn().work(places, 1, lambda: 7))
        await asyncio.sleep(0.1)
        assert not other.done()
        go.set()
        assert await other == 7
        assert (places.held, places.bytes, released) == (0, 0, [1])

    asyncio.run(leave())


def test_work_that_waits_is_given_up_with_its_client(monkeypatch):
    monkeypatch.setattr(module, "LOOK", 0.02)
    places, go, ran, released = Places(1), threading.Event(), [], []

    async def leave():
        first = asyncio.ensure_future(turn().work(places, 1, go.wait, 20))
        await wait_for(lambda: places.held)
        client = Client()
        mine = turn(lambda: released.append(1), client)
        second = asyncio.ensure_future(mine.work(places, 1, ran.append, 1))
        await wait_for(lambda: places.held == 2)
        client.gone = True
        with pytest.raises(HTTPException):
            await second
        mine.end()
        assert places.held == 1 and released == [1]
        go.set()
        await first
        assert await turn().work(places, 1, lambda: 3) == 3 and ran == []

    asyncio.run(leave())


def test_what_waits_is_bounded_in_number_and_in_bytes(monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    go = threading.Event()

    async def fill(sizes):
        places = Places(1)
        works = [asyncio.ensure_future(turn().work(places, size, go.wait, 20)) for size in sizes[:-1]]
        await wait_for(lambda: places.held == len(works))
        with pytest.raises(HTTPException) as refused:
            await turn().work(places, sizes[-1], go.wait, 20)
        assert refused.value.status_code == 503
        go.set()
        await asyncio.gather(*works)
        assert (places.held, places.bytes) == (0, 0)

    for sizes in ([1, 1, 1, 1], [60, 41], [1000, 1]):
        go.clear()
        asyncio.run(fill(sizes))


def test_what_is_in_memory_already_is_not_refused(monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 100)
    go = threading.Event()

    async def finish():
        places = Places(2)
        reading = asyncio.ensure_future(turn().work(places, 1000, go.wait, 20))
        await wait_for(lambda: places.held)
        assert await turn().work(places, 0, lambda: "written") == "written"
        go.set()
        await reading

    asyncio.run(finish())


def test_an_archive_is_looked_into_by_a_thread_alone(served, monkeypatch):
    """Its list of files may be long; the loop that answers everybody must not read it."""
    threads = []
    real = formats.size
    monkeypatch.setattr(formats, "size", lambda *a: (threads.append(threading.current_thread()), real(*a))[1])
    server = Server([served], Limits())
    assert TestClient(server.app()).post("/translate_file", files={"file": ("a.docx", b"x")}).status_code == 400
    files = {"file": ("a.txt", b"w1 w2.\n")}
    assert TestClient(server.app()).post("/translate_file", files=files).status_code == 200
    assert (server.long.started, server.short.started) == (1, 2)
    assert threads and all(thread.daemon and thread.name.startswith("Thread-") for thread in threads)


def test_long_work_lets_other_threads_run_and_errors_are_passed_on():
    usual, places = sys.getswitchinterval(), Places(2, long=True)

    def fail():
        raise ValueError(sys.getswitchinterval())

    async def ask():
        found = await asyncio.gather(*(turn().work(places, 0, fail) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(e, ValueError) and e.args[0] == pytest.approx(module.SWITCH) for e in found)

    asyncio.run(ask())
    assert sys.getswitchinterval() == usual


def test_an_explanation_ends_when_nobody_waits(served):
    left, lines = threading.Event(), [f"w{i} w{i + 1}" for i in range(6)]
    translated = [line.upper() for line in lines]
    assert isinstance(served.explained(left, lines, translated), list)
    left.set()
    with pytest.raises(Stopped):
        served.explained(left, lines, translated)


def test_texts_that_are_too_long_to_be_explained_are_refused_before_they_are_translated(served, monkeypatch):
    monkeypatch.setattr(served.engine, "submit", None)
    client = TestClient(Server([served], Limits()).app())
    for stream in (False, True):
        answer = client.post("/translate", json={"q": "w1\n" * (EXPLAINED + 1), "because": True, "stream": stream})
        assert answer.status_code == 413 and f"at most {EXPLAINED} are explained" in answer.json()["error"]


def test_a_line_waits_for_parts_and_not_for_pages(served):
    """Two pages that came before it keep both of their lanes busy; it is done before either."""
    done = []

    def ask(name, text):
        prepared = served.prepare(text.encode(), "text")
        served.engine.submit(prepared.source, lambda event: done.append(name) if event.kind == "done" else None)

    page = "\n".join(" ".join(f"w{(i + j) % 30}" for j in range(20)) for i in range(20))
    assert len(served.prepare(page.encode(), "text").source.parts) > 4
    ask("page", page)
    time.sleep(0.05)
    ask("line", "w1 w2")
    for _ in range(1000):
        if len(done) == 2:
            break
        time.sleep(0.02)
    assert done == ["line", "page"]
