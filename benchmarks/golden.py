"""Golden runs: small trainings and translations whose losses, sparsity and lines are written to a file, to be compared.

``python -m benchmarks.golden OUT.jsonl [BEFORE.jsonl]`` trains a small model for each of :data:`TRAININGS` and
translates with it, in float32 and in 8 bits. A change that is meant to change no result gives the same file before and
after it, on the same machine; with BEFORE, the differences are listed and the exit code is 1 if there are any.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGGED = ("loss", "nll_loss", "selection_kl", "kappa", "mass", "recall", "gnorm", "moe_balance", "ppl")
SIZES = [
    f"--{side}-{name}"
    for side in ("encoder", "decoder")
    for name in ("embed-dim=32", "ffn-embed-dim=48", "layers=4", "attention-heads=2")
]
LASFORMER = ["--arch=lasformer", *SIZES, "--select-share=2", "--select-dim=8", "--sparsity-step=0.02"]
TRAININGS = {
    "dropout": ["--dropout=0.1", "--attention-dropout=0.1", "--word-dropout=0.1"],
    "all_queries": ["--supervise-rows=all", "--dropout=0"],
    "sampled": ["--supervise-rows=4"],
    "straight_through": ["--select-gradient=straight-through", "--update-freq=2"],
    "recomputed": ["--checkpoint-activations", "--dropout=0.1"],
    "window": ["--select-pattern=window:6"],
    "dense": ["--select-modules=none"],
    "mixture": ["--moe-experts=4", "--moe-layers=2"],
    "compact": ["--embedding=define", "--define-dim=32"],
    "lines": ["--select-pattern=etc:window=4", "--select-modules=encoder,decoder"],
    "performer": ["--select-pattern=performer:features=16", "--select-modules=encoder"],
}
TYPES = {"float32": [], "int8": ["--decode-dtype=int8", "--cache-dtype=int8"]}
TRANSLATED = {kind: tuple(TYPES) for kind in ("dropout", "window", "dense")} | {
    "mixture": ("float32",),
    "lines": ("float32",),
}


def corpus(folder: Path) -> None:
    """Write raw documents xx -> yy, words upper-cased, for train, valid and test."""
    draw = random.Random(5)
    for split, n in (("train", 50), ("valid", 5), ("test", 6)):
        documents = [
            [" ".join(f"w{draw.randrange(30)}" for _ in range(draw.randint(2, 8))) for _ in range(draw.randint(1, 9))]
            for _ in range(n)
        ]
        text = "\n".join("".join(f"{line}\n" for line in document) for document in documents)
        (folder / f"{split}.xx").write_text(text)
        (folder / f"{split}.yy").write_text(text.upper())


def call(*command: object) -> str:
    """Run a command of this environment; return what it printed."""
    program = Path(sys.executable).with_name(str(command[0]))
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([program, *map(str, command[1:])], cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout + done.stderr


def training(data: Path, save: Path, options: list[str]) -> list[dict[str, str]]:
    """Train for ten updates; return what each logged."""
    text = call(
        *("fairseq-train", data, "--user-dir", ROOT / "fairseq_lasformer", "--task", "document_translation", "--cpu"),
        *("--save-dir", save, "--max-tokens=300", "--optimizer=adam", "--lr=0.005", "--clip-norm=1.0", "--seed=1"),
        *("--no-epoch-checkpoints", "--log-format=json", "--log-interval=1", "--share-all-embeddings"),
        *("--max-update=10", "--criterion=label_smoothed_cross_entropy_with_selection", "--label-smoothing=0.1"),
        *LASFORMER,
        *options,
    )
    lines = [json.loads(found[1]) for found in re.finditer(r"\| train_inner \| (\{.*\})", text)]
    return [{key: value for key, value in line.items() if key.startswith(LOGGED)} for line in lines]


def run(out: Path) -> None:
    """Do all runs; write a line of JSON for each."""
    with tempfile.TemporaryDirectory() as name, out.open("w") as file:
        folder, data = Path(name), Path(name, "data")
        corpus(folder)
        splits = [part for split in ("train", "valid", "test") for part in (f"--{split}", folder / split)]
        plain = ("--tokenizer", "none", "--size", 100, "--limit", 60)
        call("lasformer", "prepare", data, "-s", "xx", "-t", "yy", *splits, *plain)
        for case, options in TRAININGS.items():
            print(f"golden: {case}", file=sys.stderr)
            save = folder / case
            result: dict[str, object] = {"case": case, "log": training(data, save, options)}
            for kind in TRANSLATED.get(case, ()):
                hypotheses = folder / f"{case}.{kind}.yy"
                call("lasformer", "generate", data, save / "checkpoint_last.pt", hypotheses, "--jobs", 1, *TYPES[kind])
                result[kind] = hypotheses.read_text()
            file.write(json.dumps(result) + "\n")
            file.flush()


def differences(before: Path, after: Path) -> list[str]:
    """Name the cases that differ."""
    old, new = ({r["case"]: r for r in map(json.loads, path.read_text().splitlines())} for path in (before, after))
    return [
        f"{case}: {key} differs"
        for case in sorted(old.keys() | new.keys())
        for key in sorted(old.get(case, {}).keys() | new.get(case, {}).keys())
        if old.get(case, {}).get(key) != new.get(case, {}).get(key)
    ]


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m benchmarks.golden OUT.jsonl [BEFORE.jsonl]")
    run(Path(sys.argv[1]))
    if len(sys.argv) == 3:
        found = differences(Path(sys.argv[2]), Path(sys.argv[1]))
        print("\n".join(found) or "the same to the last digit")
        sys.exit(bool(found))
