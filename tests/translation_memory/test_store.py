"""The file of a memory: lookup of sentences, and choice among the matches."""

from __future__ import annotations

import contextlib
import sqlite3
import threading

import pytest

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.translation_memory import matching, store
from fairseq_lasformer.translation_memory.matching import Matcher
from fairseq_lasformer.translation_memory.remembering import Memory
from fairseq_lasformer.translation_memory.store import MemoryStore, StoredPair, words_of

PAIRS = [
    StoredPair("The device is broken.", "Das Gerät ist kaputt."),
    StoredPair("The device is in the box.", "Das Gerät ist in der Kiste."),
    StoredPair("The box is green.", "Die Kiste ist grün."),
    StoredPair("Hello!", "Hallo!"),
]


@pytest.fixture
def memory(tmp_path):
    path = tmp_path / "m.tm"
    made = MemoryStore(path, ("en", "de"), writable=True)
    assert made.add(PAIRS) == len(PAIRS)
    made.finish()
    made.close()
    return path


def test_words_of_sentences_in_every_script():
    assert words_of("The device's 2nd_part, Straße!") == ["the", "device", "s", "2nd", "part", "strasse"]
    assert words_of("我爱你 A") == ["我爱", "爱你", "a"] and words_of("我") == ["我"]
    assert words_of("… !") == []


def test_pairs_are_held_once_and_found_again(memory):
    again = MemoryStore(memory, writable=True)
    assert again.languages == ("en", "de") and len(again) == 4
    assert again.add([PAIRS[0], StoredPair("Hello!", "Guten Tag!")]) == 1
    assert again.exact("Hello!") == "Guten Tag!" and again.exact("hello!") is None
    again.close()


def test_the_most_similar_sentence_comes_first(memory):
    found = Matcher(MemoryStore(memory)).find("The device is in a box.")
    assert [match.target for match in found][:2] == ["Das Gerät ist in der Kiste.", "Das Gerät ist kaputt."]
    assert 0.7 < found[0].similarity < 1 and found[0].similarity > found[1].similarity
    assert set(found[0].shared) == {"the", "device", "is", "in", "box"}
    assert found[0].shared["device"] > found[0].shared["is"]  # fewer sentences contain it
    for text in ("Hello!", "The device is broken."):
        assert Matcher(MemoryStore(memory)).find(text)[0].similarity == pytest.approx(1.0)
    assert Matcher(MemoryStore(memory)).find("… quite other words") == []
    assert Matcher(MemoryStore(memory)).find('" AND NEAR(x) *') == []


def test_matches_show_different_words(tmp_path):
    made = MemoryStore(":memory:", ("en", "de"), writable=True)
    texts = ["press the red key", "press the red key now", "press the red key twice", "a green lamp", "press it"]
    made.add([StoredPair(text, text.upper()) for text in texts])
    found = Matcher(made).find("press the red key and lamp", 2)
    assert found[0].source in texts[:3] and found[1].source == "a green lamp"
    found = Matcher(made).find("lamp: press the red key", 1)  # the most similar one, not the one that shares the most
    made.add([StoredPair("key lamp red the press x y z x y z x y z x y z x y z", "…")])
    assert Matcher(made).find("lamp: press the red key", 1)[0].source == found[0].source == "press the red key"


