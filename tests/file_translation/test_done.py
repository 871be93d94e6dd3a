"""The record of translated files."""

from __future__ import annotations

import pytest

from fairseq_lasformer.evaluation.doubts import Facts
from fairseq_lasformer.file_translation.done import Done, Made


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_run_that_is_killed_while_it_replaces_a_file_knows_it_again(tmp_path, monkeypatch, point):
    target, path = tmp_path / "a.txt", tmp_path / "record"
    Done(path).place("1", target, Made(b"old"))

    def killed(*_, **__):
        raise KeyboardInterrupt

    done = Done(path)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if point == "before":
            patch.setattr("fairseq_lasformer.file_translation.done.replacing", killed)
        else:
            patch.setattr(done, "_held", killed)
        done.place("2", target, Made(b"new"))
    assert target.read_text() == ("old" if point == "before" else "new")
    done = Done(path)
    assert not done.has("2", target)
    done.check(target, set(), False)
    done.place("3", target, Made(b"newest", facts=Facts(lines=3)))
    assert Done(path).has("3", target) and Done(path).facts("3", target) == Facts(lines=3)
