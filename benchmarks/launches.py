"""Counts what a training step of the base model asks of a GPU, on a fake one: ``python -m benchmarks.launches``.

Prints kernel launches, host synchronisations, uploads and bytes (each operator's arguments and results once) of a
forward and backward pass in bfloat16, and the lines of the project that launch most.
"""

from __future__ import annotations

import argparse
import collections
import os
import traceback

os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

import torch

from benchmarks import models
from benchmarks.fake_gpu import FakeGpu, to_gpu
from fairseq_lasformer.ops.backends import triton_kernels
from fairseq_lasformer.plugin.criterion import LabelSmoothedCrossEntropyWithSelection


class _Counted(FakeGpu):
    """Tells launches and bytes by the line of the project that asked for them."""

    def __init__(self) -> None:
        super().__init__(interpret=False)
        self.lines: collections.Counter[str] = collections.Counter()

    def count_launch(self, name: str, read: object, written: object, n: int = 1) -> None:
        super().count_launch(name, read, written, n)
        frames = [f for f in traceback.extract_stack() if "fairseq_lasformer/" in f.filename]
        frames = [f for f in frames if "benchmarks/" not in f.filename]
        self.lines[f"{frames[-1].filename.split('/')[-1]}:{frames[-1].lineno}" if frames else "autograd"] += n


def count(system: str, documents: int, length: int, kappa: float, supervise_rows: str) -> _Counted:
    """Count a step; see the options of :func:`main`."""
    task = models.Task()
    model = models.build(system, kappa, supervise_rows).to(torch.bfloat16)
    words = torch.randint(4, models.VOCABULARY, (documents, length))
    sample = {
        "ntokens": words.numel(),
        "target": words,
        "net_input": {
            "src_tokens": words,
            "src_lengths": torch.full((documents,), length),
            "prev_output_tokens": words,
        },
    }
    criterion = LabelSmoothedCrossEntropyWithSelection(task, False, 0.1, selection_weight=0.01)
    with _Counted() as gpu:
        model = to_gpu(model)
        for _, selector in getattr(model, "selectors", list)():
            selector.millionths  # noqa: B018 - after this, the host knows kappa
        triton_kernels("triton_decode")  # tries them out once
        gpu.reset()
        gpu.lines.clear()
        loss, _, _ = criterion(model, to_gpu(sample))
        loss.backward()
    return gpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="lasformer", help="or transformer, lasformer_dense (default: %(default)s)")
    parser.add_argument("--documents", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=4096, help="tokens a side (default: %(default)s)")
    parser.add_argument("--kappa", type=float, default=0.05, help="default: %(default)s")
    parser.add_argument("--supervise-rows", default="512", help="default: %(default)s")
    parser.add_argument("--top", type=int, default=0, help="number of lines of the project to show")
    args = parser.parse_args()
    gpu = count(args.system, args.documents, args.length, args.kappa, args.supervise_rows)
    total = gpu.totals
    print(
        f"{args.system}, {args.documents} x {args.length} tokens, kappa {args.kappa:g}: "
        f"{total['launches']:,} launches, {total['syncs']} synchronisations, {total['uploads']} uploads, "
        f"{total['bytes'] / 1e9:.1f} GB"
    )
    for line, n in gpu.lines.most_common(args.top):
        print(f"{n:6} {line}")


if __name__ == "__main__":
    main()
