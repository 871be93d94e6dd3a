"""Workers as actors of Ray Data, on this machine or on a cluster (the extra ``ray``).

Ray puts the actors where there is room for them, replaces those that die, and gives the new ones their items. It is
imported when the first item is to be done.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from fairseq_lasformer.errors import InputError, in_one_line
from fairseq_lasformer.executors.base import Executor, Item, Report, Resources, Result, Worker, nothing_done, silent
from fairseq_lasformer.machine import cores
from fairseq_lasformer.version import __version__

PATIENCE = 5.0
"""Seconds within which a cluster must answer."""

LOCAL = ("GOMP_SPINCOUNT", "LASFORMER_ISA", "PYTHONPATH", "TORCH_EXTENSIONS_DIR")
"""Variables that workers on this machine inherit; on a cluster, workers have their machine's."""


class RayData(Executor):
    """Actors of Ray Data, each with a worker.

    Args:
        what: description of the work, for error messages.
        address: address of a cluster, ``HOST:PORT``, or ``auto`` for the one that this machine belongs to; empty starts
            one on this machine alone, which ends with the work.
    """

    def __init__(self, what: str, address: str = "") -> None:
        self.what, self.address = what, address

    def map(
        self,
        worker: Worker[Item, Result],
        items: Iterable[Item],
        resources: Resources = Resources(),  # noqa: B008
        done: Callable[[Item], Result | None] = nothing_done,
        report: Report = silent,
        retries: int = 1,
    ) -> Iterator[Result]:
        known = [(item, done(item)) for item in items]
        waiting = {n: item for n, (item, result) in enumerate(known) if result is None}
        if not waiting:
            yield from (result for _, result in known)  # type: ignore[misc]
            return
        found: dict[int, Result] = {}
        with self._cluster(resources) as ray:
            rows = self._rows(ray, worker, waiting, resources, retries)
            for n, (_, result) in enumerate(known):
                while n in waiting and n not in found:
                    row = next(rows)
                    if row["error"]:
                        raise InputError(row["error"] if row["expected"] else f"{self.what} failed: {row['error']}")
                    report(row["units"])
                    found[row["number"]] = pickle.loads(row["result"])
                yield found.pop(n) if n in waiting else result  # type: ignore[misc]

    @contextmanager
    def _cluster(self, resources: Resources) -> Iterator[Any]:
        """Yield Ray, connected to the cluster.

        Raises:
            InputError: Ray is not installed, or the cluster does not answer.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # with Ray's 15, workers wait for whatever else runs
        try:
            import ray
            import ray.data
        except ImportError as e:
            raise InputError("--engine ray: Ray is not installed; pip install 'fairseq_lasformer[ray]'") from e
        given = ray.is_initialized()
        if not given:
            where: dict[str, Any] = {"address": self.address or "local"}
            if not self.address:
                where |= {"num_cpus": self._threads(resources) * resources.workers, "include_dashboard": False}
            _reach(self.address)
            try:
                ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError, OSError) as e:
                raise InputError(f"--engine ray={self.address}: {' '.join(str(e).split())[:300]}") from e
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        dead = ray.exceptions.ActorDiedError, ray.exceptions.ActorUnavailableError
        try:
            with redirect_stdout(sys.stderr):  # Ray reports workers that die there
                yield ray
        except dead as e:
            raise InputError(f"{self.what} failed: a worker died again and again on the same piece of work") from e
        except ray.exceptions.RayError as e:
            lines = str(e).strip().splitlines() or [type(e).__name__]
            raise InputError(f"{self.what} failed: {type(e).__name__}: {lines[0]}") from e
        finally:
            if not given:
                ray.shutdown()

    def _threads(self, resources: Resources) -> int:
        """Return the threads of a worker; one on a cluster, whose machines may have fewer cores than this one."""
        return resources.threads or (1 if self.address else cores())

    def _rows(
        self, ray: Any, worker: Worker[Any, Any], waiting: dict[int, Any], resources: Resources, retries: int
    ) -> Iterator[dict[str, Any]]:
        """Return the outcomes of the items, as they are done."""
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        rows = [{"number": n, "item": pickle.dumps(item)} for n, item in waiting.items()]
        threads = self._threads(resources)
        variables = {"OMP_NUM_THREADS": str(threads)}
        if not self.address:
            variables |= {name: os.environ[name] for name in LOCAL if name in os.environ}
        n_workers = max(1, min(resources.workers, len(rows)))
        made = ray.data.from_items(rows, override_num_blocks=len(rows)).map(
            _Actor,
            fn_constructor_args=(pickle.dumps(worker), __version__),
            compute=ray.data.ActorPoolStrategy(size=n_workers, max_tasks_in_flight_per_actor=2),
            num_cpus=threads,
            max_restarts=-1,
            max_task_retries=retries,
            runtime_env={"env_vars": variables},
        )
        return iter(made.iter_rows())


class _Actor:
    """A worker in an actor, which begins with its first item.

    Args:
        worker: the worker, pickled.
        version: this package's version where the work was given out.
    """

    def __init__(self, worker: bytes, version: str) -> None:
        self.pickled, self.version = worker, version
        self.worker: Worker[Any, Any] | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        units = 0

        def report(n: int) -> None:
            nonlocal units
            units += n

        answer = {"number": row["number"], "units": 0, "result": b"", "error": "", "expected": True}
        try:
            if self.worker is None:
                self.worker = self._begun()
            result = self.worker(pickle.loads(row["item"]), report)
            return answer | {"units": units, "result": pickle.dumps(result)}
        except InputError as e:
            return answer | {"error": str(e)}
        except Exception as e:  # a one-line message, as from every executor
            return answer | {"error": in_one_line(e, 300), "expected": False}

    def _begun(self) -> Worker[Any, Any]:
        if __version__ != self.version:
            raise InputError(
                f"{socket.gethostname()}: has version {__version__} of fairseq_lasformer, not {self.version}"
            )
        worker: Worker[Any, Any] = pickle.loads(self.pickled)
        worker.begin()
        return worker


def _reach(address: str) -> None:
    """Refuse an address that does not answer soon: Ray would wait for minutes.

    Raises:
        InputError: nothing answers there.
    """
    place = address.removeprefix("ray://")
    if not place or place == "auto":
        return
    host, colon, port = place.rpartition(":")
    if not colon or not port.isdecimal():
        raise InputError(f"--engine ray={address}: expected HOST:PORT, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as e:
        raise InputError(f"--engine ray={address}: nothing answers there ({e})") from e
