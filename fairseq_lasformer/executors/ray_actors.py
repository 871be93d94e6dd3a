"""Workers as actors of Ray, on this machine or on a cluster (the extra ``ray``).

Ray puts the actors where there is room for them, replaces those that die, and gives the new ones their items. It is
imported when the first item is to be done.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NamedTuple

from fairseq_lasformer.base.errors import InputError, in_one_line
from fairseq_lasformer.base.machine import cores
from fairseq_lasformer.executors.base import Executor, Item, Report, Resources, Result, Worker, nothing_done, silent
from fairseq_lasformer.version import __version__

PATIENCE = 5.0
"""Seconds within which a cluster must answer."""

LOCAL = ("GOMP_SPINCOUNT", "LASFORMER_ISA", "PYTHONPATH", "TORCH_EXTENSIONS_DIR")
"""Variables that workers on this machine inherit; on a cluster, workers have their machine's."""


class RayActors(Executor):
    """A pool of Ray's actors, each with a worker.

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
        results: dict[int, Result] = {}
        with self._cluster(resources) as ray:
            outcomes = self._outcomes(ray, worker, waiting, resources, retries)
            for n, (_, result) in enumerate(known):
                while n in waiting and n not in results:
                    outcome = next(outcomes)
                    if outcome.error:
                        reason = outcome.error if outcome.expected else f"{self.what} failed: {outcome.error}"
                        raise InputError(reason)
                    report(outcome.units)
                    results[outcome.number] = outcome.result
                yield results.pop(n) if n in waiting else result  # type: ignore[misc]

    @contextmanager
    def _cluster(self, resources: Resources) -> Iterator[Any]:
        """Yield Ray, connected to the cluster."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # with Ray's 15, workers wait for whatever else runs
        try:
            import ray
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

    def _outcomes(
        self, ray: Any, worker: Worker[Any, Any], waiting: dict[int, Any], resources: Resources, retries: int
    ) -> Iterator[_Outcome]:
        """Yield the outcomes of the items, as they are done."""
        from ray.util import ActorPool

        threads = self._threads(resources)
        variables = {"OMP_NUM_THREADS": str(threads)}
        if not self.address:
            variables |= {name: os.environ[name] for name in LOCAL if name in os.environ}
        room = int(ray.cluster_resources().get("CPU", threads)) // threads  # of more actors, some would never begin
        actor = ray.remote(_Actor).options(
            num_cpus=threads,
            max_restarts=-1,
            max_task_retries=retries,
            runtime_env={"env_vars": variables},
        )
        n_workers = max(1, min(resources.workers, len(waiting), room))
        pool = ActorPool([actor.remote(worker, __version__) for _ in range(n_workers)])
        return iter(pool.map_unordered(lambda one, item: one.do.remote(*item), list(waiting.items())))


class _Outcome(NamedTuple):
    """The outcome of an item, by its number."""

    number: int
    units: int  # units of work reported
    result: Any = None
    error: str = ""  # why it failed; empty if it did not
    expected: bool = True  # whether that is the user's to mend


class _Actor:
    """A worker in an actor, which begins with its first item.

    Args:
        version: this package's version where the work was given out.
    """

    def __init__(self, worker: Worker[Any, Any], version: str) -> None:
        self.worker, self.version, self.begun = worker, version, False

    def do(self, number: int, item: Any) -> _Outcome:
        """Do the work on an item; failures are returned, because Ray would try again."""
        units: list[int] = []
        try:
            if self.version != __version__:
                raise InputError(
                    f"{socket.gethostname()}: has version {__version__} of fairseq_lasformer, not {self.version}"
                )
            if not self.begun:
                self.worker.begin()
                self.begun = True
            result = self.worker(item, units.append)
            return _Outcome(number, sum(units), result)
        except InputError as e:
            return _Outcome(number, 0, None, str(e))
        except Exception as e:  # a one-line message, as from every executor
            return _Outcome(number, 0, None, in_one_line(e, 300), False)


def _reach(address: str) -> None:
    """Refuse an address that does not answer soon: Ray would wait for minutes."""
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
