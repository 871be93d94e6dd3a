"""Executors of work, in this process or in others. One protocol, :meth:`Executor.map`."""

from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.executors.base import CHECKED, Executor, InProcess, Report, Resources, Worker
from fairseq_lasformer.executors.processes import Processes

__all__ = ["CHECKED", "Executor", "InProcess", "Processes", "Report", "Resources", "Worker", "executor"]


def executor(engine: str, what: str, logs: Path | None = None) -> Executor:
    """Return the executor of ``--engine``.

    Args:
        engine: ``processes``, ``ray`` or ``ray=ADDRESS``.
        what: description of the work, for error messages.
        logs: see :class:`Processes`; Ray keeps what its workers print itself.
    """
    name, _, address = engine.partition("=")
    if engine == "processes":
        return Processes(what, logs)
    if name != "ray":
        raise InputError(f"--engine {engine}: expected processes, ray or ray=ADDRESS")
    from fairseq_lasformer.executors.ray_actors import RayActors

    return RayActors(what, address)
