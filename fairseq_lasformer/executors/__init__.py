"""Where work runs: in this process, or in others beside it. One protocol, :meth:`Executor.map`."""

from __future__ import annotations

from fairseq_lasformer.executors.base import Executor, InProcess, Report, Resources, Worker
from fairseq_lasformer.executors.processes import Processes

__all__ = ["Executor", "InProcess", "Processes", "Report", "Resources", "Worker"]
