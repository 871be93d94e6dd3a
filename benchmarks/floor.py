"""Lower bound of a decoding step: reading weights, kept keys and selector keys once, at the memory's speed.

``python -m benchmarks.floor`` prints, for ``lasformer`` in 8 bits at beam 5 (see ``benchmarks decoding``), the
megabytes of each and the milliseconds that reading them takes on this machine, at the median speed of 15 sums
of 512 MB.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any
from unittest import mock

import torch

from benchmarks.decoding import BEAM, System, fill
from benchmarks.devices import CPU
from benchmarks.models import VOCABULARY
from fairseq_lasformer import ops
from fairseq_lasformer.ops import KeptKeys, KeyIndex

FLOAT, MB = 4, 1e6  # bytes: keys, values and selectors stay in float32


def memory_speed(threads: int) -> float:
    """Return the bytes per second that the threads read."""
    torch.set_num_threads(threads)
    numbers = torch.ones(128 << 20)

    def once() -> float:
        start = time.perf_counter()
        numbers.sum()
        return numbers.numel() * FLOAT / (time.perf_counter() - start)

    once()
    return statistics.median(once() for _ in range(15))


@torch.no_grad()
def to_read(length: int) -> dict[str, float]:
    """Return the bytes of a step after ``length`` tokens on both sides; slots kept by several hypotheses count once."""
    model = System.named("lasformer_unpacked").model()
    source, state = fill(model, length, 1, lambda: torch.randint(BEAM, (BEAM,)), CPU)
    share = len(model.decoder.layers) // len(model.decoder.layers.starts)
    width = 2 * model.decoder.embed_tokens.embedding_dim * FLOAT * share  # keys and values of a group's layers
    found = {"weights": 0.0, "kept keys": 0.0, "selector keys": 0.0}
    topk_indices = ops.topk_indices

    def counted(q: torch.Tensor, keys: torch.Tensor, paths: KeyIndex, *rest: Any) -> KeptKeys | None:
        kept = topk_indices(q, keys, paths, *rest)
        assert kept is not None
        slots = paths.end if paths.table is None else int(paths.table[:, : paths.end].unique().numel())
        found["selector keys"] += slots * keys.size(-1) * FLOAT
        found["kept keys"] += int((kept.indices.unique() >= 0).sum()) * width
        return kept

    with mock.patch.object(ops, "topk_indices", counted):
        words = torch.randint(4, VOCABULARY, (BEAM, length + 1))  # hypotheses that keep different keys
        model.decoder(words, encoder_out=source, incremental_state=state)
    for name, module in model.decoder.named_modules():
        # the source's keys and values were projected once
        if isinstance(module, torch.nn.Linear) and not ("encoder_attn" in name and name.endswith(("k_proj", "v_proj"))):
            found["weights"] += module.weight.numel() * (FLOAT if "selector" in name else 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,2048,4096", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    args = parser.parse_args()
    speed = memory_speed(args.threads)
    print(f"{speed / 1e9:.1f} GB/s with {args.threads} threads")
    for length in map(int, args.lengths.split(",")):
        parts = to_read(length)
        total = sum(parts.values())
        listed = ", ".join(f"{name} {size / MB:.1f}" for name, size in parts.items())
        print(f"T={length}: {listed}, together {total / MB:.1f} MB: {1000 * total / speed:.2f} ms")


if __name__ == "__main__":
    main()
