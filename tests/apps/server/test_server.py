"""The server: interface, limits, shared batches, clients that disconnect."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile

import pytest
import torch
from helpers import recipe
from starlette.routing import Route
from starlette.testclient import TestClient

from fairseq_lasformer import formats
from fairseq_lasformer.apps.files.file_translator import FileTranslator
from fairseq_lasformer.apps.server.app import Server
from fairseq_lasformer.apps.server.engine import Engine, QueueFull
from fairseq_lasformer.apps.server.models import ServedModel, name_of
from fairseq_lasformer.apps.server.pages import Limits
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.streaming import Stopped
from fairseq_lasformer.documents.translator import Translator
from fairseq_lasformer.plugin.model import LasformerModel

TEXT = "w1 w2 w3. w4 w5.\n\nw6 w7.\n"


def client(served, keys=None, **limits):
    return TestClient(Server([served], Limits(**limits), keys).app(), raise_server_exceptions=False)


def expected(model, *sentences):
    return model.translate_documents(["\n".join(sentences)], beam=2, progress=False)[0].split("\n")


def events(answer):
    found = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in found]


def test_a_text_is_translated_as_a_document(model, served):
    a, b, c = expected(model, "w1 w2 w3.", "w4 w5.", "w6 w7.")
    answer = client(served).post("/translate", json={"q": TEXT, "source": "xx", "target": "yy"})
    assert answer.status_code == 200 and answer.json() == {"translatedText": f"{a} {b}\n\n{c}\n"}
    form = client(served).post("/translate", data={"q": "w6 w7.", "source": "auto", "target": "yy"}).json()
    assert form.pop("detectedLanguage") == {"language": "xx", "confidence": 0.0}
    assert form == {"translatedText": expected(model, "w6 w7.")[0]}
    several = client(served).post("/translate", json={"q": ["w6 w7.", "", "w1"], "alternatives": 1}).json()
    assert several["translatedText"] == [expected(model, "w6 w7.")[0], "", expected(model, "w1")[0]]
    assert len(several["alternatives"]) == 3


def test_lines_are_streamed_and_revised_ones_told_again(model, served, monkeypatch):
    def finish(self, documents, found, device):
        for lines in found:
            lines[1] = lines[1]._replace(tokens=torch.tensor([self.eos[1] + 5]), repaired=True)

    monkeypatch.setattr(Translator, "finish", finish)
    told = events(client(served).post("/translate", json={"q": TEXT, "stream": True}))
    assert [kind for kind, _ in told] == ["source", "line", "line", "line", "revised", "done"]
    assert told[0][1]["sentences"] == ["w1 w2 w3.", "w4 w5.", "w6 w7."]
    assert [body["number"] for kind, body in told if kind in ("line", "revised")] == [1, 2, 3, 2]
    revised = told[4][1]["translation"]
    assert told[4][1]["repaired"] and f" {revised}\n" in told[5][1]["translatedText"]


def test_finished_units_of_a_file_are_context(model, served):
    po = 'msgid ""\nmsgstr "Language: yy\\n"\n\nmsgid "w1 w2"\nmsgstr "W9 W9"\n\nmsgid "w3 w4"\nmsgstr ""\n'
    page = client(served)
    found = page.post("/translate_file", files={"file": ("a.po", po.encode())}).json()
    assert found["summary"].startswith("1 sentence, 1 unit kept, used as context")
    (expected,) = FileTranslator(model, beam=2).translate([formats.read(po.encode(), "po")])
    assert page.get(found["translatedFileUrl"]).content == expected.data


def test_files_come_back_in_their_format(model, served):
    page = client(served)
    html = page.post("/translate_file", files={"file": ("../a.html", b"<p>w6 w7.</p><script>w1</script>")}).json()
    address = html["translatedFileUrl"].partition("testserver")[2]
    assert address.startswith("/download_file/") and address.endswith("/a.yy.html")
    made = page.get(address)
    assert made.content.decode() == f"<p>{expected(model, 'w6 w7.')[0]}</p><script>w1</script>"
    assert "attachment" in made.headers["content-disposition"]
    assert page.get("/download_file/none/a.html").status_code == 404
    broken = io.BytesIO()
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("other.xml", "x")
    answer = page.post("/translate_file", files={"file": ("a.docx", broken.getvalue())})
    assert answer.status_code == 400 and "not a .docx file" in answer.json()["error"]
    assert "unknown format" in page.post("/translate_file", files={"file": ("a.exe", b"x")}).json()["error"]


@pytest.mark.parametrize(
    "path, body, status, message",
    [
        ("/translate", {"q": "w1 " * 50}, 413, "at most 100 characters"),
        ("/translate", {"q": 5}, 400, "q: expected a text"),
        ("/translate", {"q": []}, 400, "q: expected a text"),
        ("/translate", {"q": "w1", "target": "fr"}, 400, "no such model; there are xx-yy"),
        ("/translate", {"q": "w1", "format": "pdf"}, 400, "format: expected"),
        ("/translate", {"q": "w1", "alternatives": "many"}, 400, "expected a number"),
        ("/translate", {"q": "w1", "glossary": "no tab"}, 400, "expected a source term, a tab"),
        ("/translate", {"q": ["w1", "w2"], "stream": True}, 400, "one text at a time"),
        ("/translate", ["w1"], 400, "expected an object"),
        ("/translate_file", {}, 400, "file: expected a file"),
        ("/attention", {"source_lines": "w1"}, 400, "source_lines: expected texts"),
        ("/detect", {"q": "w1"}, 501, "cannot detect"),
        ("/nothing", {}, 404, "Not Found"),
    ],
)
def test_what_is_refused_is_said(served, path, body, status, message):
    answer = client(served, characters=100).post(path, json=body)
    assert answer.status_code == status and message in answer.json()["error"]
    assert "/tmp" not in answer.text  # no path of the server


def test_bodies_and_files_that_are_too_large(served):
    page = client(served, characters=100, file_bytes=1000)
    assert (
        page.post("/translate", content=b"x" * 20_000, headers={"content-type": "application/json"}).status_code == 413
    )
    assert page.post("/translate_file", files={"file": ("a.txt", b"w1 " * 9000)}).status_code == 413
    assert page.post("/translate_file", files={"file": ("a.txt", b"w1 " * 500)}).status_code == 413
    endless = page.post(
        "/translate", content=(b"x" * 1000 for _ in range(30)), headers={"content-type": "application/json"}
    )
    assert endless.status_code == 413
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert page.post("/translate", content=(b"q=x" for _ in range(2)), headers=form).status_code == 411
    page.post("/translate", json={"q": "w1"}, headers={"content-length": "many"})


def test_the_oldest_files_go_first(served):
    page = client(served, kept_bytes=30)
    made = [page.post("/translate_file", files={"file": ("a.txt", b"w1 w2.\n" * 2)}).json() for _ in range(3)]
    found = [page.get(one["translatedFileUrl"].partition("testserver")[2]).status_code for one in made]
    assert found[-1] == 200 and found[0] == 404


def test_keys(served):
    page = client(served, keys=["secret"])
    assert page.post("/translate", json={"q": "w1"}).status_code == 403
    assert page.post("/translate", json={"q": "w1", "api_key": "wrong"}).status_code == 403
    assert page.post("/translate", json={"q": "w1", "api_key": "secret"}).status_code == 200
    assert page.post("/translate", json={"q": "w1"}, headers={"Authorization": "Bearer secret"}).status_code == 200


def test_the_rest_of_the_interface(served):
    page = client(served)
    assert page.get("/languages").json() == [{"code": "xx", "name": "xx", "targets": ["yy"]}]
    assert page.get("/health").json() == {"status": "ok"}
    done = page.post("/translate", json={"q": "w1 w2. w3."})
    assert done.status_code == 200, done.text
    shown, end = "", time.monotonic() + 10  # a document leaves the queue just after its last line was sent
    while 'lasformer_queue{model="mine"} 0.0' not in shown and time.monotonic() < end:
        shown = page.get("/metrics").text
    assert 'lasformer_queue{model="mine"} 0.0' in shown
    assert 'lasformer_sentences_total{model="mine"} 2.0' in shown
    assert 'lasformer_requests_total{path="/translate",status="200"} 1.0' in shown
    start = page.get("/")
    assert '"source": "xx"' in start.text and "default-src 'none'" in start.headers["content-security-policy"]
    found = page.post("/attention", json={"source_lines": ["w1 w2"], "target_lines": ["w2 w1"], "line": 0, "word": 1})
    assert found.status_code == 200
    for side in ("source", "target"):
        assert found.json()[side] and all(i == 0 and j in (0, 1) and 0 < w <= 1.001 for i, j, w in found.json()[side])
    assert [0, 1] not in [word[:2] for word in found.json()["target"]]  # not itself


def test_words_are_explained_if_asked(model, served):
    """A line's words by themselves, more thoroughly, and all with a translation; as the Python interface says."""
    page, source = client(served), ["w1 w2 w3.", "w4 w5.", "w6 w7."]
    target = expected(model, *source)
    asked = {"source_lines": source, "target_lines": target}
    every = model.explain("\n".join(source), "\n".join(target))
    last = model.explain("\n".join(source), "\n".join(target), [3])
    found = page.post("/because", json=asked | {"number": 3})
    assert found.status_code == 200 and [w["word"] for w in found.json()["words"]] == [
        target[w.line - 1][w.start : w.end] for w in last.words
    ]
    q = {"q": TEXT, "because": True}
    places = [(w.line, w.start, w.end) for w in every.words]
    assert places, "nothing in this text depends on another line"
    told = [page.post("/translate", json=q).json(), events(page.post("/translate", json=q | {"stream": True}))[-1][1]]
    several = page.post("/translate", json={"q": [TEXT, ""], "because": True}).json()["because"]
    for answer in (*(one["because"] for one in told), several[0]):
        assert [(w["line"], w["start"], w["end"]) for w in answer] == places
    assert several[1] == []
    for wrong, message in (
        ({"number": 4}, "no line 4"),
        ({"number": 0}, "no line 0"),
        ({}, "number"),
        ({"number": -1}, "number"),
    ):
        refused = page.post("/because", json=asked | wrong)
        assert refused.status_code == 400 and message in refused.json()["error"], wrong
    refused = page.post("/because", json=asked | {"number": 1, "target_lines": ["W1"]})
    assert refused.status_code == 400 and "target_lines: 1 lines for 3" in refused.json()["error"]


