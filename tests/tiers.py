"""Tiers of the tests: a test is in exactly one, and each has a command.

======== ======================== ============================================================================
tier     command                  tests
======== ======================== ============================================================================
unit     ``make test``            all others; none takes more than :data:`SHARE` of what all of them take together
command  ``make test-commands``   marked ``command``: whole commands, trainings, resume and kill, the blocks of
                                  the documentation, attacks on the server, the browser
sweep    ``make test-sweeps``     marked ``sweep``: Triton's interpreter beyond a case per test, instruction sets
                                  beyond the best and ``plain``, further arguments of patterns, builds
======== ======================== ============================================================================

``--durations-json FILE`` writes what each test took. ``--sweep-minutes N`` is for a run with a time limit: sweeps that
would begin later than N minutes after the run are skipped, and counted; each commit has another order of their files.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

MARKED = ("command", "sweep")
SHARE = 0.02
"""Longest call of a test of the tier ``unit``, as a share of all calls of that run; without fixtures. A share,
because one processor takes three times as long as another. Checked on CI, by ``make test`` as a whole."""

MARKS = pytest.StashKey[dict[str, set[str]]]()
"""The marks of every collected test, by its name; those that ``-m`` leaves out, too."""


def thinned(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the values of a parametrisation; all but some are of the tier ``sweep``.

    Args:
        values: a tuple is the values of several names.
        kept: those that stay in the tier ``unit`` (default: the first).
    """
    values = list(values)
    kept = kept or tuple(values[:1])
    assert any(value in kept for value in values), f"none of {kept} is among the values"
    sweep = pytest.mark.sweep
    return [v if v in kept else pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=sweep) for v in values]


def tiers_of(marks: set[str]) -> list[str]:
    """Return the tiers of a test; there must be exactly one."""
    return [name for name in MARKED if name in marks] or ["unit"]


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}


def sort_out(config: pytest.Config, items: list[pytest.Item], best: str) -> None:
    """Mark what the tier follows from, and record the marks of all tests; before ``-m`` leaves some out.

    Args:
        best: the best instruction set of this processor.
    """
    interpreted: set[str] = set()
    for item in items:
        given = getattr(item, "callspec", None)
        if given is None or _marks(item) & set(MARKED):
            continue
        function = item.nodeid.partition("[")[0]
        if given.params.get("instructions", "plain") not in (best, "plain"):
            item.add_marker(pytest.mark.sweep)
        elif item.get_closest_marker("triton") or "triton" in given.params.values():
            if function in interpreted:
                item.add_marker(pytest.mark.sweep)
            interpreted.add(function)
    config.stash[MARKS] = {item.nodeid: _marks(item) for item in items}


def drawn(files: Iterable[str], seed: str) -> dict[str, int]:
    """Return the place of each file in an order that follows from the seed."""
    order = sorted(set(files))
    random.Random(seed).shuffle(order)
    return {file: place for place, file in enumerate(order)}


def commit() -> str:
    """Return the commit of the work tree; empty outside of git."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    return git.stdout.strip()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-json", help="file for the seconds that each test takes")
    parser.addoption("--sweep-minutes", type=float, help="skip sweeps that have not begun after so many minutes")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--durations-json")) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Durations(Path(path)))
    if (minutes := config.getoption("--sweep-minutes")) is not None:
        config.pluginmanager.register(SweepLimit(minutes))


class SweepLimit:
    """Skips the sweeps that would begin too late, and says how many."""

    REASON = "a sweep that has not begun within --sweep-minutes"

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.until = time.monotonic() + 60 * minutes
        self.skipped = 0

    @pytest.hookimpl(tryfirst=True)  # before fixtures that take long
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.get_closest_marker("sweep") and time.monotonic() > self.until:
            pytest.skip(self.REASON)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.skipped += report.skipped and self.REASON in str(report.longrepr)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(
            f"{self.skipped} sweeps had not begun after {self.minutes:g} minutes; make test-sweeps runs all"
        )


class Durations:
    """The seconds of every test, written when the run ends, and the check of :data:`SHARE`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Any]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests[report.nodeid]
        test[report.when or "call"] = round(report.duration, 3)
        test["tier"] = next((name for name in MARKED if name in report.keywords), "unit")
        if not report.passed:
            test["outcome"] = report.outcome

    def too_long(self) -> list[str]:
        """Return what is to be said of the tests of the tier ``unit`` that take more than their share."""
        calls = {name: test.get("call", 0.0) for name, test in self.tests.items() if test["tier"] == "unit"}
        limit = SHARE * sum(calls.values())
        return [
            f"{name} took {seconds:.1f} seconds; {limit:.1f} are a {1 / SHARE:.0f}th of what the tier takes: make it "
            "faster, or mark it command or sweep (tests/tiers.py)"
            for name, seconds in calls.items()
            if seconds > limit
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.tests, indent=0), encoding="utf-8")
        if os.environ.get("CI") and self.too_long() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if os.environ.get("CI"):
            for line in self.too_long():
                terminalreporter.write_line(line, red=True)
