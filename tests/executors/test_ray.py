"""Ray as an executor: the tests of processes, on a cluster of two workers on this machine."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time

import pytest
from helpers import run
from test_executors import Square, importable  # noqa: F401

from fairseq_lasformer import executors
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.executors import Processes, Resources, executor
from fairseq_lasformer.executors.ray_actors import RayActors
from fairseq_lasformer.jobs.shards import ShardTranslator, Unit
from fairseq_lasformer.text.hypotheses import read_hypotheses

pytestmark = pytest.mark.command
TWO = Resources(workers=2, threads=1)


@pytest.fixture
def cluster(importable):  # noqa: F811
    """Ray on this machine, for several calls."""
    ray = pytest.importorskip("ray")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    variables = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    yield RayActors("the sum")
    ray.shutdown()


def test_actors_do_what_processes_do(cluster, tmp_path, capfd):
    units, folders = [], [tmp_path / str(i) for i in range(6)]
    for folder in folders:
        folder.mkdir()
    found = cluster.map(Square(folders[0]), range(8), TWO, lambda i: -1 if i in (2, 5) else None, units.append)
    assert list(found) == [0, 1, -1, 9, 16, -1, 36, 49] and units == [2] * 6
    begun = (folders[0] / "begun").read_text().splitlines()
    assert 1 <= len(begun) <= 2 and all(line.endswith(" 1") for line in begun)
    # a killed actor starts again with the item that it had
    assert list(cluster.map(Square(folders[1]), [12, 13, 14], TWO)) == [144, 169, 196]
    for folder, items, message in (
        (folders[2], [1, 66], "^the sum failed: a worker died again and again"),
        (folders[3], [77], "^77: is not a number$"),
        (folders[4], [99], "^the sum failed: ZeroDivisionError: by 99$"),
    ):
        with pytest.raises(InputError, match=message):
            list(cluster.map(Square(folder), items, TWO))
    assert list(cluster.map(Square(folders[5]), [1, 2], done=lambda item: -item)) == [-1, -2]
    assert not (folders[5] / "begun").exists()
    assert "(raylet)" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "engine, message",
    [
        ("dask", "--engine dask: expected processes, ray or ray=ADDRESS"),
        ("ray=here", "--engine ray=here: expected HOST:PORT, or auto"),
        ("ray=127.0.0.1:1", "--engine ray=127.0.0.1:1: nothing answers there"),
        ("ray=auto", "--engine ray=auto: Could not find any running Ray instance"),
    ],
)
def test_what_is_no_cluster_is_refused(engine, message, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    # other tests may have a cluster on this machine at the same time
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", functools.cache(set))
    with pytest.raises(InputError, match=message):
        list(executor(engine, "the sum").map(Square(tmp_path), [1]))


def test_nothing_of_ray_is_imported_without_the_option(tmp_path):
    code = "import sys, fairseq_lasformer.jobs.generate, fairseq_lasformer.cli.main; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert isinstance(executor("processes", "the sum"), Processes)


def test_a_missing_package_and_another_version_are_told(cluster, tmp_path, monkeypatch):
    import fairseq_lasformer.executors.ray_actors as module

    monkeypatch.setattr(module, "__version__", "0.0.1")
    with pytest.raises(InputError, match=r"has version .* of fairseq_lasformer, not 0\.0\.1"):
        list(cluster.map(Square(tmp_path), [1]))
    with monkeypatch.context() as without, pytest.raises(InputError, match="Ray is not installed; pip install"):
        without.setitem(sys.modules, "ray", None)
        list(RayActors("the sum").map(Square(tmp_path), [1]))


def test_a_split_translated_by_a_cluster_is_the_same(trained_folder, prepared, tmp_path):
    pytest.importorskip("ray")
    command = ("lasformer", "generate", prepared, trained_folder / "checkpoint_last.pt")
    options = ("--device", "cpu", "--beam", 2)
    run(*command, tmp_path / "one", "--shards", 1, *options)
    ray = [*command, tmp_path / "ray", "--shards", 5, "--jobs", 2, "--engine", "ray", *options]
    # killed as soon as a shard is done, and resumed
    words = [str(sys.executable), "-m", "fairseq_lasformer.cli.main", *map(str, ray[1:])]
    killed = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    parts = tmp_path / "ray.parts"
    deadline = time.monotonic() + 240
    while not any((parts / str(i)).exists() for i in range(5)) and killed.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    first = {path.name: path.stat().st_mtime_ns for path in parts.glob("[0-9]")} if parts.exists() else {}
    done = run(*ray)
    assert "documents" in done.stdout and not parts.exists()
    assert (tmp_path / "ray").read_bytes() == (tmp_path / "one").read_bytes()
    assert read_hypotheses(tmp_path / "ray", allow_empty=True)
    assert first or killed.returncode == 0


def test_another_model_is_found_out(trained_folder, prepared, tmp_path):
    """By its hash and, wherever it comes from, by its output."""
    from fairseq_lasformer.jobs import generate

    seen = []

    class Spy(executors.InProcess):
        def map(self, worker, items, *args, **kwargs):
            seen.append((worker, list(items)))
            raise InputError("seen")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "executor", lambda *_: Spy())
        with pytest.raises(InputError, match="seen"):
            checkpoint = trained_folder / "checkpoint_last.pt"
            generate.generate(prepared, checkpoint, tmp_path / "out", shards=2, options=["--cpu"], engine="ray")
    ((worker, units),) = seen
    assert units == [Unit(0), Unit(1), Unit(0, again=True)]
    with pytest.raises(InputError, match="this is a different model"):
        ShardTranslator(worker.arguments, worker.folder, "0" * 64).begin()
    worker.begin()
    path = worker(Unit(0), print)
    assert worker(Unit(0, again=True), print) == path and (worker.folder / "0.checked").exists()
    held = path.read_bytes()
    path.write_bytes(held + b"\n")
    with pytest.raises(InputError, match="the second result, by .*, differs"):
        worker(Unit(0, again=True), print)
    assert not list(worker.folder.glob(".*.tmp"))


def test_data_prepared_by_a_cluster_is_the_same(prepared, tmp_path):
    """Tokenised and encoded in batches by its workers, and put back in order."""
    pytest.importorskip("ray")
    raw = prepared.parent / "raw"
    lines = [f"w{i % 7} w{i % 11} w{i % 13}" for i in range(5000)]
    for language in ("xx", "yy"):
        (tmp_path / f"many.{language}").write_text("\n\n".join("\n".join(lines[i : i + 5]) for i in range(0, 5000, 5)))
    options = ("-s", "xx", "-t", "yy", "--train", tmp_path / "many", "--valid", raw / "valid", "--size", 60)
    run("lasformer", "prepare", tmp_path / "one", *options)
    run("lasformer", "prepare", tmp_path / "ray", *options, "--engine", "ray")
    for path in sorted((tmp_path / "one").glob("*.*")):
        if path.suffix in (".bin", ".idx", ".txt"):
            assert (tmp_path / "ray" / path.name).read_bytes() == path.read_bytes(), path
    refused = run("lasformer", "prepare", tmp_path / "no", *options, "--engine", "dask", check=False)
    assert refused.returncode == 1 and "--engine dask: expected processes, ray" in refused.stderr
    assert not (tmp_path / "no").exists()