def test_what_cannot_be_explained_is_said_in_every_form(served, monkeypatch):
    page, q = client(served), {"q": "w1 w2.", "because": True}

    def too_long(self, source, target, number=None):
        raise InputError("line 1 has 900 tokens, more than the model's limit")

    monkeypatch.setattr(ServedModel, "explained", too_long)
    assert page.post("/translate", json=q).json() == {"error": "line 1 has 900 tokens, more than the model's limit"}
    assert events(page.post("/translate", json=q | {"stream": True}))[-1] == (
        "error",
        {"error": "line 1 has 900 tokens, more than the model's limit"},
    )
    monkeypatch.setattr(served, "reads_documents", False)
    refused = page.post("/translate", json=q)
    assert refused.status_code == 400 and refused.json()["error"] == "because: needs a model of documents"


def test_odd_lines_are_explained_or_refused(served):
    page = client(served)
    for line in ("", " ", "<sep>", "<sep> w1", "\u200b", "w1\nw2", "\x00", "!?", "w1 " * 40):
        asked = {"source_lines": ["w1 w2", line, "w3"], "target_lines": ["W1", line, line], "number": 3}
        assert page.post("/because", json=asked).status_code in (200, 400), repr(line)


def test_only_known_hosts_are_answered(served):
    page = TestClient(Server([served], Limits()).app(["localhost"]), base_url="http://evil.example")
    assert page.get("/health").status_code == 400


