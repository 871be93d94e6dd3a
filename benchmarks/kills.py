"""Translations killed again and again, checked for a complete result: ``python -m benchmarks.kills DATA CHECKPOINT``.

A split is translated once, undisturbed. Then, as often as requested, it is translated again and killed with SIGKILL in
one of several ways. The same command is repeated until it succeeds, and its file is compared with the first one, byte
for byte. The ways: the command, at a random time; one of its workers, which is replaced; the command while a shard's
file is written but not in place yet; one of the commands of an array of shards; a full disk; a worker that is stopped,
and continues after another one has done its work. Exits with 1 if a result differs or anything is left over.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

SHARDS = 6
FULL = 200
"""Bytes of a file on the full disk: fewer than those of a shard."""


def _below(pid: int) -> list[int]:
    """Return the processes that a process has started, and their descendants."""
    texts = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            texts.append(path.read_text())
    children = sorted({int(child) for child in " ".join(texts).split()})
    return children + [one for child in children for one in _below(child)]


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


class Campaign:
    """Translations of one split.

    Args:
        folder: an empty folder for output.
    """

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder, self.draw = args, folder, random.Random(args.seed)
        self.out = folder / "out.txt"
        begun = time.monotonic()
        self.run([*self.command(), "--jobs", "2"]).wait()
        self.whole, self.seconds = self.out.read_bytes(), time.monotonic() - begun

    def command(self) -> list[str]:
        a = self.args
        words = [sys.executable, "-m", "fairseq_lasformer.cli.main", "generate", str(a.data), str(a.checkpoint)]
        return [*words, str(self.out), "--split", a.split, "--device", "cpu", "--beam", "2", "--engine", a.engine]

    def run(self, words: list[str], limit: int | None = None) -> subprocess.Popen[bytes]:
        """Start a command in its own process group."""
        shards = [] if "--shard" in words else ["--shards", str(SHARDS)]

        def limited() -> None:
            os.setpgid(0, 0)
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing fails, as on a full disk

        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*words, *shards], preexec_fn=limited, **quiet)

    def children(self, of: subprocess.Popen[bytes]) -> list[int]:
        """Return the workers of a command; with Ray, the actors below it."""
        below = _below(of.pid)
        if self.args.engine == "processes":
            return below
        return [pid for pid in below if _command_of(pid).startswith("ray::") and "_Actor" in _command_of(pid)]

    def sleep(self, of: subprocess.Popen[bytes]) -> None:
        """Wait for a random time, at most that of an undisturbed run."""
        end = time.monotonic() + self.draw.uniform(0, self.seconds)
        while time.monotonic() < end and of.poll() is None:
            time.sleep(0.01)

    def driver(self) -> int:
        process = self.run([*self.command(), "--jobs", "2"])
        self.sleep(process)
        return self.end(process)

    def worker(self) -> int:
        process = self.run([*self.command(), "--jobs", "2"])
        self.sleep(process)
        workers = self.children(process)
        for pid in self.draw.sample(workers, min(1, len(workers))):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        return len(workers) > 0

    def between(self) -> int:
        process = self.run([*self.command(), "--jobs", "2"])
        parts, seen = self.out.with_name(f"{self.out.name}.parts"), self.draw.randrange(SHARDS)
        while process.poll() is None:
            if len(list(parts.glob(".*.tmp"))) and len(list(parts.glob("[0-9]"))) >= seen:
                break
            time.sleep(0.002)
        return self.end(process)

    def array(self) -> int:
        processes = [self.run([*self.command(), "--shard", f"{i}/{SHARDS}"]) for i in self.draw.sample(range(1, 7), 2)]
        self.sleep(processes[0])
        killed = self.end(processes[0])
        processes[1].wait()
        for i in range(1, SHARDS + 1):
            self.run([*self.command(), "--shard", f"{i}/{SHARDS}"]).wait()
        return killed

    def disk(self) -> int:
        process = self.run(self.command(), FULL)
        if process.wait() == 0:
            raise SystemExit("a full disk was not noticed")
        return 1

    def late(self) -> int:
        process = self.run([*self.command(), "--jobs", "2"])
        self.sleep(process)
        stopped = self.children(process)[:1]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        self.end(process, spared=stopped)
        self.run([*self.command(), "--jobs", "2"]).wait()
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return len(stopped) > 0

    def end(self, process: subprocess.Popen[bytes], spared: list[int] = []) -> int:  # noqa: B006
        """Kill a command and its workers as a failing machine does; return whether it was running."""
        running = process.poll() is None
        for pid in [process.pid, *(pid for pid in self.children(process) if pid not in spared)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        return running

    def finished(self) -> tuple[int, bool]:
        """Repeat the command until it succeeds; return how often it was started, and whether the result is complete."""
        again = 0
        while not self.out.exists() and again < 9:
            self.run([*self.command(), "--jobs", "2"]).wait()
            again += 1
        time.sleep(0.1)
        kept = (".lock", ".done")
        left = [path for path in self.folder.iterdir() if path != self.out and not path.name.endswith(kept)]
        return again, self.out.read_bytes() == self.whole and not left


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kills", description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--kills", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--ways", default="driver,worker,between,array,disk,late", help="default: %(default)s")
    parser.add_argument("--engine", default="processes")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    bad = 0
    with TemporaryDirectory() as folder:
        campaign = Campaign(args, Path(folder))
        names = args.ways.split(",")
        ways: list[Callable[[], int]] = [getattr(campaign, name) for name in names]
        tally = {name: [0, 0, 0, 0] for name in names}
        with tqdm(total=args.kills, desc="killing", unit=" kills") as bar:
            for i in range(args.kills):
                campaign.out.unlink(missing_ok=True)
                name = names[i % len(ways)]
                killed = ways[i % len(ways)]()
                again, whole = campaign.finished()
                bad += not whole
                tally[name] = [a + b for a, b in zip(tally[name], (1, killed, again, whole))]
                bar.update()
    print("way | runs | killed at work | started again | equal\n--- | ---: | ---: | ---: | ---:")
    for name, counts in tally.items():
        print(" | ".join(map(str, (name, *counts))))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
