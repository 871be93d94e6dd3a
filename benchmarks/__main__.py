"""``python -m benchmarks NAME [option...]``: run a benchmark, print its table, write runs/bench/NAME.json."""

from __future__ import annotations

import argparse
import logging
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.instructions import SETS, restrict
from benchmarks.rows import load, save, table
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.machine import wait_briefly

NAMES = """
kernels training prefill decoding pages lookups moe compact alignment serving imported competitors selectors
unions kept kappa
"""
BENCHMARKS = tuple(NAMES.split())


def main() -> None:
    wait_briefly()
    logging.basicConfig(level=logging.WARNING)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="NAME")
    for name in BENCHMARKS:
        module = import_module(f"benchmarks.{name}")
        text = (module.__doc__ or "").strip()
        command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument(
            "--out", type=Path, default=Path("runs/bench") / f"{name}.json", help="default: %(default)s"
        )
        command.add_argument("--isa", choices=SETS, help="limit every system to these instructions")
        command.add_argument(
            "--resume", action="store_true", help="keep the rows of the same command in --out, add the others"
        )
        module.add_options(command)
        command.set_defaults(module=module)
    args = parser.parse_args()
    if args.isa:
        restrict(args.isa)
    options = {k: str(v) for k, v in vars(args).items() if k not in ("out", "resume", "module")}
    try:
        rows = load(args.out, args.benchmark, options) if args.resume else []
    except InputError as e:
        sys.exit(f"error: {e}")
    args.done = frozenset((row.case, row.system) for row in rows)
    try:
        for row in args.module.measure(args):
            # written as they come: an interrupted run keeps its rows
            rows = [*(r for r in rows if r.key != row.key), row]
            save(args.out, args.benchmark, rows, options, getattr(args.module, "RATIOS", None))
    except InputError as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        sys.exit(f"stopped; the rows so far are in {args.out}; continue with --resume")
    finally:
        if rows:
            print(table(rows, args.module.BASELINES))


if __name__ == "__main__":
    main()
