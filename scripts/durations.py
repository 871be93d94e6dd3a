#!/usr/bin/env python3
"""Summary of what the tests took: scripts/durations.py runs/durations/*.json

Seconds by folder and tier, and the 40 slowest tests. ``make test-all`` writes the files.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fairseq_lasformer.base.machine import describe, machine

TIERS = ("unit", "command", "sweep")


def main(paths: list[str]) -> None:
    tests = {name: test for path in paths for name, test in json.loads(Path(path).read_text()).items()}
    seconds = {name: sum(test.get(when, 0) for when in ("setup", "call", "teardown")) for name, test in tests.items()}
    by_folder: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(TIERS, 0.0))
    for name, test in tests.items():
        by_folder[where(name)][test["tier"]] += seconds[name]
        by_folder["all"][test["tier"]] += seconds[name]
    print(f"{len(tests):,} tests, seconds of all workers together. {describe(machine())}.\n")
    print("| folder | tests | unit | command | sweep |\n|---|---|---|---|---|")
    rows = sorted(by_folder.items(), key=lambda row: -sum(row[1].values()))
    for folder, by_tier in rows:
        n = sum(folder in ("all", where(name)) for name in tests)
        print(f"| {folder} | {n:,} | " + " | ".join(f"{by_tier[tier]:,.0f}" for tier in TIERS) + " |")
    print("\n| seconds | tier | the 40 slowest tests |\n|---|---|---|")
    for name in sorted(seconds, key=seconds.__getitem__, reverse=True)[:40]:
        print(f"| {seconds[name]:.0f} | {tests[name]['tier']} | `{name.removeprefix('tests/')}` |")


def where(name: str) -> str:
    """Return the row of a test."""
    folder = name.split("::")[0].split("/")[1:-1]
    return folder[0] + "/" if folder else "tests/*.py"


if __name__ == "__main__":
    main(sys.argv[1:])
