"""Folders translated by workers in other processes: only the command puts files in place, once, despite kills."""

from __future__ import annotations

import subprocess
import sys
import time
from functools import partial

import pytest
from helpers import run

from fairseq_lasformer.apps.files import file_jobs, files_worker
from fairseq_lasformer.apps.files.done import Done
from fairseq_lasformer.apps.files.file_jobs import plan, translate_elsewhere
from fairseq_lasformer.apps.files.files_worker import Elsewhere, Job, Options
from fairseq_lasformer.apps.files.translate_options import Translate, sent, worker_of
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.executors import InProcess, Resources

ONE = Resources()


@pytest.fixture
def folder(tmp_path):
    top = tmp_path / "in"
    (top / "sub").mkdir(parents=True)
    for i in range(6):
        (top / ("sub" if i % 2 else "") / f"{i}.txt").write_text(f"w{i + 1} w2\nw3 w{i + 4}\n")
    return top


def tree(out):
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and ".lasformer" not in path.parts
    }


@pytest.fixture
def one_by_one(monkeypatch):
    monkeypatch.setattr(file_jobs, "TOGETHER", 1)
    monkeypatch.setattr(file_jobs, "MINIMUM", 1)


@pytest.fixture
def make(trained_folder):
    return partial(worker_of, sent(Translate(model=trained_folder, beam=2, device="cpu")))


def go(make, jobs, state, model=("", ""), check=0, options=Options(), engine=None, settings=("m",)):  # noqa: B008
    worker = Elsewhere(make, state, options, model)
    return list(translate_elsewhere(engine or InProcess(), worker, jobs, state, settings, options, ONE, check))


@pytest.mark.command
def test_workers_write_what_one_process_writes(trained_folder, folder, tmp_path):
    command = ("lasformer", "translate", trained_folder, folder, "--beam", 2, "--device", "cpu")
    run(*command, "-o", tmp_path / "one")
    done = run(*command, "-o", tmp_path / "two", "--jobs", 2)
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    assert len(one) == 6 and one == two and "2 sentences" in done.stderr
    again = run(*command, "-o", tmp_path / "two", "--jobs", 2)
    assert again.stderr.count("already translated") == 6
    assert [path.name for path in (tmp_path / "two" / ".lasformer" / "all").iterdir()] == [".lasformer-done"]


@pytest.mark.command
def test_a_cluster_writes_the_same_and_resumes(trained_folder, folder, tmp_path):
    pytest.importorskip("ray")
    (folder / "bad.txt").write_bytes(b"\0")
    command = ("lasformer", "translate", trained_folder, folder, "--beam", 2, "--device", "cpu")
    run(*command, "-o", tmp_path / "one", check=False)
    ray = [*command, "-o", tmp_path / "ray", "--jobs", 2, "--engine", "ray"]
    words = [sys.executable, "-m", "fairseq_lasformer.cli.main", *map(str, ray[1:])]
    killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline, made = time.monotonic() + 240, tmp_path / "ray" / ".lasformer" / "all" / files_worker.MADE
    while not any(made.glob("*")) and not tree(tmp_path / "ray") and killed.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    done = run(*ray, check=False)
    assert done.returncode == 1 and "bad.txt: is not text" in done.stderr and "1 of 7 files" in done.stderr
    assert tree(tmp_path / "ray") == tree(tmp_path / "one") and not made.exists()


@pytest.mark.command
def test_what_workers_left_is_put_in_place_without_being_made_again(make, folder, tmp_path, one_by_one):
    """The command is killed when workers have made three files, one of which is in place."""
    out, state = tmp_path / "out", tmp_path / "state"
    jobs = plan(folder, out).jobs
    options = Options()
    stop = iter(
        translate_elsewhere(InProcess(), Elsewhere(make, state, options, ("", "")), jobs, state, (), options, ONE)
    )
    next(stop)
    stop.close()
    assert len(tree(out)) == 1
    worker = Elsewhere(make, state, options, ("", ""))
    worker.begin()
    done = Done(state / file_jobs.DONE)
    for batch in list(file_jobs._batches(jobs, done, options, (), 1))[1:3]:
        list(worker(file_jobs._without_data(batch, state / files_worker.MADE), lambda n: None))
    assert len(tree(out)) == 1 and len(list((state / files_worker.MADE).iterdir())) == 4
    seen = []

    class Counting(InProcess):
        def map(self, worker, items, *rest, **more):
            items = list(items)
            seen.extend(one.job.source.name for item in items for one in item.waiting)
            return super().map(worker, items, *rest, **more)

    results = go(make, jobs, state, engine=Counting(), settings=())
    assert len(seen) == 3 and len(results) == 6 and not any(result.error for result in results)
    whole = tmp_path / "whole"
    go(make, plan(folder, whole).jobs, tmp_path / "other", settings=())
    assert tree(out) == tree(whole) and not (state / files_worker.MADE).exists()


