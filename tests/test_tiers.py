"""Every test is run by exactly one of the commands that are there for tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest
from helpers import ROOT
from tiers import MARKED, MARKS, Durations, drawn, tiers_of


def expressions() -> dict[str, str]:
    """Return what ``-m`` is given by each command."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["addopts"]
    makefile = (ROOT / "Makefile").read_text()
    found = {"test": re.search(r"-m '([^']+)'", options)[1]}
    assert f'-m "{" or ".join(MARKED)}"' in makefile, "test-all runs what make test leaves out"
    return found | dict(re.findall(r"^(test-\w+): setup .*\n\t@\$\(PYTEST\) -m (\w+)", makefile, re.M))


def chosen(expression: str, marks: set[str]) -> bool:
    """Return whether ``-m`` chooses a test: marks, each of which may be negated, joined by ``and``."""
    words = [part.split() for part in expression.split(" and ")]
    assert all(word[-1] in MARKED and word[:-1] in ([], ["not"]) for word in words), expression
    return all((word[-1] in marks) == (len(word) == 1) for word in words)


def test_every_test_is_in_exactly_one_tier(request):
    tests = request.config.stash[MARKS]
    assert not {name: tiers for name, marks in tests.items() if len(tiers := tiers_of(marks)) != 1}
    commands = expressions()
    assert set(commands) == {"test", "test-commands", "test-sweeps"}
    run = {name: [c for c, e in commands.items() if chosen(e, marks)] for name, marks in tests.items()}
    assert not {name: commands for name, commands in run.items() if len(commands) != 1}


def test_a_test_of_more_than_its_share_is_named_whatever_the_processor(tmp_path):
    for slowness in (1, 3):
        seen = Durations(tmp_path / "durations.json")
        for name, seconds in [*((f"quick{i}", 1.0) for i in range(200)), ("slow", 5.0), ("by command", 50.0)]:
            keywords = {"command": True} if name == "by command" else {}
            report = SimpleNamespace(
                nodeid=name, when="call", duration=slowness * seconds, keywords=keywords, passed=True
            )
            seen.pytest_runtest_logreport(report)
        (line,) = seen.too_long()
        assert line.startswith(f"slow took {5.0 * slowness:.1f} seconds; {4.1 * slowness:.1f} are a 50th")


def test_each_commit_has_its_own_order_of_files():
    files = [f"test_{i}.py" for i in range(10)]
    assert drawn(files, "a") == drawn(files[::-1] * 2, "a") != drawn(files, "b")
    assert sorted(drawn(files, "b").values()) == list(range(10))


@pytest.mark.sweep
def test_nothing():
    """For the test below."""


@pytest.mark.command
@pytest.mark.parametrize(("minutes", "outcome", "late"), [("0", "1 skipped", 1), ("9", "1 passed", 0)])
def test_sweeps_that_would_begin_too_late_are_skipped_and_counted(minutes, outcome, late):
    options = ["-m", "sweep", "--sweep-minutes", minutes, "-p", "no:cacheprovider"]
    pytest_ = [sys.executable, "-m", "pytest", "tests/test_tiers.py::test_nothing", *options]
    ran = subprocess.run(pytest_, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0 and outcome in ran.stdout, ran.stdout + ran.stderr
    assert f"{late} sweeps had not begun after {minutes} minutes; make test-sweeps runs all" in ran.stdout
