"""Subcommand ``average``: a mean of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import NEW, argument, option
from fairseq_lasformer.base.shared_options import Overwrite


@dataclass(frozen=True, kw_only=True)
class Average(Overwrite):
    """A mean of checkpoints."""

    out: Path = argument("checkpoint to write", writes=NEW)
    checkpoints: tuple[Path, ...] = argument("checkpoints of one run, the last one at the end")
    ema: bool = option(False, "use the moving averages in the checkpoints (trained with --store-ema)")
    kappa: float | None = option(None, "share of the keys that are kept (default: as in the last checkpoint)")


def run_average(args: Average) -> None:
    from fairseq_lasformer.base.files import check_writable
    from fairseq_lasformer.checkpoints.loading import average
    from fairseq_lasformer.ops import KAPPA_ONE

    check_writable(args.out)
    if args.kappa is not None and not 1 / KAPPA_ONE <= args.kappa <= 1.0:
        raise InputError(f"--kappa {args.kappa}: expected a share of the keys, above 0 and at most 1, in millionths")
    average(args.checkpoints, args.out, args.ema, None if args.kappa is None else round(args.kappa * KAPPA_ONE))
    what = "moving averages" if args.ema else "checkpoints"
    kappa = f"of {args.checkpoints[-1]}" if args.kappa is None else f"{args.kappa:g}"
    print(f"{args.out}: mean of {len(args.checkpoints)} {what}, kappa {kappa}")
