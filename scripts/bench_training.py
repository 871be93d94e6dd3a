#!/usr/bin/env python3
"""Time and memory of forward and backward: lasformer beside fairseq's transformer, base size, one document.

    python scripts/bench_training.py [--lengths 1024,4096] [--repeat 3] [--out runs/bench/training.json]

Time: both models in one process, in turn, medians; kappa as given (half-way through training and at its end).
Memory: a fresh process each, peak resident memory of one step after the model is built.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fairseq_lasformer.config import PRESETS, LasformerConfig
from fairseq_lasformer.files import atomic_write
from fairseq_lasformer.model import LasformerModel
from fairseq_lasformer.ops import KAPPA_ONE

VOCABULARY = 8000


class _Task:
    """The little of a task that building a model needs."""

    def __init__(self) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for i in range(VOCABULARY - len(self.source_dictionary)):
            self.source_dictionary.add_symbol(f"w{i}")


def build(system: str, kappa: float) -> torch.nn.Module:
    """A base-size model in training mode; ``system``: transformer, lasformer or lasformer_dense."""
    torch.manual_seed(1)
    if system == "transformer":
        cfg = TransformerConfig()
        cfg.encoder, cfg.decoder, cfg.quant_noise = cfg.encoder(), cfg.decoder(), cfg.quant_noise()
        cfg.share_all_embeddings, cfg.max_source_positions, cfg.max_target_positions = True, 16384, 16384
        return TransformerModelBase.build_model(cfg, _Task()).train()
    preset = PRESETS.get(system, {})
    cfg = LasformerConfig(**preset, share_all_embeddings=True, max_source_positions=16384, max_target_positions=16384)
    model = LasformerModel.build_model(cfg, _Task()).train()
    for _, selector in model.selectors():
        selector.kappa.fill_(round(kappa * KAPPA_ONE))
    return model


def step(model: torch.nn.Module, length: int) -> float:
    """Seconds of one forward and backward pass over one document of ``length`` tokens on both sides."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(4, VOCABULARY, (1, length + 1), generator=generator)
    start = time.perf_counter()
    logits, extra = model(tokens[:, :-1], torch.tensor([length]), tokens[:, :-1])
    loss, _ = label_smoothed_nll_loss(
        logits.float().log_softmax(-1).view(-1, logits.size(-1)), tokens[:, 1:].reshape(-1), 0.1, ignore_index=1
    )
    for given in extra.get("supervision", {}).values():
        loss = loss + 0.01 * length * given.kl / given.queries
    loss.backward()
    seconds = time.perf_counter() - start
    model.zero_grad(set_to_none=True)
    return seconds


def peak_gib(system: str, length: int, kappa: float) -> float:
    """Peak resident memory of a process that does one step, GiB."""
    command = [sys.executable, __file__, "--one", system, str(length), str(kappa)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="1024,4096")
    parser.add_argument("--kappas", default="0.5,0.05")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/training.json"))
    parser.add_argument("--one", nargs=3, metavar=("SYSTEM", "LENGTH", "KAPPA"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        step(build(args.one[0], float(args.one[2])), int(args.one[1]))
        # not getrusage: a child starts with its parent's maximum there
        status = Path("/proc/self/status").read_text()
        print(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 2**20)  # type: ignore[index]
        return
    lengths, kappas = [int(n) for n in args.lengths.split(",")], [float(k) for k in args.kappas.split(",")]
    systems = [("transformer", 1.0), *(("lasformer", k) for k in kappas), ("lasformer_dense", 1.0)]
    rows: list[dict[str, Any]] = []
    with tqdm(total=len(lengths) * len(systems) * (args.repeat + 2), unit=" steps") as bar:
        for length in lengths:
            models = [build(*s) for s in systems]
            times: list[list[float]] = [[] for _ in systems]
            for turn in range(args.repeat + 1):
                for i, model in enumerate(models):
                    seconds = step(model, length)
                    if turn:
                        times[i].append(seconds)
                    bar.update()
            del models
            base = statistics.median(times[0])
            for (system, kappa), seen in zip(systems, times):
                seconds = statistics.median(seen)
                rows.append(
                    {
                        "system": system,
                        "kappa": kappa,
                        "T": length,
                        "seconds": round(seconds, 3),
                        "ratio_to_transformer": round(seconds / base, 2),
                        "peak_rss_gib": round(peak_gib(system, length, kappa), 2),
                    }
                )
                bar.update()
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cores": os.cpu_count()}
    atomic_write(args.out, json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    print(f"{'system':<16}{'kappa':>6}{'T':>7}{'seconds':>9}{'ratio':>7}{'GiB':>7}")
    for r in rows:
        print(
            f"{r['system']:<16}{r['kappa']:>6}{r['T']:>7}{r['seconds']:>9.2f}{r['ratio_to_transformer']:>7.2f}{r['peak_rss_gib']:>7.2f}"
        )


if __name__ == "__main__":
    main()
