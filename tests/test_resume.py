"""Resume marks: finished work is not done again, and nothing else counts as finished."""

from __future__ import annotations

import pytest

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.resume import FILE, Ledger, Progress, key_of


def test_a_stage_is_done_once_also_by_a_later_process(tmp_path, capsys):
    ran: list[str] = []
    progress = Progress(tmp_path / "out", key_of("a"))
    assert not progress.exists and not progress.matches
    progress.begin()
    progress.run("one", lambda: ran.append("one"))
    again = Progress(tmp_path / "out", key_of("a"))
    assert again.exists and again.matches and list(again.seconds) == ["one"]
    again.run("one", lambda: ran.append("one"), tell=True)
    again.run("two", lambda: ran.append("two"), tell=True)
    assert ran == ["one", "two"] and capsys.readouterr().err == "one: already done\ntwo ...\n"


def test_a_stage_that_fails_is_not_done(tmp_path):
    progress = Progress(tmp_path, key_of("a"))
    progress.begin()
    with pytest.raises(ZeroDivisionError):
        progress.run("one", lambda: 1 // 0)
    assert not Progress(tmp_path, key_of("a")).done("one")


def test_with_other_settings_a_stage_is_done_again(tmp_path):
    progress, ran = Progress(tmp_path, key_of("a")), list[str]()
    progress.begin()
    for beam in ("5", "5", "2", "2"):
        progress.run("translate", lambda b=beam: ran.append(b), of=beam)
    assert ran == ["5", "2"] and not progress.done("translate") and progress.done("translate", "2")


def test_other_work_and_damaged_marks_match_nothing(tmp_path):
    Progress(tmp_path, key_of("a")).begin()
    other = Progress(tmp_path, key_of("b"))
    assert other.exists and not other.matches and not other.seconds
    for damage in ("", "{", "[]", '[""]\n', '["one", 3, "x"]\n', "\x00\n", '["", "x"'):
        (tmp_path / FILE).write_text(damage)
        assert Progress(tmp_path, "x").exists and not Progress(tmp_path, "x").matches, damage


def test_another_job_begins_with_no_stage_done(tmp_path):
    first = Progress(tmp_path, "a")
    first.begin()
    first.finish("one")
    second = Progress(tmp_path, "b")
    second.begin()
    assert not Progress(tmp_path, "b").done("one") and not Progress(tmp_path, "a").matches
    second.finish("two")
    assert [*Progress(tmp_path, "b").seconds] == ["two"] == [*Progress(tmp_path, "a").known]


def test_a_torn_line_is_ignored_and_what_follows_counts(tmp_path):
    ledger = Ledger(tmp_path / "x")
    ledger.add("a", 1, "b")
    ledger.path.write_bytes(ledger.path.read_bytes() + b'["c", 2, "to')
    again = Ledger(tmp_path / "x")
    assert again.values == {"a": [1, "b"]}
    again.add("a", 3)
    assert Ledger(tmp_path / "x").values == {"a": [3]} == again.values
    assert [name for name, _ in Ledger(tmp_path / "x").entries] == ["a", "a"]
    for line in (b"\xff\n", b"[1]\n", b"{}\n", b"[" * 100_000 + b"\n", b'"a"\n'):
        (tmp_path / "y").write_bytes(line + b'["a"]\n')
        assert Ledger(tmp_path / "y").values == {"a": []}


def test_keys_tell_apart_what_results_depend_on(tmp_path):
    keys = [
        key_of(*parts) for parts in (("a", "b"), ("ab",), (["a", "b"],), ("a", "b", None), (tmp_path,), ({"x": 1},))
    ]
    assert len(set(keys)) == len(keys) and key_of({"x": 1, "y": 2}) == key_of({"y": 2, "x": 1})


def test_results_stay_bound_to_what_they_were_made_from(tmp_path):
    Progress(tmp_path, "job").open("other job")
    Progress(tmp_path, "job").bind("data", "one", "other data")
    again = Progress(tmp_path, "job")
    again.bind("data", "one", "other data")
    assert len(again.ledger.entries) == 2
    assert again.seconds == {} and again.known == set()
    with pytest.raises(InputError, match="other data"):
        again.bind("data", "two", "other data")
