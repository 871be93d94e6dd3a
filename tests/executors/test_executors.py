"""Executors: results in order, progress, finished items, retries after a worker was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.data.subwords import Tokenisation
from fairseq_lasformer.executors import InProcess, Processes, Resources, Worker

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


class Square(Worker[int, int]):
    """Worker that squares a number; anything unusual is written to a separate file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self) -> None:
        with open(self.folder / "begun", "a") as file:
            file.write(f"{os.getpid()} {os.environ.get('OMP_NUM_THREADS')}\n")

    def __call__(self, item: int, report) -> int:
        print("what libraries print is no result")
        report(2)
        if item == 13 and not (self.folder / "killed").exists():
            (self.folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 66:
            os.kill(os.getpid(), signal.SIGKILL)
        if item == 77:
            raise InputError("77: is not a number")
        if item == 88:
            os._exit(0)
        if item == 99:
            raise ZeroDivisionError("by 99")
        time.sleep(0.05 * (item % 3 == 0))
        return item * item


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Make the worker's class importable in other processes."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(Square, "__module__", "test_executors")
    monkeypatch.setitem(sys.modules, "test_executors", sys.modules[__name__])


@pytest.mark.parametrize("executor", [InProcess(), Processes("the sum")], ids=["in process", "processes"])
def test_results_are_in_order_and_what_is_done_is_not_done_again(executor, tmp_path):
    units, asked = [], []

    def done(item):
        asked.append(item)
        return -1 if item in (2, 9) else None

    resources = Resources(workers=2, threads=1)
    results = executor.map(Square(tmp_path), range(10), resources, done, units.append)
    assert list(results) == [0, 1, -1, 9, 16, 25, 36, 49, 64, -1]
    assert units == [2] * 8 and asked == list(range(10))
    begun = (tmp_path / "begun").read_text().splitlines()
    if isinstance(executor, InProcess):
        assert len(begun) == 1 and begun[0].startswith(f"{os.getpid()} ")
    else:
        assert len({line.split()[0] for line in begun} - {str(os.getpid())}) == len(begun) == 2
        assert all(line.endswith(" 1") for line in begun)


def test_nothing_begins_where_everything_is_done(tmp_path):
    for executor in (InProcess(), Processes("the sum")):
        assert list(executor.map(Square(tmp_path), [1, 2], done=lambda item: -item)) == [-1, -2]
    assert not (tmp_path / "begun").exists()


def test_an_item_whose_worker_was_killed_is_tried_again(tmp_path):
    results = Processes("the sum").map(Square(tmp_path), [12, 13, 14], Resources(2))
    assert list(results) == [144, 169, 196] and (tmp_path / "killed").exists()
    with pytest.raises(InputError, match=r"the sum failed: .*\(exit code -9\)"):
        list(Processes("the sum").map(Square(tmp_path), [66]))


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (77, "the sum failed: 77: is not a number$"),
        (88, r"exit code 0"),
        (99, r"ZeroDivisionError: by 99 \(exit code 1"),
    ],
)
def test_a_worker_that_fails_ends_the_work_with_its_reason(item, message, tmp_path):
    with pytest.raises(InputError, match=message) as caught:
        list(Processes("the sum", tmp_path).map(Square(tmp_path), [1, item], Resources(1)))
    assert "\n" not in str(caught.value)
    assert "what libraries print" in (tmp_path / "0.err").read_text()
    if item != 77:
        assert f"see {tmp_path / '0.err'}" in str(caught.value)


def test_workers_end_with_who_asked_them_however_it_ends(tmp_path):
    code = f"""
import sys, time
sys.path[:0] = [{str(HERE)!r}]
from pathlib import Path
from test_executors import Square
from fairseq_lasformer.executors import Processes, Resources
for _ in Processes("x").map(Square(Path({str(tmp_path)!r})), range(1000), Resources(2)):
    print("one", flush=True); time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "one\n"
        process.kill()
    workers = [int(line.split()[0]) for line in (tmp_path / "begun").read_text().splitlines()]
    end = time.monotonic() + 10
    while any(map(_runs, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert workers and not any(map(_runs, workers))


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_who_stops_asking_ends_the_workers(tmp_path):
    results = Processes("the sum").map(Square(tmp_path), range(1000), Resources(2))
    assert next(results) == 0
    results.close()
    workers = [int(line.split()[0]) for line in (tmp_path / "begun").read_text().splitlines()]
    assert not any(map(_runs, workers))


def test_workers_use_the_same_copy_of_the_package(tmp_path, monkeypatch):
    """Not one in the working folder, such as another clone of this project."""
    (tmp_path / "fairseq_lasformer").mkdir()
    (tmp_path / "fairseq_lasformer" / "__init__.py").write_text("raise SystemExit('the wrong copy')\n")
    monkeypatch.chdir(tmp_path)
    found = Processes("words").map(Tokenisation("en", "none"), [["a b"], ["c"]], Resources(2, threads=1))
    assert list(found) == [["a b"], ["c"]]
