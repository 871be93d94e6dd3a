"""A translation memory: seconds to build it, memory used, look-ups per second on one core, and the share found.

Pairs of random sentences of 6 to 22 words out of 60,000, with frequencies by Zipf's law. Each query is a sentence of
the memory with one word replaced; it counts as found if the best match is that sentence.
"""

from __future__ import annotations

import argparse
import itertools
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.rows import Row
from fairseq_lasformer.apps.memory.building import build
from fairseq_lasformer.translation_memory.matching import Matcher
from fairseq_lasformer.translation_memory.store import MemoryStore

BASELINES: tuple[str, ...] = ()
WORDS = 60_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", default="1000000", help="default: %(default)s")
    parser.add_argument("--look-ups", type=int, default=5000, help="default: %(default)s")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    for pairs in map(int, args.pairs.split(",")):
        case = f"{pairs} pairs"
        with tempfile.TemporaryDirectory() as folder:
            rng = random.Random(1)
            words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9))) for _ in range(WORDS)]
            odds = list(itertools.accumulate(1 / (i + 3) for i in range(WORDS)))
            path, table = Path(folder) / "m.tm", Path(folder) / "pairs.tsv"
            asked: list[tuple[str, str]] = []
            with open(table, "w") as file:
                for i in range(pairs):
                    sentence = rng.choices(words, cum_weights=odds, k=rng.randint(6, 22))
                    text = " ".join(sentence)
                    file.write(f"{text}\t{text[::-1]}\n")
                    if i * args.look_ups // pairs == len(asked):
                        sentence[rng.randrange(len(sentence))] = rng.choice(words)
                        asked.append((text, " ".join(sentence)))
            begun = time.perf_counter()
            build(path, [table], ("en", "de"))
            yield Row(case, "build", "seconds", time.perf_counter() - begun)
            yield Row(case, "build", "peak MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
            yield Row(case, "build", "file MiB", path.stat().st_size / 2**20)
            matcher = Matcher(MemoryStore(path))
            begun = time.perf_counter()
            found = [matcher.find(sentence) for _, sentence in asked]
            seconds = time.perf_counter() - begun
            right = sum(bool(matches) and matches[0].source == text for (text, _), matches in zip(asked, found))
            yield Row(case, "find", "look-ups/s", len(asked) / seconds)
            yield Row(case, "find", "found, %", 100 * right / len(asked))
