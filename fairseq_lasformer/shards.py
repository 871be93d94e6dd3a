"""``python -m fairseq_lasformer.shards 0,2 OPTIONS…``: fairseq-generate on some shards, in one process one by one."""

from __future__ import annotations

import sys

from fairseq import options
from fairseq_cli import generate

# Ends the output of a shard; fairseq's own lines begin with a capital and a dash, or with the date.
END = "end of shard "


def main() -> None:
    shards, *arguments = sys.argv[1:]
    for shard in shards.split(","):
        parser = options.get_generation_parser()  # parsing adds the task's options to it
        generate.main(options.parse_args_and_arch(parser, [*arguments, "--distributed-rank", shard]))
        print(f"{END}{shard}", flush=True)


if __name__ == "__main__":
    main()