@pytest.mark.command
def test_a_second_translation_that_differs_ends_the_run(make, folder, tmp_path, one_by_one):
    out, state = tmp_path / "out", tmp_path / "state"
    assert len(go(make, plan(folder, out).jobs, state, check=2)) == 6  # three are made twice, and reported once
    assert len(tree(out)) == 6 and not (state / files_worker.MADE).exists()

    class Falsifying(InProcess):
        """A worker whose second translation of a file is that of a machine with a different model."""

        def map(self, worker, items, *rest, **more):
            for results in super().map(worker, items, *rest, **more):
                for result in results:
                    if result.again and "4" in result.job.source.name:
                        result.made.write_text("x")
                yield results

    other = plan(folder, tmp_path / "second").jobs
    with pytest.raises(InputError, match=r"4\.txt: was translated differently a second time"):
        go(make, other, tmp_path / "s", check=2, engine=Falsifying())


def test_another_model_on_a_worker_is_refused(make, trained_folder, folder, tmp_path):
    checkpoint = trained_folder / "checkpoint_last.pt"
    with pytest.raises(InputError, match="this is a different model"):
        go(make, plan(folder, tmp_path / "out").jobs, tmp_path / "s", model=(checkpoint, "0" * 64))
    with pytest.raises(InputError, match="cannot be read on"):
        go(make, plan(folder, tmp_path / "out").jobs, tmp_path / "s", model=(tmp_path / "none", "0" * 64))
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_written_but_not_recorded_is_no_strangers(make, folder, tmp_path, monkeypatch):
    """The command is killed between the two: the next run continues, instead of refusing to replace the file."""
    out, state = tmp_path / "out", tmp_path / "state"
    jobs = plan(folder, out).jobs
    original = Done._add

    def killed(self, target, key, *counts):
        if key:
            raise KeyboardInterrupt
        original(self, target, key, *counts)

    with monkeypatch.context() as patched:
        patched.setattr(Done, "_add", killed)
        with pytest.raises(KeyboardInterrupt):
            go(make, jobs, state)
    assert len(tree(out)) == 1
    assert not [result.error for result in go(make, jobs, state) if result.error] and len(tree(out)) == 6


@pytest.mark.parametrize(
    "options, message", [(("--jobs", 0), "--jobs 0"), (("--jobs", 2), "--jobs and --engine: only for a folder")]
)
def test_what_cannot_be_shared_is_refused(trained_folder, tmp_path, options, message):
    (tmp_path / "a.txt").write_text("w1\n")
    found = run(
        "lasformer", "translate", trained_folder, tmp_path / "a.txt", "-o", tmp_path / "b.txt", *options, check=False
    )
    assert found.returncode == 1 and message in found.stderr and not (tmp_path / "b.txt").exists()


def test_workers_get_shares_that_keep_them_busy(tmp_path, monkeypatch):
    """At least eight batches per worker, unless these would be too small, or the corpus is large."""
    monkeypatch.setattr(file_jobs, "TOGETHER", 1000)
    monkeypatch.setattr(file_jobs, "MINIMUM", 10)
    jobs = [Job(tmp_path / f"{i}.txt", tmp_path / f"{i}.out", "text") for i in range(3)]
    for size, expected in ((3200, 600), (1, 10), (10**6, 1000)):
        for job in jobs:
            job.source.write_bytes(b"x" * size)
        assert file_jobs._share(jobs, 2) == expected
    jobs[0].source.unlink()
    assert file_jobs._share(jobs, 2) == 1000
