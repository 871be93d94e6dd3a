"""How soon trainings start on a GPU, for ``python -m benchmarks.gpu``: seconds from "begin training" to update 20.

The demo's corpus, 12 million parameters, batches of 16,384 tokens; from an empty cache of Triton's kernels, one
training after the other, each with its limit of time.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.devices import Place
from benchmarks.rows import Row

ROOT = Path(__file__).parents[1]
SECONDS = 25.0
LASFORMER = ("--arch", "lasformer", "--select-share", "2", "--sparsity-step", "0.01")
SYSTEMS = {
    "lasformer": LASFORMER,
    "lasformer_dense": ("--arch", "lasformer_dense"),
}
OPTIONS = """
    --task document_translation -s en -t de --share-all-embeddings --dropout 0.2 --label-smoothing 0.1 --clip-norm 5
    --criterion label_smoothed_cross_entropy_with_selection --optimizer adam --lr 0.0005 --lr-scheduler inverse_sqrt
    --warmup-updates 100 --max-tokens 16384 --max-update 100000 --no-save --disable-validation --log-format json
    --log-interval 10 --num-workers 2 --encoder-embed-dim 256 --encoder-ffn-embed-dim 1024 --encoder-layers 5
    --encoder-attention-heads 4 --decoder-embed-dim 256 --decoder-ffn-embed-dim 1024 --decoder-layers 3
    --decoder-attention-heads 4 --encoder-normalize-before --decoder-normalize-before
"""


def starts(place: Place, quick: bool) -> Iterator[Row]:
    """Yield, for each training, seconds to update 20 and updates per second from there on."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = prepared(folder, 20 if quick else 400)
        environment = os.environ | {"TRITON_CACHE_DIR": str(folder / "cache")}
        where = ["--bf16"] if place.device.type == "cuda" else ["--cpu", "--max-update", "20", "--max-tokens", "2048"]
        for system, options in list(SYSTEMS.items())[-1 if quick else 0 :]:
            command = [sys.executable, "-m", "fairseq_cli.train", str(data), "--user-dir"]
            command += [
                str(ROOT / "fairseq_lasformer"),
                "--save-dir",
                str(folder / "run"),
                *OPTIONS.split(),
                *options,
                *where,
            ]
            log = folder / "log"
            with open(log, "w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
                try:
                    process.wait(200 if quick else SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
            found = figures(log.read_text(errors="replace"))
            if not found:
                raise RuntimeError(f"{system}: no update was logged: {log.read_text()[-600:]}")
            for metric, value in found.items():
                yield Row("start, 12M", system, metric, value, compared=False)


def prepared(folder: Path, documents: int) -> Path:
    """Generate and prepare the demo's corpus; return the folder of the data."""
    raw, data = folder / "raw", folder / "data"
    generate = [sys.executable, str(ROOT / "data/demo/generate.py"), str(raw), "--documents", str(documents)]
    prepare = [sys.executable, "-m", "fairseq_lasformer", "prepare", str(data), "-s", "en", "-t", "de"]
    prepare += ["--train", str(raw / "train"), "--size", "2000", "--limit", "1024"]
    for command in (generate, prepare):
        subprocess.run(command, check=True, capture_output=True)
    return data


def figures(log: str) -> dict[str, float]:
    """Return what a log of fairseq-train says, with lines every ten updates; empty without any."""
    began, seconds, found = None, {}, {}
    for line in log.splitlines():
        at = re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", line)
        now = datetime.fromisoformat(at[1]) if at else None
        if "begin training epoch 1" in line and now:
            began = now
        if (ready := re.search(r"Triton: (\d+) kernels are ready, ([\d.]+) seconds", line)) is not None:
            found |= {"kernels": float(ready[1]), "kernels ready, s": float(ready[2])}
        if (first := re.search(r"first batch: ([\d.]+) seconds", line)) is not None:
            found["first batch, s"] = float(first[1])
        if (inner := re.search(r"train_inner \| (\{.*\})", line)) is not None and began and now:
            values = json.loads(inner[1])
            seconds[int(values["num_updates"])] = (now - began).total_seconds()
            found |= {"updates": float(values["num_updates"]), "last updates/s": float(values["ups"])}
    if 20 in seconds:
        found["to update 20, s"] = seconds[20]
    return found if seconds else {}
