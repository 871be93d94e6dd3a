"""The protocol of all executors: results in order, progress, reuse of earlier results, retries where a worker dies.

A worker is an object that is sent to where it works, so its attributes are few and can be pickled. Large data, such as
a model, is loaded by :meth:`Worker.begin`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Report = Callable[[int], object]
"""Function called with the number of units done, such as sentences or documents."""

CHECKED = 100
"""On a cluster, one piece of work in this many is done twice, for comparison."""


class Resources(NamedTuple):
    """Resources of the workers.

    Attributes:
        workers: maximum number of workers.
        threads: processor threads of each (``OMP_NUM_THREADS``); 0: as many as this process has.
    """

    workers: int = 1
    threads: int = 0


class Worker(Generic[Item, Result]):
    """Object that turns items into results, one after another."""

    def begin(self) -> None:
        """Prepare, once per worker, before the first item."""

    def __call__(self, item: Item, report: Report) -> Result:
        """Do the work on one item.

        Args:
            report: called as parts of it are done.
        """
        raise NotImplementedError


def nothing_done(item: Any) -> None:
    """Return None: no item has a result yet."""
    return None


def silent(n: int) -> None:
    """Report nothing."""


class Executor(ABC):
    """Place where workers run."""

    @abstractmethod
    def map(
        self,
        worker: Worker[Item, Result],
        items: Iterable[Item],
        resources: Resources = Resources(),  # noqa: B008
        done: Callable[[Item], Result | None] = nothing_done,
        report: Report = silent,
        retries: int = 1,
    ) -> Iterator[Result]:
        """Return the results of all items, in order.

        Args:
            resources: number and size of the workers.
            done: returns the result of an item from an earlier run, or None; it is asked when the item's turn comes.
            report: called with the units that workers report, by one thread at a time.
            retries: how often an item is tried again when its worker was killed.

        Raises:
            InputError: a worker failed; the others are ended.
        """


class InProcess(Executor):
    """One worker in this process: each item is taken when the previous one is done."""

    def map(
        self,
        worker: Worker[Item, Result],
        items: Iterable[Item],
        resources: Resources = Resources(),  # noqa: B008
        done: Callable[[Item], Result | None] = nothing_done,
        report: Report = silent,
        retries: int = 1,
    ) -> Iterator[Result]:
        begun = False
        for item in items:
            result = done(item)
            if result is None:
                if not begun:
                    worker.begin()
                    begun = True
                result = worker(item, report)
            yield result
