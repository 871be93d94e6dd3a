"""One text translated in many ways, compared by bytes: ``python -m benchmarks.reproducible MODEL TEXT``.

Every document of the text becomes a file, and ``lasformer translate FOLDER --format jsonl`` translates them: alone, in
batches of several sizes, in reverse order, by one thread and two, in shards, and with every instruction set of this
processor, also in PyTorch. Prints how many files, and how many of their bytes, differ from the first way, and the
seconds. Exits with 1 if any byte differs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.instructions import environment
from fairseq_lasformer.base import machine
from fairseq_lasformer.ops import cpu


class Way(NamedTuple):
    """A way to translate the folder.

    Attributes:
        options: of the command.
        threads: OMP_NUM_THREADS.
        instructions: the instruction set that no part may exceed; "" for all.
        shards: number of commands, one after the other.
        reverse: whether the files are named, and so translated, in reverse order.
    """

    name: str
    options: tuple[str, ...] = ()
    threads: int = 1
    instructions: str = ""
    shards: int = 1
    reverse: bool = False


def ways() -> list[Way]:
    """All ways; the others are compared with the first."""
    found = [Way("batches of 8,192 tokens"), Way("alone", ("--max-tokens", "1"))]
    found += [Way(f"batches of {n:,} tokens", ("--max-tokens", str(n))) for n in (500, 1500, 4000, 30000)]
    found += [Way("in reverse order", reverse=True), Way("two threads", threads=2), Way("three shards", shards=3)]
    # plain, which this processor would never choose, is what a processor without fused multiply-adds uses
    return [*found, *(Way(name, instructions=name) for name in cpu.instruction_sets()[1:] if name != "plain_fused")]


def translated(way: Way, args: argparse.Namespace, documents: list[str], work: Path) -> dict[int, bytes]:
    """Return the translated file of each document."""
    source, out = work / "source", work / "out"
    source.mkdir(parents=True)
    names = {i: f"{len(documents) - i if way.reverse else i:05}.txt" for i in range(len(documents))}
    for i, text in enumerate(documents):
        (source / names[i]).write_text(text + "\n", encoding="utf-8")
    command = [sys.executable, "-m", "fairseq_lasformer.cli.main", "translate", str(args.model), str(source)]
    command += ["-o", str(out), "--lines", "--format", "jsonl", "--reproducible", "--device", "cpu", "--quiet"]
    command += [*way.options, "--beam", str(args.beam), "--decode-dtype", args.decode_dtype]
    command += [] if args.data is None else ["--data", str(args.data)]
    env = {**os.environ, "OMP_NUM_THREADS": str(way.threads), **environment(way.instructions)}
    for shard in range(way.shards):
        subprocess.run([*command, "--shard", f"{shard + 1}/{way.shards}"], check=True, env=env)
    return {i: (out / f"{name}.jsonl").read_bytes() for i, name in names.items()}


def rows(args: argparse.Namespace, documents: list[str]) -> Iterator[tuple[str, int, int, float]]:
    """Yield way, files that differ, bytes that differ and seconds, as they come."""
    first: dict[int, bytes] = {}
    for way in ways():
        with TemporaryDirectory() as work:
            begun = time.perf_counter()
            found = translated(way, args, documents, Path(work))
            took = time.perf_counter() - begun
        first = first or found
        pairs = [(first[i], found[i]) for i in range(len(documents)) if first[i] != found[i]]
        differ = sum(sum(x != y for x, y in zip(a, b)) + abs(len(a) - len(b)) for a, b in pairs)
        yield way.name, len(pairs), differ, took


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproducible", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path, help="raw documents, a blank line between them")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--documents", type=int, default=300, help="default: %(default)s")
    parser.add_argument("--beam", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--decode-dtype", choices=("float32", "int8"), default="float32")
    args = parser.parse_args()
    documents = args.text.read_text(encoding="utf-8").strip("\n").split("\n\n")[: args.documents]
    text = f"{len(documents)} documents, {sum(map(len, documents)):,} characters, {args.decode_dtype}"
    print(f"{text}; {machine.describe(machine.machine())}")
    print("way | files that differ | bytes | seconds, including start\n--- | ---: | ---: | ---:")
    any_differs = False
    for name, files, differ, took in rows(args, documents):
        any_differs |= files > 0
        print(f"{name} | {files} | {differ} | {took:.1f}", flush=True)
    sys.exit(any_differs)


if __name__ == "__main__":
    main()
