"""The record of translated files."""

from __future__ import annotations

import pytest

from fairseq_lasformer.apps.files.done import Done, Made
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.evaluation.doubts import Facts


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_run_that_is_killed_while_it_replaces_a_file_knows_it_again(tmp_path, monkeypatch, point):
    target, path = tmp_path / "a.txt", tmp_path / "record"
    Done(path).place("1", tmp_path / "in.txt", target, Made(b"old"))

    def killed(*_, **__):
        raise KeyboardInterrupt

    done = Done(path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if point == "before":
            patch.setattr("fairseq_lasformer.apps.files.done.replacing", killed)
        else:
            patch.setattr(done, "_held", killed)
        done.place("2", tmp_path / "in.txt", target, Made(b"new"))
    assert target.read_text() == ("old" if point == "before" else "new")
    done = Done(path)
    assert not done.has("2", target)
    done.check(tmp_path / "in.txt", target, False)
    done.place("3", tmp_path / "in.txt", target, Made(b"newest", facts=Facts(lines=3)))
    assert Done(path).has("3", target) and Done(path).facts("3", target) == Facts(lines=3)


def test_a_translation_is_replaced_by_that_of_the_same_file_alone(tmp_path):
    one, two, target = tmp_path / "one/a.txt", tmp_path / "two/a.txt", tmp_path / "out/a.txt"
    done = Done(tmp_path / "record")
    done.place("1", one, target, Made(b"first"))
    for ledger in (done, Done(tmp_path / "record")):
        ledger.check(one, target, False)
        ledger.check(two, target, True)
        with pytest.raises(InputError, match=r"is the translation of another file, .*one/a.txt; --overwrite"):
            ledger.check(two, target, False)
    assert done.facts("1", target) == Facts()
    target.write_text("by hand")
    with pytest.raises(InputError, match="has been changed"):
        done.check(one, target, False)