def test_a_full_queue_and_busy_clients_are_told_to_wait(served, monkeypatch):
    def full(*_):
        raise QueueFull

    monkeypatch.setattr(served.engine, "submit", full)
    answer = client(served).post("/translate", json={"q": "w1"})
    assert answer.status_code == 503 and answer.headers["retry-after"] == "10"
    assert events(client(served).post("/translate", json={"q": "w1", "stream": True}))[-1][0] == "error"
    busy = client(served, per_client=0).post("/translate", json={"q": "w1"})
    assert busy.status_code == 429 and busy.headers["retry-after"] == "5"


def test_what_takes_too_long_ends(served, monkeypatch):
    monkeypatch.setattr(Engine, "_step", lambda *_: time.sleep(0.05))
    answer = client(served, seconds=0.2).post("/translate", json={"q": "w1"})
    assert answer.status_code == 503 and "not done within 0.2 seconds" in answer.json()["error"]
    end = time.monotonic() + 5
    while served.engine.jobs and time.monotonic() < end:
        time.sleep(0.01)
    assert not served.engine.jobs  # it was cancelled


def prepare(served, text):
    return served.prepare(text.encode(), "text").source


def collected():
    found, done = [], threading.Event()

    def tell(event):
        found.append(event)
        if event.kind in ("done", "failed"):
            done.set()

    return found, done, tell


