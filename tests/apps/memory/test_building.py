"""Memories built from files: every format, every pair counted, killed and resumed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal

import pytest

from fairseq_lasformer.apps.memory import building, tmx
from fairseq_lasformer.apps.memory.building import build
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.cli.main import main
from fairseq_lasformer.translation_memory.store import MemoryStore

TMX = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en-US"><seg>Press <bpt i="1">&lt;b></bpt>the <hi>red</hi><ept i="1">&lt;/b></ept> key &amp;
wait.</seg></tuv>
<tuv xml:lang="DE"><seg>Drücken Sie die rote Taste
 und warten Sie.</seg></tuv><tuv xml:lang="fr"><seg>Non.</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Only English.</seg></tuv></tu>
<tu><tuv lang="de"><seg>Ja.</seg></tuv><tuv lang="en_GB"><seg>Yes.</seg></tuv></tu>
</body></tmx>
"""
PO = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

msgid "Open"
msgstr "Öffnen"

#, fuzzy
msgid "Close"
msgstr "Schließen"

msgid "Save"
msgstr ""
"""


def held(path):
    store = MemoryStore(path)
    rows = store.database.execute("SELECT source, target FROM pairs ORDER BY id").fetchall()
    store.close()
    return rows


def test_every_format_is_read_and_every_pair_counted(tmp_path):
    (tmp_path / "a.tmx").write_text(TMX)
    (tmp_path / "b.tsv").write_text("Yes.\tJa.\nNo.\tNein.\tcomment\n\nEmpty\t\n")
    (tmp_path / "c.po").write_text(PO)
    (tmp_path / "d.en").write_text("One.\nTwo.\n\nThree.\n")
    (tmp_path / "d.de").write_text("Eins.\nZwei.\n\nDrei.\n")
    out = tmp_path / "m.tm"
    files = [tmp_path / name for name in ("a.tmx", "b.tsv", "c.po", "d")]
    found = build(out, files, ("en", "de"))
    assert (found.read, found.added, found.known, found.left_out, found.held) == (10, 7, 1, 2, 7)
    assert held(out) == [
        ("Press the red key & wait.", "Drücken Sie die rote Taste und warten Sie."),
        ("Yes.", "Ja."),
        ("No.", "Nein."),
        ("Open", "Öffnen"),
        ("One.", "Eins."),
        ("Two.", "Zwei."),
        ("Three.", "Drei."),
    ]
    again = build(out, files)
    assert (again.read, again.before, again.held) == (0, 10, 7) and "10 read by an earlier run" in again.summary()
    assert build(out, [tmp_path / "c.po"], unreviewed=True).added == 1
    assert list(tmp_path.glob("m.tm*")) == [out]  # one file, which can be copied


def test_xliff_is_read(tmp_path):
    (tmp_path / "a.xlf").write_text(
        '<xliff version="1.2"><file source-language="en" target-language="de"><body><trans-unit id="1"><source>Yes'
        "</source><target>Ja</target></trans-unit></body></file></xliff>"
    )
    assert build(tmp_path / "m.tm", [tmp_path / "a.xlf"], ("en", "de")).added == 1
    with pytest.raises(InputError, match="a.xlf: names the language de, but the memory is for en-fr"):
        build(tmp_path / "n.tm", [tmp_path / "a.xlf"], ("en", "fr"))


def test_a_killed_build_resumes_without_loss(tmp_path, monkeypatch):
    (tmp_path / "a.tsv").write_text("".join(f"line {i}\tZeile {i}\n" for i in range(100)))
    monkeypatch.setattr(building, "AT_ONCE", 10)
    add, calls = MemoryStore.add, []

    def dying(self, pairs, *args, **options):
        calls.append(len(pairs))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return add(self, pairs, *args, **options)

    monkeypatch.setattr(MemoryStore, "add", dying)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "m.tm", [tmp_path / "a.tsv"], ("en", "de"))
    assert len(held(tmp_path / "m.tm")) == 30
    monkeypatch.setattr(MemoryStore, "add", add)
    found = build(tmp_path / "m.tm", [tmp_path / "a.tsv"])
    assert (found.before, found.read, found.added, found.held) == (30, 70, 70, 100)
    assert held(tmp_path / "m.tm") == [(f"line {i}", f"Zeile {i}") for i in range(100)]


def in_child(work):
    """Run a function in another process, which ends with it."""
    if child := os.fork():
        os.waitpid(child, 0)
        return
    with contextlib.suppress(InputError):
        work()
    os._exit(0)


@pytest.mark.parametrize("statement", range(14))
def test_a_memory_whose_creation_was_killed_is_built(tmp_path, monkeypatch, statement):
    (tmp_path / "a.tsv").write_text("line\tZeile\n")
    rows, left = MemoryStore._rows, [statement]

    def dying(self, query, *values):
        found = rows(self, query, *values)
        if query.startswith(("BEGIN", "CREATE", "PRAGMA app", "PRAGMA user", "PRAGMA page", "SELECT 1")):
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
        return found

    def create():
        MemoryStore._rows = dying
        build(tmp_path / "m.tm", [tmp_path / "a.tsv"], ("en", "de"))

    in_child(create)
    assert build(tmp_path / "m.tm", [tmp_path / "a.tsv"], ("en", "de")).held == 1


@pytest.mark.parametrize("size", [0, 4096, 20_000, 60_000, 200_000])
def test_a_memory_that_did_not_fit_the_disk_is_built_later(tmp_path, size):
    (tmp_path / "a.tsv").write_text("".join(f"line {i} {'x' * 50}\tZeile {i}\n" for i in range(2000)))

    def create():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        build(tmp_path / "m.tm", [tmp_path / "a.tsv"], ("en", "de"))
        os._exit(1)

    in_child(create)
    assert build(tmp_path / "m.tm", [tmp_path / "a.tsv"], ("en", "de")).held == 2000


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ('encoding="shift_jis"', "its encoding cannot be read"),
        ('encoding="foo"', "its encoding cannot be read"),
        ('encoding="undefined"', "its encoding cannot be read"),
        ('encoding="utf-8"', "line 2: the entity &uuml; is not declared"),
    ],
)
def test_encodings_and_entities_that_are_not_known_are_refused(tmp_path, head, message):
    path = tmp_path / "a.tmx"
    body = "<tmx><body><tu><tuv><seg>M&uuml;nchen</seg></tuv></tu></body></tmx>"
    path.write_text(f'<?xml version="1.0" {head}?><!DOCTYPE tmx SYSTEM "tmx14.dtd">\n{body}')
    with pytest.raises(InputError, match=message):
        list(tmx.pairs(path, "en", "de"))


def test_entities_and_depth_are_refused(tmp_path):
    path = tmp_path / "a.tmx"
    path.write_text('<!DOCTYPE tmx [<!ENTITY a "aaaa">]><tmx><body><tu/></body></tmx>')
    with pytest.raises(InputError, match="^it declares an entity"):
        list(tmx.pairs(path, "en", "de"))
    path.write_text("<tmx>" + "<a>" * 300)
    with pytest.raises(InputError, match="^[^(]*nested more than 256 deep"):
        list(tmx.pairs(path, "en", "de"))
    path.write_text("<html/>")
    with pytest.raises(InputError, match="^not a TMX file"):
        list(tmx.pairs(path, "en", "de"))
    path.write_text(TMX[:-10])
    with pytest.raises(InputError, match="not well-formed"):
        list(tmx.pairs(path, "en", "de"))


def test_a_large_file_is_read_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(tmx, "CHUNK", 7)
    (tmp_path / "a.tmx").write_bytes(TMX.replace("utf-8", "utf-16").encode("utf-16"))
    found = list(tmx.pairs(tmp_path / "a.tmx", "en", "de-AT"))
    assert found[1:] == [("Only English.", ""), ("Yes.", "Ja.")]
    assert found[0][0].split() == ["Press", "the", "red", "key", "&", "wait."]


@pytest.mark.parametrize(
    "words, message",
    [
        (["build", "m.tm"], "name the files"),
        (["build", "m.tm", "a.tsv"], "name the languages"),
        (["build", "m.tm", "a.tsv", "-s", "en"], "name both languages"),
        (["build", "m.tm", "none.tsv", "-s", "en", "-t", "de"], "neither none.tsv nor none.tsv.en exists"),
        (["build", "m.tm", "a.odt", "-s", "en", "-t", "de"], "expected .tmx, a table"),
        (["build", "m.tm", "half", "-s", "en", "-t", "de"], "half.de: does not exist"),
        (["build", "m.tm", "bad.tsv", "-s", "en", "-t", "de"], "bad.tsv: line 2: expected source, tab, target"),
        (["build", "m.tm", "latin.tsv", "-s", "en", "-t", "de"], "latin.tsv: not UTF-8"),
        (["find", "m.tm", "hello"], "m.tm: no such memory"),
        (["terms", "m.tm", "a.tsv"], "a.tsv: memory terms takes a memory alone"),
    ],
)
def test_mistakes_are_told_in_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("a\tb\n")
    (tmp_path / "a.odt").write_text("")
    (tmp_path / "half.en").write_text("a\n")
    (tmp_path / "bad.tsv").write_text("a\tb\nc\n")
    (tmp_path / "latin.tsv").write_bytes("ä\tb\n".encode("latin-1"))
    assert main(["memory", *words, "--quiet"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


def test_sentences_are_looked_up(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("The red key.\tDie rote Taste.\nA\tB\n")
    out = str(tmp_path / "m.tm")
    assert main(["memory", "build", out, str(tmp_path / "a.tsv"), "-s", "en", "-t", "de"]) == 0
    assert "2 pairs read, 2 added, 2 in the memory now" in capsys.readouterr().err
    assert main(["memory", "find", out, "the red key", "nothing"]) == 0
    rows = capsys.readouterr().out.split("\n")
    assert rows[0].endswith("%\tThe red key.\tDie rote Taste.") and rows[1:] == ["", "", ""]
