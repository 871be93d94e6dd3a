"""``translate --since``, killed and repeated: ``python -m benchmarks.update_kills MODEL``.

A changed file, or a folder of three, is translated once, undisturbed. Then the same command is begun again and again,
each time in a process that is killed with SIGKILL: half of the kills fall into the few milliseconds after the first
file is in place, the others anywhere. The command is repeated three times; the result must be the first one, byte for
byte, and the old translation must be what it was. Exits with 1 if one differs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tqdm import tqdm

from fairseq_lasformer.cli.main import main as lasformer

FILES = 3
IMPORTED = ("documents.hub", "apps.files.file_jobs", "apps.files.file_translator")
"""Modules that the commands need; imported once, before the processes are forked."""


def begin(words: Sequence[str]) -> int:
    """Run a command in a child process and return its number."""
    if child := os.fork():
        return child
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        os._exit(lasformer(list(words)))


def ends(words: Sequence[str]) -> bool:
    """Run a command in a child process; return whether it succeeded."""
    return os.waitpid(begin(words), 0)[1] == 0


class Campaign:
    """Translations of a changed file or folder.

    Args:
        folder: an empty folder for output.
    """

    def __init__(self, args: argparse.Namespace, folder: Path, single: bool) -> None:
        self.draw, self.folder = random.Random(args.seed), folder
        lines = [f"Line {i} of the text says: open the file and save it as number {i}." for i in range(args.lines)]
        for n in range(FILES):
            for name, text in (("old", lines), ("new", [*lines[1:], f"File {n} has a new line."])):
                (folder / name).mkdir(exist_ok=True)
                (folder / name / f"{n}.txt").write_text("\n".join(text) + "\n")
        self.first = folder / "first"
        model = str(args.model)
        if not ends(["translate", model, str(folder / "old"), "-o", str(self.first), "--lines", "--beam", "1"]):
            sys.exit("error: the first translation failed")
        place = "0.txt" if single else "."
        new, old, first, made = (str(folder / name / place) for name in ("new", "old", "first", "made"))
        self.words = ["translate", model, new, "--since", old, first, "-o", made, "--lines", "--beam", "1", "--quiet"]
        self.words += ["--overwrite"] if single else []  # a file that is there already is otherwise refused
        self.made = folder / "made"
        self.old = self.contents(self.first)
        self.reset()
        start = time.monotonic()
        if not ends(self.words):
            sys.exit("error: the undisturbed translation failed")
        self.seconds, self.whole = time.monotonic() - start, self.contents(self.made)

    def reset(self) -> None:
        """Forget what has been translated."""
        shutil.rmtree(self.made, ignore_errors=True)
        self.made.mkdir()

    @staticmethod
    def contents(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.glob("*.txt")}

    def killed(self, at_replacement: bool) -> bool:
        """Kill one command, repeat it, and return whether the result is right."""
        self.reset()
        child, wait = begin(self.words), self.draw.uniform(0, self.seconds)
        placed, end = self.made / "0.txt", time.monotonic() + 60
        while at_replacement and not placed.exists() and time.monotonic() < end:
            time.sleep(0.0002)
        time.sleep(self.draw.uniform(0, 0.004) if at_replacement else wait)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done = all([ends(self.words), ends(self.words), ends(self.words)])
        return done and self.contents(self.made) == self.whole and self.contents(self.first) == self.old


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--kills", type=int, default=60, help="half of them of a single file (default: %(default)s)")
    parser.add_argument("--lines", type=int, default=6, help="lines per file (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name in IMPORTED:
        import_module(f"fairseq_lasformer.{name}")
    lost = 0
    for single in (True, False):
        with TemporaryDirectory() as folder:
            campaign = Campaign(args, Path(folder), single)
            what = "a file" if single else f"a folder of {FILES}"
            for i in tqdm(range(args.kills // 2), desc=what, unit=" kills"):
                lost += not campaign.killed(at_replacement=i % 2 == 0)
    print(f"{args.kills} kills, {lost} with another result")
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
