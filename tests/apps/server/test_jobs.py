"""Jobs: files that nobody waits for, after their client has left, and after the server has ended."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient

from fairseq_lasformer import formats
from fairseq_lasformer.apps.files.file_translator import FileTranslator
from fairseq_lasformer.apps.server import jobs as module
from fairseq_lasformer.apps.server.app import Server
from fairseq_lasformer.apps.server.engine import Engine, QueueFull
from fairseq_lasformer.apps.server.models import ServedModel
from fairseq_lasformer.apps.server.pages import Limits
from fairseq_lasformer.base.files import locked
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.documents.translator import Translator

NAME = "a b%/ü<1>.md"
LINES = 48
LONG = "".join(f"w{i % 9 + 1} w{i % 7 + 1} w{i % 5 + 1}.\n\n" for i in range(LINES)).encode()


@contextmanager
def serving(model, folder=None, key="", **limits):
    """A client of a server that ends with the block, as after a signal."""
    served = ServedModel("mine", model, beam=1, lanes=1, key=key)
    with TestClient(Server([served], Limits(**limits), jobs=folder).app(), raise_server_exceptions=False) as client:
        yield client


def begin(client, data, name=NAME, **fields):
    answer = client.post("/jobs", files={"file": (name, data)}, data=fields)
    assert answer.status_code == 202 and answer.headers["location"] == f"/jobs/{answer.json()['job']}"
    return answer.headers["location"]


def wait(client, job, until=lambda state: state["state"] in ("done", "failed")):
    end, seen = time.monotonic() + 100, []
    while time.monotonic() < end:
        seen.append(client.get(job).json())
        if until(seen[-1]):
            return seen
        time.sleep(0.02)
    raise AssertionError(seen[-1])


def alone(model, data, form="markdown"):
    (made,) = FileTranslator(model, beam=1).translate([formats.read(data, form)])
    return made.data


def test_a_job_tells_how_far_it_is_and_where_its_translation_is(model):
    with serving(model) as client:
        job = begin(client, LONG)
        seen = wait(client, job)
        assert seen[-1]["total"] == seen[-1]["done"] == LINES and seen[-1]["summary"].startswith(f"{LINES} sentences")
        order = ("waiting", "translating", "done")
        assert {one["state"] for one in seen} <= {*order} and any(0 < one["done"] < LINES for one in seen)
        assert sorted(seen, key=lambda one: (order.index(one["state"]), one["done"])) == seen
        path = seen[-1]["translatedFileUrl"].partition("testserver")[2]
        assert "<" not in path and " " not in path and path.endswith(".yy.md")
        got = client.get(path)
        assert got.content == alone(model, LONG) and "filename*=UTF-8''" in got.headers["content-disposition"]
        assert client.delete(job).status_code == 204
        assert {client.get(job).status_code, client.get(path).status_code, client.delete(job).status_code} == {404}


def test_a_file_that_is_awaited_is_the_same(model):
    with serving(model) as client:
        answer = client.post("/translate_file", files={"file": ("a.md", LONG)}).json()
        assert {*answer} == {"translatedFileUrl", "summary"}
        assert client.get(answer["translatedFileUrl"].partition("testserver")[2]).content == alone(model, LONG)


@pytest.mark.parametrize(
    "name, data, fields, told",
    [
        ("a.docx", b"x", {}, "not a .docx file"),
        ("a.txt", b"w1.", {"glossary": "no tab"}, "expected a source term, a tab"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_by_its_job(model, tmp_path, name, data, fields, told):
    with serving(model, tmp_path) as client:
        job = begin(client, data, name, **fields)
        (*_, state) = wait(client, job)
        assert state["state"] == "failed" and told in state["error"] and "status" not in state
        assert client.get(f"/download_file/{job[6:]}/a.docx").status_code == 404
    with serving(model, tmp_path) as client:
        assert client.get(job).json()["error"] == state["error"]
        assert client.post("/translate_file", files={"file": (name, data)}, data=fields).status_code == 400
        assert [path.name for path in tmp_path.glob("?" * 32)] == [job[6:]]  # the one that was awaited is gone


def test_a_job_goes_on_after_a_restart_with_the_lines_it_has(model, tmp_path, monkeypatch):
    parts, real = [], Translator.translate_parts

    def counted(self, tasks, *rest):
        parts.extend(part.start for _, part, _ in tasks)
        return real(self, tasks, *rest)

    monkeypatch.setattr(Translator, "translate_parts", counted)
    with serving(model, tmp_path, "key") as client:
        job = begin(client, LONG)
        before = wait(client, job, lambda state: state["done"] > 8)[-1]["done"]
    (journal,) = tmp_path.glob("*/key.jsonl")
    kept = sum(len(json.loads(line)[1]) for line in journal.read_text().splitlines())
    assert 0 < kept < LINES
    parts.clear()
    with serving(model, tmp_path, "key") as client:
        seen = wait(client, job)
        assert min(parts) >= kept and seen[-1]["done"] == LINES >= before
        path = seen[-1]["translatedFileUrl"].partition("testserver")[2]
        assert client.get(path).content == alone(model, LONG)
    assert {file.name for file in (tmp_path / job[6:]).iterdir()} == {"job.json", "answer.json", "translation"}
    with serving(model, tmp_path, "other") as client:
        assert client.get(path).content == alone(model, LONG)


def test_lines_of_another_model_are_not_used(model, tmp_path, monkeypatch):
    with serving(model, tmp_path, "key") as client:
        job = begin(client, LONG)
        wait(client, job, lambda state: state["done"] > 8)
    (journal,) = tmp_path.glob("*/key.jsonl")
    journal.write_text(journal.read_text().replace('["0", [[[', '["0", [[[9, 9, 9, '))
    with serving(model, tmp_path, "other") as client:
        (*_, state) = wait(client, job)
        assert client.get(state["translatedFileUrl"].partition("testserver")[2]).content == alone(model, LONG)


def test_a_file_over_which_servers_end_is_not_tried_for_ever(model, tmp_path, monkeypatch):
    """Killed servers leave a try, those that end by themselves none."""
    monkeypatch.setattr(Engine, "_step", lambda *_: time.sleep(0.02))
    close = module.Jobs.close
    with serving(model, tmp_path) as client:
        job = begin(client, b"w1.")
    for end in ("killed", "killed", "ended", "killed", "killed", "killed"):
        monkeypatch.setattr(module.Jobs, "close", close if end == "ended" else lambda self: None)
        with serving(model, tmp_path) as client:
            wait(client, job, lambda state: state["state"] == "translating")
    with serving(model, tmp_path) as client:
        assert "has ended 3 times" in wait(client, job)[-1]["error"]


def test_only_jobs_go_on_without_their_client(model, tmp_path, monkeypatch):
    begun = threading.Event()
    monkeypatch.setattr(Engine, "_step", lambda *_: (begun.set(), time.sleep(0.02)))
    with serving(model, tmp_path, seconds=1) as client:
        job = begin(client, b"w1.")
        assert begun.wait(20)
        assert client.post("/translate_file", files={"file": ("a.txt", b"w2.")}).status_code == 503
        assert client.get(job).json() == {"state": "translating", "done": 0, "total": 1}
        assert [path.name for path in tmp_path.glob("?" * 32)] == [job[6:]]
        other = begin(client, b"w3.")
        assert client.delete(other).status_code == 204
    (record,) = tmp_path.glob("*/job.json")
    record.write_text(record.read_text().replace('"awaited": false', '"awaited": true'))
    damaged = tmp_path / ("0" * 32)
    damaged.mkdir()
    (damaged / "job.json").write_text("{}")
    leftover = tmp_path / ("1" * 32)
    leftover.mkdir()
    (leftover / "key.jsonl").write_text("")
    with serving(model, tmp_path) as client:
        assert client.get(job).status_code == 404
    assert [path.name for path in tmp_path.glob("?" * 32)] == [damaged.name]  # nothing that is not understood goes


def test_a_full_queue_is_waited_for_by_jobs_alone(model, monkeypatch):
    real, full = Engine.submit, threading.Event()

    def submit(self, *args):
        if not full.is_set():
            raise QueueFull
        return real(self, *args)

    monkeypatch.setattr(Engine, "submit", submit)
    with serving(model) as client:
        job = begin(client, b"w1 w2.")
        answer = client.post("/translate_file", files={"file": ("a.txt", b"w2.")})
        assert answer.status_code == 503 and "too many documents" in answer.json()["error"]
        assert client.get(job).json()["state"] == "translating"
        full.set()
        assert wait(client, job)[-1]["state"] == "done"


def test_jobs_are_bounded(model, monkeypatch):
    monkeypatch.setattr(Engine, "_step", lambda *_: time.sleep(0.02))
    with serving(model, per_client=3, kept_bytes=40) as client:
        jobs = [begin(client, b"w1 w2 w3 w4 w5.") for _ in range(2)]
        full = client.post("/jobs", files={"file": (NAME, b"w1 w2 w3 w4 w5.")})
        assert full.status_code == 503 and "too many files are waiting" in full.json()["error"]
        jobs.append(begin(client, b"w1."))
        assert client.post("/jobs", files={"file": (NAME, b"w1.")}).status_code == 429
        client.delete(jobs.pop())
        end = time.monotonic() + 10
        while client.post("/jobs", files={"file": (NAME, b"w1.")}).status_code != 202 and time.monotonic() < end:
            time.sleep(0.05)
        assert time.monotonic() < end


def test_long_files_are_translated_one_or_two_at_a_time_and_short_ones_beside_them(model, monkeypatch):
    monkeypatch.setattr(module, "TOGETHER_BYTES", 1000)
    monkeypatch.setattr(Engine, "_step", lambda *_: time.sleep(0.02))
    with serving(model) as client:
        jobs = [begin(client, b"w1 w2 w3. " * n) for n in (45, 60, 60, 4)]
        wait(client, jobs[3], lambda state: state["state"] == "translating")
        assert [client.get(job).json()["state"] for job in jobs] == [
            "translating",
            "translating",
            "waiting",
            "translating",
        ]
        client.delete(jobs[1])
        wait(client, jobs[2], lambda state: state["state"] == "translating")


def test_nobody_waits_for_files_that_are_read(model, monkeypatch):
    held = threading.Event()
    monkeypatch.setattr(ServedModel, "prepare", lambda *_: held.wait(30) and None)
    with serving(model) as client:
        jobs = [begin(client, b"w1 w2. " * 6000) for _ in range(3)]
        assert not held.is_set() and {client.get(job).json()["state"] for job in jobs} == {"waiting"}
        for job in jobs:
            client.delete(job)
        held.set()


def test_a_disk_that_is_full_is_told_without_its_path(model, monkeypatch):
    def full(self, *_):
        raise OSError(28, "No space left on device", str(self.folder))

    monkeypatch.setattr(module.Job, "write", full)
    with serving(model) as client:
        answer = client.post("/jobs", files={"file": (NAME, b"w1.")})
        assert answer.status_code == 507 and "no room" in answer.json()["error"] and "jobs" not in answer.text
        monkeypatch.undo()
        monkeypatch.setattr(module.Job, "settle", full)
        (*_, state) = wait(client, begin(client, b"w1."))
        assert state["state"] == "failed" and "no room" in state["error"]


@pytest.mark.command
def test_a_job_outlives_a_server_that_is_killed(model, by_lines_folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    lasformer = Path(sys.executable).with_name("lasformer")
    command = [lasformer, "serve", by_lines_folder, "--port", port, "--beam", 1, "--jobs", tmp_path]
    job = None
    for until in (lambda state: state["done"] > 3, lambda state: state["state"] == "done"):
        with (
            subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE) as server,
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            assert server.stdout.readline().startswith(b"http")
            job = job or begin(client, LONG)
            state = wait(client, job, until)[-1]
            made = client.get(state["translatedFileUrl"]).content if "summary" in state else b""
            server.kill()
    assert made == alone(model, LONG)


def test_threads_leave_nothing_of_a_job_that_is_gone(tmp_path):
    (tmp_path / "jobs").mkdir()
    jobs = module.Jobs(tmp_path / "jobs", 100)
    asked = {"name": NAME, "form": "markdown", "model": "m", "source": "xx", "target": "yy", "glossary": ""}
    job = jobs.new(3, **asked, awaited=False)
    jobs.remove(job)  # while a thread writes
    job.write(b"w1.")
    assert not job.folder.exists()
    other = jobs.new(3, **asked, awaited=False)
    other.write(b"w1.")
    other.removed = True
    other.settle({"file": "a"}, b"W1.")
    jobs.settled(other, {"file": "a"}, 3)
    assert not any((tmp_path / "jobs").iterdir()) and other.answer is None


def test_two_servers_do_not_share_a_folder(tmp_path, capsys):
    with locked(tmp_path / ".lock", "a server"):
        assert main(["serve", "/nowhere", "--jobs", str(tmp_path)]) == 1
    assert f"{tmp_path}: a server is already running here" in capsys.readouterr().err
