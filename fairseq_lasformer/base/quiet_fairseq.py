"""fairseq, imported with logging left as it is, and without the libraries that only its other tasks call.

fairseq imports all of its tasks and criteria: those for speech configure the root logger, and two others load
scikit-learn and scipy.stats, a third of the time that a command takes to start. Packages whose modules need fairseq
import this module first. It also makes threads wait briefly (``machine.wait_briefly``), which is possible only before
torch is loaded.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from fairseq_lasformer.base.machine import wait_briefly

LATER = ("sklearn", "sklearn.metrics", "scipy.stats")
"""Modules whose functions are loaded when they are called."""


class _Later(ModuleType):
    """A module whose functions import the real one when they are called."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: getattr(importlib.import_module(self.__name__), name)(*args, **kwargs)


@contextmanager
def _postponed() -> Iterator[None]:
    """Postpone the import of :data:`LATER`, unless one of them is already loaded."""
    if any(name in sys.modules for name in LATER):
        yield
        return
    modules = {name: _Later(name) for name in LATER}
    modules["sklearn"].metrics = modules["sklearn.metrics"]  # type: ignore[attr-defined]
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


@contextmanager
def _logging_unchanged() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


wait_briefly()
with _postponed(), _logging_unchanged():
    import fairseq  # noqa: F401