def test_frequent_words_are_looked_up_together(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FREQUENT", 20)
    monkeypatch.setattr(matching, "FREQUENT", 20)
    made = MemoryStore(":memory:", ("en", "de"), writable=True)
    made.add([StoredPair(f"red n{i}", f"rot {i}") for i in range(100)])
    made.add([StoredPair(f"ball n{i}", f"Ball {i}") for i in range(100)])
    made.add([StoredPair("the red ball", "der rote Ball")])
    made.finish()
    assert made.frequent() == {"red": 101, "ball": 101}
    monkeypatch.setattr(made, "holding", lambda words, most=20: MemoryStore.holding(made, words, most))
    assert Matcher(made).find("a red ball")[0].target == "der rote Ball"  # beyond both words' lists


def test_a_reader_reads_beside_a_writer(memory):
    writer, reader = MemoryStore(memory, writable=True), Memory(memory, ("en", "de"))
    found = []
    thread = threading.Thread(target=lambda: found.append(reader.exact_lines({1: "Hello!", 2: "Bye!"})))
    with writer.database:
        writer.database.execute("DELETE FROM frequent")  # begins a transaction
        thread.start()
        thread.join(10)
        assert found == [{1: "Hallo!"}]
    writer.add([StoredPair("Bye!", "Tschüs!")])
    assert reader.exact_lines({2: "Bye!"}) == {2: "Tschüs!"}
    assert Matcher(MemoryStore(memory)).find("Bye!")[0].target == "Tschüs!"
    writer.close()


def test_what_is_no_memory_is_refused(memory, tmp_path):
    with pytest.raises(InputError, match=r"is a memory for en-de, not de-en"):
        MemoryStore(memory, ("de", "en"))
    with pytest.raises(InputError, match="no such memory"):
        MemoryStore(tmp_path / "none.tm")
    (tmp_path / "text.tm").write_text("no database " * 100)
    with pytest.raises(InputError, match="damaged, or not a memory"):
        MemoryStore(tmp_path / "text.tm")
    with sqlite3.connect(tmp_path / "other.tm") as other:
        other.execute("CREATE TABLE pairs(id)")
    with pytest.raises(InputError, match="not a translation memory"):
        MemoryStore(tmp_path / "other.tm")
    with sqlite3.connect(memory) as database:
        database.execute("CREATE TRIGGER mine AFTER INSERT ON pairs BEGIN DELETE FROM pairs; END")
    with pytest.raises(InputError, match="unexpected tables"):
        MemoryStore(memory, writable=True)
    with sqlite3.connect(memory) as database:
        database.execute("DROP TRIGGER mine")
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(InputError, match="version 9; this program reads version 1"):
        MemoryStore(memory)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS k, i AS v FROM n"


@pytest.mark.parametrize(
    "code",
    [
        "CREATE TRIGGER words_a AFTER INSERT ON pairs BEGIN UPDATE pairs SET target = 'PWNED'; END",
        f"CREATE TRIGGER words_b AFTER INSERT ON pairs BEGIN INSERT INTO files SELECT k, 1, v FROM ({ENDLESS}); END",
        "CREATE INDEX words_i ON pairs(hex(source))",
        "CREATE TABLE words_more(a)",
        f"DROP TABLE files; CREATE VIEW files AS {ENDLESS}",
        "PRAGMA writable_schema = ON; DELETE FROM sqlite_master WHERE name = 'words_config'; "
        f"PRAGMA writable_schema = OFF; CREATE VIEW words_config AS {ENDLESS}",
    ],
    ids=["trigger", "endless trigger", "index", "table", "view", "view in the place of the index"],
)
def test_code_in_a_memory_is_refused(memory, code):
    with sqlite3.connect(memory) as database:
        database.execute("PRAGMA trusted_schema = ON")
        with contextlib.suppress(sqlite3.OperationalError):  # newer versions defend their index
            database.executescript(code)
        changed = database.execute("SELECT name, sql FROM sqlite_master").fetchall()
    for writable in (False, True):
        with pytest.raises(InputError, match="unexpected tables|not a memory"):
            MemoryStore(memory, writable=writable)
    with sqlite3.connect(memory) as database:
        assert database.execute("SELECT name, sql FROM sqlite_master").fetchall() == changed


def test_no_query_is_endless(memory, monkeypatch):
    monkeypatch.setattr(store, "_MOST_STEPS", 3)
    with pytest.raises(InputError, match=r"m\.tm: cannot be read or written as a memory \(interrupted\)"):
        MemoryStore(memory)._rows(ENDLESS)


def test_a_memory_of_odd_values_is_refused(memory):
    with sqlite3.connect(memory) as database:
        database.execute("INSERT INTO frequent VALUES ('a', 'many')")
    with pytest.raises(InputError, match="counts of words are not numbers"):
        Matcher(MemoryStore(memory))
    with sqlite3.connect(memory) as database:
        database.execute("DELETE FROM settings")
    with pytest.raises(InputError, match="does not name its languages"):
        MemoryStore(memory)


def test_a_damaged_index_is_told_in_one_line(memory):
    data = bytearray(memory.read_bytes())
    with sqlite3.connect(memory) as database:
        size = database.execute("PRAGMA page_size").fetchone()[0]
        roots = dict(database.execute("SELECT name, rootpage FROM sqlite_master"))
    for name in ("words_data", "pairs"):
        damaged = data[:]
        start = (roots[name] - 1) * size
        damaged[start : start + size] = b"\xee" * size
        memory.write_bytes(damaged)
        with pytest.raises(InputError, match="damaged|cannot be read") as refused:
            Matcher(MemoryStore(memory)).find("The device is broken.")
        assert "\n" not in str(refused.value)
