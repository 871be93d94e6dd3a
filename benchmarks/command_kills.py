"""Commands killed and repeated, checked for an equal result: ``python -m benchmarks.command_kills MODEL``.

Each of ``prepare``, ``train``, ``translate FOLDER``, ``run``, ``report``, ``import``, ``distil`` and ``upcycle`` works
once, undisturbed, on a small corpus and with small models that are made here. Then chains of it begin in an empty
folder: it is killed with SIGKILL at a random time (its processes too, as when a machine fails), repeated, killed again,
and repeated until it succeeds. Its results are compared with the first ones: files byte for byte, the last checkpoint
weight by weight. Exits with 1 if a result differs. Translations that are cut into shards are ``benchmarks.kills``,
``translate --since`` is ``benchmarks.update_kills``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tqdm import tqdm

from benchmarks.imported import write_model

MOST = 20
"""Repetitions of a command until it counts as lost."""
TRAINING = "--arch lasformer_tiny --max-update 12 --save-every 3 --max-tokens 512 --log-every 3"


def corpus(folder: Path) -> None:
    """Write parallel documents: four training documents of ten lines, one of development and one to test."""
    draw, names = random.Random(3), ("file", "page", "letter", "window", "table", "printer")
    folder.mkdir()
    for split, documents in (("train", 24), ("dev", 2), ("test", 2)):
        for language, word in (("en", "open the {} and save number {}"), ("de", "die {} öffnen und Nummer {} sichern")):
            draw.seed(split)
            lines = [[word.format(draw.choice(names), draw.randrange(90)) for _ in range(10)] for _ in range(documents)]
            (folder / f"{split}.{language}").write_text("\n\n".join("\n".join(text) for text in lines) + "\n")
    (folder / "pages").mkdir()
    for n in range(4):
        text = "\n".join(f"Open the file and save it as number {n * 9 + i}." for i in range(9))
        (folder / "pages" / f"{n}.txt").write_text(text + "\n")
    (folder / "run.yaml").write_text(
        f"source: en\ntarget: de\ntrain: [{folder}/train]\nvalid: [{folder}/dev]\ntest: {folder}/test\n"
        f"out: {folder.parent}/made\nprepare: {{size: 150}}\ntranslation: {{beam: 2}}\n"
        "training: {arch: lasformer_tiny, max_update: 12, save_every: 3, max_tokens: 512, log_every: 3}\n"
    )
    (folder / "student.yaml").write_text(
        f"source: en\ntarget: de\ntrain: [{folder}/train]\nvalid: [{folder}/dev]\nout: {folder.parent}/made\n"
        "training: {arch: lasformer_tiny, max_update: 6, save_every: 3, max_tokens: 512, log_every: 3}\n"
    )
    (folder / "original").mkdir()
    write_model(folder / "original", "opus-tiny")


def commands(raw: Path, out: Path, model: Path, data: Path, dense: Path) -> dict[str, list[str]]:
    """Return the words of each command, whose results are in ``out``."""
    texts = f"--train {raw}/train --valid {raw}/dev --test {raw}/test --size 150"
    return {
        "prepare": f"prepare {out} -s en -t de {texts} --workers 2".split(),
        "train": f"train {data} {out} {TRAINING}".split(),
        "translate": f"translate {model} {raw}/pages -o {out} --lines --beam 2 --quiet".split(),
        "translate --jobs 2": f"translate {model} {raw}/pages -o {out} --lines --beam 2 --jobs 2 --quiet".split(),
        "run": ["run", str(raw / "run.yaml")],
        "report": f"report {model.parent} --document {raw}/test.en -o {out}/page --show 2".split(),
        "import": f"import {raw}/original {out} -s en -t de --no-check".split(),
        "distil": f"distil {dense} {data} {raw}/student.yaml --beam 1".split(),
        "upcycle": f"upcycle {dense}/checkpoint_last.pt {data} {out} --updates 4 --documents 6 --words 2000".split(),
    }


def begin(words: list[str]) -> subprocess.Popen[bytes]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "fairseq_lasformer.cli.main", *words]
    return subprocess.Popen(command, start_new_session=True, **quiet)


def results(out: Path) -> dict[str, str]:
    """Return the hashes of a command's results: all but logs, times of work and what is only there to resume."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or path.suffix in (".log", ".jsonl", ".json", ".lock", ".html") or "/." in f"/{name}":
            continue
        if path.suffix == ".pt":
            if path.name in ("checkpoint_last.pt", "model.pt"):
                weights = torch.load(path, weights_only=True, map_location="cpu")["model"]
                content = b"".join(weights[key].float().numpy().tobytes() for key in sorted(weights))
                found[name] = hashlib.sha256(content).hexdigest()
            continue
        # a page says when it was written
        found[name] = hashlib.sha256(re.sub(rb"<dt>written</dt><dd>[^<]*", b"", path.read_bytes())).hexdigest()
    return found


def killed(words: list[str], seconds: float, draw: random.Random, times: int) -> tuple[int, int]:
    """Kill a command some times and repeat it; return how often it was at work, and how often it was begun again."""
    at_work, again = 0, times
    for _ in range(times):
        process, end = begin(words), time.monotonic() + draw.uniform(0, seconds)
        while time.monotonic() < end and process.poll() is None:
            time.sleep(0.01)
        if process.poll() is None:
            at_work += 1
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    while begin(words).wait() and again < MOST:
        again += 1
    return at_work, again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--chains", type=int, default=5, help="of each command (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=2, help="in each chain (default: %(default)s)")
    parser.add_argument("--only", nargs="+", help="these commands")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    draw, bad = random.Random(args.seed), 0
    print("command | killed at work | repeated | equal\n--- | ---: | ---: | ---:", flush=True)
    with TemporaryDirectory() as name:
        folder = Path(name)
        raw, out, data, dense = (folder / place for place in ("raw", "made", "data", "dense"))
        corpus(raw)
        for first in (
            commands(raw, data, args.model, data, dense)["prepare"],
            f"train {data} {dense} {TRAINING}".replace("lasformer_tiny", "lasformer_dense_tiny").split(),
        ):
            if begin(first).wait():
                sys.exit(f"error: {first[0]} failed")
        for what, words in commands(raw, out, args.model, data, dense).items():
            if args.only and what not in args.only:
                continue
            shutil.rmtree(out, ignore_errors=True)
            start = time.monotonic()
            if begin(words).wait():
                sys.exit(f"error: {what} failed: lasformer {' '.join(words)}")
            seconds, whole = time.monotonic() - start, results(out)
            tally = [0, 0, 0]
            for _ in tqdm(range(args.chains), desc=what, unit=" chains"):
                shutil.rmtree(out)
                at_work, again = killed(words, seconds, draw, args.kills)
                tally = [a + b for a, b in zip(tally, (at_work, again, results(out) == whole))]
            bad += args.chains - tally[2]
            print(" | ".join(map(str, (what, *tally))), flush=True)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
