"""Counts of the base model's work on a fake GPU: ``python -m benchmarks.launches``.

Prints kernel launches, host synchronisations, uploads and bytes (each operator's arguments and results once) of a
forward and backward pass in bfloat16, and the lines of the project that launch most; with ``--search``, of the steps of
a beam search.
"""

from __future__ import annotations

import argparse
import collections
import os
import traceback
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before any kernel is defined

import torch
from fairseq.sequence_generator import SequenceGenerator

from benchmarks import models
from benchmarks.fake_gpu import FakeGpu, to_gpu
from fairseq_lasformer.nn.options import RunOptions
from fairseq_lasformer.ops.backends import triton_kernels
from fairseq_lasformer.plugin.criterion import LabelSmoothedCrossEntropyWithSelection
from fairseq_lasformer.search.beam_loop import BeamGenerator
from fairseq_lasformer.search.generator import AlignedGenerator, Alignment


class _Counted(FakeGpu):
    """A fake GPU that reports launches and bytes by the line of the project that caused them."""

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
    sample = models.batch_of(words, words, words)
    criterion: Any = LabelSmoothedCrossEntropyWithSelection(task, False, 0.1, selection_weight=0.01)
    with _Counted() as gpu:
        model = to_gpu(model)
        for _, selector in getattr(model, "selectors", list)():
            selector.millionths  # noqa: B018 - after this, the host knows kappa
        triton_kernels("decode")  # tries them out once
        gpu.reset()
        gpu.lines.clear()
        loss, _, _ = criterion(model, to_gpu(sample))
        loss.backward()
    return gpu


BEAM, STEPS = 5, 32
# what a step finds is where the next one looks
SEARCH = frozenset({"_best_of_chunk", "_best_of_item", "_advance", "_restrict_lines", "_count_lines"})


@torch.no_grad()
def count_search(name: str, system: str, documents: int, length: int, kappa: float) -> dict[str, dict[str, float]]:
    """Count :data:`STEPS` steps of a beam search, the decoder's and those of the search around it, each per step.

    Args:
        name: of the search: ``fairseq``, ``plain`` or ``aligned``.
        system, documents, length, kappa: see the options of :func:`main`.
    """
    words = models.Task().target_dictionary
    run = RunOptions("triton")
    model = models.build(system, kappa, run=run).to(torch.bfloat16).eval()
    source = torch.randint(5, models.VOCABULARY, (documents, length))
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}}
    long = {"max_len_a": 0, "max_len_b": 2 * STEPS, "min_len": 2 * STEPS}
    parts: dict[str, collections.Counter[str]] = {"decoder": collections.Counter(), "search": collections.Counter()}
    with FakeGpu(interpret=SEARCH) as gpu:
        model = to_gpu(model)
        model.make_generation_fast_()
        if name == "aligned":
            generator: Any = AlignedGenerator(
                [model], words, alignment=Alignment((4, 4), 0.0, 2.0 * STEPS, 0), beam_size=BEAM
            )
        else:
            generator = (SequenceGenerator if name == "fairseq" else BeamGenerator)(
                [model], words, beam_size=BEAM, **long
            )
        forward, step, before = generator.model.forward_decoder, 0, gpu.totals

        def counted(*args: Any) -> Any:
            nonlocal step, before
            start = gpu.totals
            out = forward(*args)
            if 2 < step <= 2 + STEPS:  # from the third on, everything that a step asks for once is known
                for part, first, last in (("search", before, start), ("decoder", start, gpu.totals)):
                    parts[part].update({what: last[what] - first[what] for what in first})
            out[0].fill_(-1.0)  # kernels that are not run leave arbitrary values
            out[0][..., words.eos()].fill_(-99.0)
            step, before = step + 1, gpu.totals
            return out

        generator.model.forward_decoder = counted
        generator.generate([model], to_gpu(sample))
    return {part: {what: n / STEPS for what, n in counts.items()} for part, counts in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="lasformer", help="or transformer, lasformer_dense (default: %(default)s)")
    parser.add_argument("--documents", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=4096, help="tokens per side (default: %(default)s)")
    parser.add_argument("--kappa", type=float, default=0.05, help="default: %(default)s")
    parser.add_argument("--supervise-rows", default="auto", help="default: %(default)s")
    parser.add_argument("--top", type=int, default=0, help="number of lines of the project to show")
    parser.add_argument("--search", choices=("fairseq", "plain", "aligned"), help="count a beam search instead")
    args = parser.parse_args()
    if args.search:
        options = args.system, args.documents, args.length, args.kappa
        for part, of in count_search(args.search, *options).items():
            print(
                f"{args.search} search, {part}, a step: {of['launches']:.1f} launches, "
                f"{of['syncs']:.2f} synchronisations, {of['uploads']:.2f} uploads, {of['bytes'] / 1e6:.1f} MB"
            )
        return
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