def test_documents_that_wait_together_are_translated_together(model, served, monkeypatch):
    texts = [" ".join(f"w{i % 9 + 1} w{(i + k) % 7 + 1}." for i in range(12)) for k in range(5)]
    alone = [served.files.translate([formats.read(text.encode(), "text")])[0] for text in texts]
    sizes, original, hold = [], Translator.translate_parts, threading.Event()

    def watched(self, tasks, device, check=None):
        hold.wait(10)
        sizes.append(len(tasks))
        return original(self, tasks, device, check)

    monkeypatch.setattr(Translator, "translate_parts", watched)
    waiting = [collected() for _ in texts]
    for text, (_, _, tell) in zip(texts, waiting):
        served.engine.submit(prepare(served, text), tell)
    hold.set()
    for (found, done, _), whole in zip(waiting, alone):
        assert done.wait(60)
        lines = {}
        for event in found:
            if event.line is not None:
                lines[event.number] = served.model.line(0, "", event.line).translation
        assert [lines[i] for i in range(len(lines))] == [line.line.translation for line in whole.lines]
    assert max(sizes) > 1


def test_a_document_that_fails_fails_alone(served, monkeypatch):
    original = Translator.translate_parts

    def failing(self, tasks, device, check=None):
        if any(len(source.sentences) == 3 for source, _, _ in tasks):
            raise RuntimeError("/a/secret/place")
        return original(self, tasks, device, check)

    monkeypatch.setattr(Translator, "translate_parts", failing)
    good, bad = collected(), collected()
    served.engine.submit(prepare(served, "w1. w2. w3."), bad[2])
    served.engine.submit(prepare(served, "w1. w2."), good[2])
    assert bad[1].wait(30) and good[1].wait(30)
    assert [e.kind for e in bad[0]] == ["failed"] and "secret" not in bad[0][0].error
    assert good[0][-1].kind == "done" and served.engine.alive


def test_nothing_is_told_after_a_client_has_left(served, monkeypatch):
    begun, go_on, stopped = threading.Event(), threading.Event(), []
    original = Translator.translate_parts

    def slow(self, tasks, device, check=None):
        begun.set()
        go_on.wait(10)
        try:
            check()
        except Stopped as e:
            stopped.append(e)
            raise
        return original(self, tasks, device, check)

    monkeypatch.setattr(Translator, "translate_parts", slow)
    found, _, tell = collected()
    job = served.engine.submit(prepare(served, "w1. w2."), tell)
    assert begun.wait(10)
    served.engine.cancel(job)
    go_on.set()
    other = collected()
    served.engine.submit(prepare(served, "w3."), other[2])
    assert other[1].wait(30) and found == [] and len(stopped) == 1


@pytest.mark.parametrize("last", ["line", "done", "failed"])
def test_a_client_that_is_gone_ends_no_lane(served, monkeypatch, last):
    if last == "failed":
        monkeypatch.setattr(Translator, "translate_parts", lambda *given: 1 / 0)
    reached = threading.Event()

    def tell(event):
        if event.kind == last:
            reached.set()
            raise RuntimeError("Event loop is closed")

    served.engine.submit(prepare(served, "w1. w2."), tell)
    assert reached.wait(30)
    monkeypatch.undo()
    other = collected()
    served.engine.submit(prepare(served, "w3."), other[2])
    assert other[1].wait(30) and other[0][-1].kind == "done" and served.engine.alive


def test_models_without_lines_are_not_served(model, monkeypatch):
    monkeypatch.setattr(model.codec, "separator", "")
    with pytest.raises(InputError, match="only models of sentences, and those whose data has a separator"):
        ServedModel("mine", model)


def test_a_name_gives_no_place_away(tmp_path):
    (tmp_path / "mine").mkdir()
    assert name_of(tmp_path / "mine") == "mine" and name_of(tmp_path / "mine" / "checkpoint_best.pt") == "mine"


def test_a_route_as_the_recipe_shows_it(module, served):
    head = "from fairseq_lasformer.apps.server.app import *\nfrom fairseq_lasformer.version import __version__\n"
    head += "from starlette.requests import Request\nfrom starlette.responses import JSONResponse, Response\n"
    body = recipe("apps/server/app.py, in class Server")
    written = module("contributed_route", f"{head}\n\nclass Longer(Server):\n{body}")
    server = written.Longer([served], Limits())
    app = server.app()
    app.routes.append(Route("/version", server.version))
    assert TestClient(app).get("/version").json()["version"].startswith("0.")


def test_alternatives_are_refused_where_documents_are_one_sequence(trained_folder, monkeypatch):
    plain = ServedModel("plain", LasformerModel.from_pretrained(trained_folder), beam=2)
    with monkeypatch.context() as patched:
        patched.setattr(plain.engine, "submit", lambda *_: 1 / 0)  # before anything is translated
        answer = client(plain).post("/translate", json={"q": "w1. w2.", "alternatives": 1})
    assert answer.status_code == 400 and answer.json()["error"].startswith("alternatives: only where lines are")
    assert client(plain).post("/translate", json={"q": "w1. w2."}).status_code == 200
    plain.engine.close()
