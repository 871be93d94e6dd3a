#!/usr/bin/env python3
"""A memory on the demo's corpus: a client's words that only the client's earlier documents show.

    python examples/client_memory.py [--out runs/client_memory] [--seed 1]

Trains the demo's Lasformer on documents of sixty clients (data/demo/house_terms.py). Then translates documents of eight
other clients, with and without a memory of the client's earlier documents, and counts the correct house terms.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "data" / "demo"))
from demo import ROOT
from house_terms import TERMS

from fairseq_lasformer.apps.memory.building import build
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write, hold
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.evaluation.probe import accuracy, judge, read_probes, words
from fairseq_lasformer.evaluation.scores import score
from fairseq_lasformer.experiments.pipeline import ConfiguredTraining, Experiment
from fairseq_lasformer.text.documents import read_documents
from fairseq_lasformer.translation_memory.remembering import Memory

CLIENTS, TESTED = 60, 8
BEAM = 5
WAYS = ("no memory", "memory")
TRAINING = ("dataset.max_tokens=2300", "optimization.max_update=2300", "lr_scheduler.total_num_update=2500")
"""How the training differs from the demo's."""


def prepare_all(raw: Path, out: Path) -> None:
    """Prepare the documents of all clients."""
    train = tuple(str(raw / f"client{c}") for c in range(CLIENTS))
    valid, test = (str(raw / "valid"),), (str(raw / "test"),)
    config = PrepareConfig("en", "de", train, valid, test, out, size=4000, limit=2048, resolutions="documents")
    prepare(config, overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "client_memory")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_intermixed_args()
    out = args.out.resolve()
    raw = out / "raw"
    try:
        out.mkdir(parents=True, exist_ok=True)
        hold(out / ".lock", "this example")
        progress = Progress(out, key_of(args.seed, args.overrides))
        progress.open(f"{out}: belongs to a different run; choose another folder with --out")
        generator = [sys.executable, str(ROOT / "data/demo/house_terms.py"), str(raw), "--seed", str(args.seed)]
        generator += ["--clients", str(CLIENTS), "--test-clients", str(TESTED)]
        progress.run("corpus", lambda: subprocess.run(generator, check=True, stdout=sys.stderr), tell=True)
        progress.run("prepare", lambda: prepare_all(raw, out / "data"), tell=True)
        changes = (f"common.seed={args.seed}", *TRAINING, *args.overrides)
        run = Experiment(
            name="lasformer",
            training=ConfiguredTraining(ROOT / "configs/demo.yaml", changes, out / "hydra"),
            data=out / "data",
            folder=out / "lasformer",
            log=out / "lasformer.log",
        )
        run.run(progress, [run.stages()[0]], tell=True)
        languages = "en", "de"
        for t in range(TESTED):
            build(out / f"memory{t}.tm", [raw / f"memory{t}"], languages)
        report = evaluated(run, raw, out)
    except InputError as e:
        sys.exit(f"error: {e}")
    atomic_write(out / "report.json", json.dumps(report, indent=1) + "\n")
    print(table(report))


def evaluated(run: Experiment, raw: Path, out: Path) -> dict[str, Any]:
    """Return the scores of a model with and without the memories."""
    model = load_model(run.checkpoint, run.data, "cpu")
    documents, references = read_documents(raw / "test.en"), read_documents(raw / "test.de")
    probes, owners = read_probes(raw / "test.probe.jsonl"), json.loads((raw / "test.clients.json").read_text())
    found = {}
    for name in WAYS:
        hypotheses: list[Any] = [None] * len(documents)
        begun = time.perf_counter()
        for t in tqdm(range(TESTED), desc=f"{run.name}, {name}", unit=" clients"):
            memory = Memory(out / f"memory{t}.tm", ("en", "de")) if name == "memory" else None
            own = [i for i, owner in enumerate(owners) if owner == t]
            texts = ["\n".join(documents[i]) for i in own]
            made = model.translate_documents(texts, BEAM, progress=False, memory=memory)
            for i, text in zip(own, made):
                hypotheses[i] = text.split("\n")
        found[name] = {
            **score(hypotheses, references),
            **accuracy(probes, judge(probes, hypotheses, references)),
            "one_form": one_form(documents, hypotheses),
            "seconds": time.perf_counter() - begun,
        }
    return found


def one_form(documents: list[list[str]], hypotheses: list[list[str]]) -> float:
    """Return the share of house terms in several lines of a document that have one form in all of them."""
    forms = {row[0]: [form.split()[1] for form in row[1:]] for row in TERMS}
    several, same = 0, 0
    for source, target in zip(documents, hypotheses):
        for term, its in forms.items():
            lines = [words(b) for a, b in zip(source, target) if term in words(a)]
            if len(lines) > 1:
                several += 1
                same += len({tuple(form in line for form in its) for line in lines}) == 1
    return same / max(1, several)


def table(report: dict[str, Any]) -> str:
    """Return the table that is printed at the end."""
    first = report[WAYS[0]]
    rows: list[tuple[str, list[str]]] = [("d-BLEU", [f"{of['d_bleu']:.2f}" for of in report.values()])]
    for kind in first["accuracy"]:
        label = f"{kind} (chance {first['chance'][kind]:.0%}, n={first['counts'][kind]})"
        rows.append((label, [f"{of['accuracy'][kind]:.1%}" for of in report.values()]))
    rows.append(("house terms of several lines with one form", [f"{of['one_form']:.1%}" for of in report.values()]))
    rows.append(("seconds", [f"{of['seconds']:.0f}" for of in report.values()]))
    lines = [f"| | {' | '.join(report)} |", "|---" * (len(report) + 1) + "|"]
    return "\n".join([*lines, *(f"| {label} | {' | '.join(cells)} |" for label, cells in rows)])


if __name__ == "__main__":
    main()
