"""Tiers of the tests: a test is in exactly one, and each has a command.

======== ======================== ============================================================================
tier     command                  tests
======== ======================== ============================================================================
unit     ``make test``            all others; none takes more than :data:`SECONDS` on CI
command  ``make test-commands``   marked ``command``: whole commands, trainings, resume and kill, the blocks of
                                  the documentation, attacks on the server, the browser
sweep    ``make test-sweeps``     marked ``sweep``: Triton's interpreter beyond a case per test, instruction sets
                                  beyond the best and ``plain``, further arguments of patterns, builds
======== ======================== ============================================================================

``--durations-json FILE`` writes what each test took.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

MARKED = ("command", "sweep")
SECONDS = 5.0
"""Longest call of a test of the tier ``unit`` on CI; what fixtures take is shared, and not counted."""

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    unit = tiers_of(_marks(item)) == ["unit"]
    if report.when == "call" and report.passed and unit and report.duration > SECONDS and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {report.duration:.1f} seconds; the tier of make test allows {SECONDS:.0f}: make it "
            "faster, or mark it command or sweep (tests/tiers.py)"
        )
    return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-json", help="file for the seconds that each test takes")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--durations-json")) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Durations(Path(path)))


class Durations:
    """The seconds of every test, written when the run ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tests: dict[str, dict[str, Any]] = defaultdict(dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests[report.nodeid]
        test[report.when or "call"] = round(report.duration, 3)
        test["tier"] = next((name for name in MARKED if name in report.keywords), "unit")
        if not report.passed:
            test["outcome"] = report.outcome

    def pytest_sessionfinish(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.tests, indent=0), encoding="utf-8")
