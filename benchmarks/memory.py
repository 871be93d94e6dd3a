"""A memory before a text: seconds to translate a part of a document after lines of context, dense and Lasformer.

Base size, kappa 0.05, beam 5, 8,000 words. The source is --part random tokens after each number of --tokens. The
translation of the latter is given, so it is read in one pass; as many tokens as the part has are searched.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.decoding import BEAM, System
from benchmarks.devices import Place, add_place, place_of
from benchmarks.models import VOCABULARY, Task
from benchmarks.rows import Row, in_turns
from fairseq_lasformer.search.beam_loop import BeamGenerator

SYSTEMS = ("lasformer_dense", "lasformer", "lasformer_dense_int8", "lasformer_int8_cache8")
BASELINES = ("lasformer_dense",)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", default="0,500,2000,8000", help="of the memory (default: %(default)s)")
    parser.add_argument("--part", type=int, default=256, help="tokens that are translated (default: %(default)s)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=3, help="default: %(default)s")
    add_place(parser, "documents of a batch (default: 1)")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    place, systems = place_of(args), args.systems.split(",")
    models = {name: System.named(name).model(place) for name in systems}
    for n in map(int, args.tokens.split(",")):
        case = f"{n} tokens of memory, a part of {args.part}"
        if args.done.issuperset((case, name) for name in systems):
            continue
        work = {name: partial(seconds, model, n, args.part, args.rows or 1, place) for name, model in models.items()}
        for name, figure in in_turns(work, args.repeat, case).items():
            yield Row(case, name, "seconds", figure)


@torch.no_grad()
def seconds(model: Any, memory: int, part: int, n_documents: int, place: Place) -> float:
    """Return the seconds of one translation, encoder and search included."""
    dictionary, total = Task().target_dictionary, memory + part
    generator = BeamGenerator([model], dictionary, beam_size=BEAM, max_len_a=0, max_len_b=total - 1, min_len=total - 1)
    drawn = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, VOCABULARY, (n_documents, total), generator=drawn) for _ in range(2))
    source[:, -1] = dictionary.eos()
    source, prefix = source.to(place.device), target[:, :memory].to(place.device)
    sample = {"net_input": {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}}
    given = {"prefix_tokens": prefix} if memory else {}

    def run() -> None:
        found = generator.generate([model], sample, **given)
        assert all(hypotheses[0]["tokens"].numel() == total for hypotheses in found)

    return place.seconds(run)
