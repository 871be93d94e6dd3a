"""``python -m benchmarks NAME [option...]``: run a benchmark, print its table, write runs/bench/NAME.json."""

from __future__ import annotations

import argparse
import logging
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.rows import Row, save, table
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.threads import wait_briefly

BENCHMARKS = ("training", "prefill", "decoding", "moe", "compact", "alignment", "serving")


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
        module.add_options(command)
        command.set_defaults(module=module)
    args = parser.parse_args()
    rows: list[Row] = []
    try:
        for row in args.module.measure(args):
            rows.append(row)  # written as they come: a run that is cut off keeps what it has
            save(args.out, args.benchmark, rows, getattr(args.module, "RATIOS", None))
    except InputError as e:
        sys.exit(f"error: {e}")
    finally:
        if rows:
            print(table(rows, args.module.BASELINES))


if __name__ == "__main__":
    main()
