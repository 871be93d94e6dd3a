"""Models by name or address: downloaded once, whole, and only as their hashes say."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fairseq_lasformer.apps.files.translate import growing
from fairseq_lasformer.apps.files.translate_options import Translate
from fairseq_lasformer.base import published
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.published import CARD, INDEX, local_path, model_path, speed
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.cli.main import main

WEIGHTS = bytes(range(256)) * 3000


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A server of files by path, whose requests are recorded; ``site.cut`` breaks answers off after so many bytes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(INDEX, raising=False)

    class Site(BaseHTTPRequestHandler):
        files: dict[str, bytes] = {}
        asked: list[tuple[str, str | None]] = []
        moved: dict[str, str] = {}
        cut: int | None = None

        def do_GET(self):
            wanted = self.headers.get("Range")
            Site.asked.append((self.path, wanted))
            content = Site.files.get(self.path)
            if self.path in Site.moved:
                self.send_response(302)
                self.send_header("Location", Site.moved[self.path])
                self.send_header("Content-Length", "0")
                return self.end_headers()
            if content is None:
                return self.send_error(404)
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(len(content) - begin))
            self.send_header("ETag", '"1"')
            self.end_headers()
            self.wfile.write(content[begin : Site.cut])

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        Site.address = f"http://127.0.0.1:{http.server_port}"
        publish(Site, {"model.pt": WEIGHTS, "settings.json": b"{}"})
        yield Site
        http.shutdown()


def entry(name: str, content: bytes) -> dict[str, object]:
    return {"name": name, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def publish(site, contents: dict[str, bytes], **card) -> str:
    """Serve a model under /mine; return the hash of its card."""
    site.files.update({f"/mine/{name}": content for name, content in contents.items()})
    text = json.dumps({"files": [entry(*file) for file in contents.items()]} | card).encode()
    site.files[f"/mine/{CARD}"] = text
    return hashlib.sha256(text).hexdigest()


def test_a_model_is_downloaded_once_by_its_address(site):
    folder = model_path(f"{site.address}/mine")
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.pt", "settings.json"]
    assert (folder / "model.pt").read_bytes() == WEIGHTS
    asked = len(site.asked)
    assert model_path(f"{site.address}/mine/") == model_path(f"{site.address}/mine/{CARD}") == folder
    assert len(site.asked) == asked and folder.parent == published.cache()


def test_a_model_is_found_by_its_name_in_an_index(site, monkeypatch):
    digest = publish(site, {"model.pt": WEIGHTS})
    site.files["/models.json"] = json.dumps({"models": {"pages": {"url": "mine/", "sha256": digest}}}).encode()
    assert str(model_path("pages")) == "pages"  # without an index, a path
    monkeypatch.setenv(INDEX, f"{site.address}/models.json")
    assert (model_path("pages") / "model.pt").read_bytes() == WEIGHTS
    with pytest.raises(InputError, match=r"other: no such file, and no such model in .*models.json \(pages\)"):
        model_path("other")
    site.files["/models.json"] = json.dumps({"models": {"pages": {"url": "mine/", "sha256": "0" * 64}}}).encode()
    with pytest.raises(InputError, match="its SHA-256 is .*, expected 000"):
        model_path("pages")
    site.files["/models.json"] = b'{"models": {"pages": {"url": "mine/"}}}'
    with pytest.raises(InputError, match="expected its url, and the sha256"):
        model_path("pages")
    site.files["/models.json"] = b"<html>"
    with pytest.raises(InputError, match="no JSON"):
        model_path("pages")


def test_an_address_survives_being_a_path(site):
    place = local_path(f"{site.address}/mine")
    assert "//" not in str(place) and (model_path(place) / "model.pt").read_bytes() == WEIGHTS


def test_errors_are_told_in_one_line(site, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("A line.")
    for address, message in (("http://example.org/x", "expected https://"), (f"{site.address}/other", "404")):
        assert main(["translate", address, "text.txt", "-o", "out.txt"]) == 1
        told = capsys.readouterr().err
        assert message in told and told.startswith("error: http") and len(told.splitlines()) == 1, told


def test_redirects_do_not_leave_tls(site):
    for path in (f"/mine/{CARD}", "/mine/model.pt"):
        kept = site.files.pop(path)
        site.moved[path] = "http://intern.test/x"
        with pytest.raises(InputError, match="http://intern.test/x: expected https://"):
            model_path(f"{site.address}/mine")
        site.files[path] = kept
        del site.moved[path]
    site.moved["/mine/model.pt"] = f"{site.address}/there"
    site.files["/there"] = site.files.pop("/mine/model.pt")
    assert (model_path(f"{site.address}/mine") / "model.pt").read_bytes() == WEIGHTS


def test_a_model_that_is_packed_again_leaves_nothing_of_the_first(site):
    site.cut = 500_000
    with pytest.raises(InputError, match="broke off"):
        model_path(f"{site.address}/mine")
    site.cut = None
    publish(site, {"checkpoint_best.pt": WEIGHTS[::-1], "settings.json": b"{}"})
    folder = model_path(f"{site.address}/mine")
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint_best.pt", "model.json", "settings.json"]


def test_places_that_cannot_be_written_are_told(site, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cannot be kept in ~/.cache/fairseq_lasformer"):
        model_path(f"{site.address}/mine")


def test_an_interrupted_download_goes_on(site):
    site.cut = 500_000
    with pytest.raises(InputError, match="broke off after 500000 of 768000 bytes; try again"):
        model_path(f"{site.address}/mine")
    assert [path.suffix for path in published.cache().iterdir() if path.is_dir()] == [".part"]
    site.cut = None
    site.asked.clear()
    assert (model_path(f"{site.address}/mine") / "model.pt").read_bytes() == WEIGHTS
    assert ("/mine/model.pt", "bytes=500000-") in site.asked


def test_what_was_altered_is_never_read(site):
    digest = publish(site, {"model.pt": WEIGHTS})
    site.files["/mine/model.pt"] = WEIGHTS[:-1] + b"?"
    with pytest.raises(InputError, match="model.pt.part: its sha256 is .*, expected"):
        model_path(f"{site.address}/mine")
    assert not any((path / CARD).exists() for path in published.cache().iterdir())
    assert not list(published.cache().rglob("model.pt*"))  # the next try starts over
    site.files[f"/mine/{CARD}"] = site.files[f"/mine/{CARD}"] + b" "
    with pytest.raises(InputError, match=f"expected {digest}; not the model"):
        model_path(f"{site.address}/mine#sha256={digest}")
    with pytest.raises(InputError, match="expected #sha256= and 64 digits"):
        model_path(f"{site.address}/mine#sha256=12")


def test_what_is_too_large_is_not_read_on(site, monkeypatch):
    site.files["/mine/model.pt"] = WEIGHTS + b"more"
    with pytest.raises(InputError, match="768004 bytes, expected 768000"):
        model_path(f"{site.address}/mine")
    monkeypatch.setattr(published, "LARGEST", 768_001)
    with pytest.raises(InputError, match="a model has at most"):
        model_path(f"{site.address}/mine")
    monkeypatch.setattr(published, "LARGEST_CARD", 50)
    with pytest.raises(InputError, match="more than 0 MB; expected a list of files"):
        model_path(f"{site.address}/mine")


@pytest.mark.parametrize(
    "files",
    [
        "no list",
        [],
        [{"name": "../x", "size": 1, "sha256": "0" * 64}],
        [{"name": ".x", "size": 1, "sha256": "0" * 64}],
        [{"name": CARD, "size": 1, "sha256": "0" * 64}],
        [{"name": "x", "size": True, "sha256": "0" * 64}],
        [{"name": "a.part", "size": 1, "sha256": "0" * 64}],
        [{"name": "x", "size": 10**400, "sha256": "0" * 64}],
        [{"name": "x", "size": -1, "sha256": "0" * 64}],
        [{"name": "x", "size": 1, "sha256": "0"}],
        [{"name": "x", "size": 1, "sha256": "0" * 64}] * 2,
        ["x"],
    ],
)
def test_cards_of_other_kinds_are_refused(site, files):
    publish(site, {}, files=files)
    with pytest.raises(InputError, match="names no files|expected a file's name, size and sha256"):
        model_path(f"{site.address}/mine")
    assert not published.cache().exists()


def test_other_addresses_need_tls(site, tmp_path):
    with pytest.raises(InputError, match="expected https://"):
        model_path("http://example.org/mine")
    with pytest.raises(InputError, match="not an address"):
        model_path("https://\ud800.org/mine")
    with pytest.raises(InputError, match="404"):
        model_path(f"{site.address}/other")
    (tmp_path / "mine").mkdir()
    assert model_path(tmp_path / "mine") == tmp_path / "mine"  # a path stays one


@pytest.mark.parametrize(
    "card, expected",
    [
        ({"measured": {"tokens_per_second": 50}}, 50.0),
        ({"measured": {"tokens_per_second": -1}}, 0.0),
        ({"measured": {"tokens_per_second": "fast"}}, 0.0),
        ({"measured": [1]}, 0.0),
        ({}, 0.0),
    ],
)
def test_long_work_says_how_long_it_takes(card, expected, tmp_path, capsys):
    (tmp_path / "model.json").write_text(json.dumps(card))
    assert speed(tmp_path) == expected and speed(tmp_path / "nothing") == 0.0
    args = Translate(model=tmp_path)
    for device, tokens in (("cuda", 1 << 30), ("cpu", 4400), ("cpu", 9000)):
        with progress_bar(total=0) as bar:
            growing(args, bar, device)(100, tokens)
            assert bar.total == 100
    said = re.findall("about .*", capsys.readouterr().err)
    assert said == (["about 3 minutes, by the 50 tokens a second of its model.json"] if expected else [])
