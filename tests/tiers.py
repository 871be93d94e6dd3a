"""Tiers of the tests: a test is in exactly one, and each has a command.

========== ===================== ==============================================================================
tier       command               tests
========== ===================== ==============================================================================
unit       ``make test``         everything else; none takes more than :data:`SECONDS` on CI
command    ``make test-commands`` marked ``command``: whole commands, trainings, resume and kill, the blocks of the
                                 documentation, attacks on the server, the browser
sweep      ``make test-sweeps``  marked ``sweep``: Triton's interpreter beyond a case per kernel, instruction sets
                                 beyond the best and ``plain``, all arguments of all patterns, builds
========== ===================== ==============================================================================

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
"""Longest call of a test of the tier ``unit`` on CI."""

TIERS = pytest.StashKey[dict[str, list[str]]]()


def thinned(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Return values of a parametrisation of which all but some are of the tier ``sweep``.

    Args:
        kept: those that stay in the tier ``unit``; default: the first.
    """
    values = list(values)
    kept = kept or (values[0].values[0] if hasattr(values[0], "values") else values[0],)
    return [v if (v.values[0] if hasattr(v, "values") else v) in kept else _swept(v) for v in values]


def _swept(value: Any) -> Any:
    if hasattr(value, "values"):
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, pytest.mark.sweep])
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.sweep)


def tiers_of(item: pytest.Item) -> list[str]:
    return [name for name in MARKED if item.get_closest_marker(name)] or ["unit"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--durations-json", help="file for the seconds that each test takes")


@pytest.hookimpl(tryfirst=True)  # before -m leaves some out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[TIERS] = {item.nodeid: tiers_of(item) for item in items}
    config.stash[MARKS] = {item.nodeid: {mark.name for mark in item.iter_markers()} for item in items}


MARKS = pytest.StashKey[dict[str, set[str]]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    slow = report.when == "call" and report.passed and report.duration > SECONDS
    if slow and os.environ.get("CI") and tiers_of(item) == ["unit"]:
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} took {report.duration:.1f} seconds; the tier of `make test` allows {SECONDS:.0f}: make it "
            "faster, or mark it `command` or `sweep` (tests/tiers.py)"
        )
    return report


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


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--durations-json")) and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Durations(Path(path)))
