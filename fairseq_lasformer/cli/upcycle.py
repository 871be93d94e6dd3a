"""Subcommand ``upcycle``: turns a dense model into one that selects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.base.options import OWN, argument, part
from fairseq_lasformer.conversion.start_options import StartOptions, UpcycleOptions


@dataclass(frozen=True, kw_only=True)
class Upcycle(StartOptions, UpcycleOptions):
    """An upcycling."""

    checkpoint: Path = argument("dense checkpoint, as written by lasformer import or convert")
    data: Path = argument("prepared folder of documents, with the model's subwords (--reuse)")
    out: Path = argument("folder for checkpoints and logs; a killed run resumes there", writes=OWN)


def run_upcycle(args: Upcycle) -> None:
    from fairseq_lasformer.experiments.upcycle import upcycle

    print(upcycle(args.checkpoint, args.data, args.out, part(StartOptions, args), part(UpcycleOptions, args)))
