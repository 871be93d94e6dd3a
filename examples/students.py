#!/usr/bin/env python3
"""A comparison of models on the demo's corpus: size, speed on one thread, and quality.

    python examples/students.py runs/demo/raw 6+6=runs/demo/lasformer 3+1=runs/student/model [--decode-dtype int8]

Each model, a checkpoint or the folder of one, translates the first test documents (--documents, greedily) several
times, taking turns with the others; the fastest time counts. Then it translates all documents with --beam and is
scored. The results are also written as JSON (--out).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import demo  # noqa: F401  (sets up fairseq's logging)
import torch
from tqdm import tqdm

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write
from fairseq_lasformer.checkpoints.loading import chosen, load
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.evaluation.probe import accuracy, judge, read_probes
from fairseq_lasformer.evaluation.scores import score
from fairseq_lasformer.text.documents import read_documents

HEAD = "| model | parameters | bytes | steps per second | d-BLEU | context-dependent words |\n|---|---|---|---|---|---|"


def timed(model: Any, documents: list[str]) -> float:
    """Return the decoding steps per second of greedy search, one document at a time."""
    start, steps = time.perf_counter(), 0
    for document in documents:
        (translation,) = model.translate_documents([document], beam=1, progress=False)
        steps += sum(len(model.codec.encode_target(line).split()) + 1 for line in translation.split("\n"))
    return steps / (time.perf_counter() - start)


def size(checkpoint: Path) -> tuple[int, int]:
    """Return the number of parameters of a checkpoint, tied ones counted once, and their bytes in it."""
    weights = {
        w.data_ptr(): w for w in load(checkpoint)["model"].values() if w.is_floating_point() and w.dim()
    }.values()
    return sum(w.numel() for w in weights), sum(w.numel() * w.element_size() for w in weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path, help="folder of test.en, test.de and test.probe.jsonl")
    parser.add_argument("models", nargs="+", metavar="NAME=CHECKPOINT")
    parser.add_argument("--data", type=Path, help="prepared folder (default: each model's own)")
    parser.add_argument("--decode-dtype", choices=("float32", "int8"), default="float32")
    parser.add_argument("--beam", type=int, default=2, help="beam of the scored translation (default: %(default)s)")
    parser.add_argument("--documents", type=int, default=10, help="timed documents (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("runs/students.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        sources = ["\n".join(document) for document in read_documents(args.raw / "test.en")]
        references, probes = read_documents(args.raw / "test.de"), read_probes(args.raw / "test.probe.jsonl")
        models, places, speeds = {}, {}, dict[str, float]()
        for word in args.models:
            name, separated, path = word.partition("=")
            if not separated:
                raise InputError(f"{word}: expected NAME=CHECKPOINT")
            places[name] = chosen(Path(path))
            models[name] = load_model(places[name], args.data, "cpu", args.decode_dtype)
        for _ in tqdm(range(args.repeat), desc="timing", unit=" rounds"):
            for name, model in models.items():
                speeds[name] = max(speeds.get(name, 0.0), timed(model, sources[: args.documents]))
        rows = []
        for name, model in models.items():
            made = [d.split("\n") for d in model.translate_documents(sources, args.beam)]
            parameters, of_bytes = size(places[name])
            quality = accuracy(probes, judge(probes, made, references))["accuracy"]["all"]
            row = {"model": name, "parameters": parameters, "bytes": of_bytes, "steps_per_second": speeds[name]}
            rows.append(row | {"d_bleu": score(made, references)["d_bleu"], "accuracy": quality})
    except InputError as e:
        sys.exit(f"error: {e}")
    atomic_write(args.out, json.dumps({"decode_dtype": args.decode_dtype, "rows": rows}, indent=1) + "\n")
    print(HEAD)
    for row in rows:
        cells = [row["model"], f"{row['parameters'] / 1e6:.2f} M", f"{row['bytes'] / 1e6:.2f} M"]
        cells += [f"{row['steps_per_second']:.0f}", f"{row['d_bleu']:.2f}", f"{row['accuracy']:.1%}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
