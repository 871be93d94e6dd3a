"""Other ways to attend: decoding steps per second after --length tokens on both sides, each with as many keys.

Base size, beam 5, one document of random tokens, a tenth of which end a line. Lasformer keeps --keys of --length keys;
the others are those of lasformer ablate --table 1. Those that the fast decoder does not support are decoded in
PyTorch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.decoding import BEAM
from benchmarks.devices import CPU
from benchmarks.models import VOCABULARY, Task, build
from benchmarks.rows import Row, in_turns
from fairseq_lasformer.analysis.cost import module_cost, module_patterns
from fairseq_lasformer.experiments.ablation import competitors
from fairseq_lasformer.plugin.placement import MODULES

BASELINES = ("Transformer",)
SEPARATOR = 4


class Lines(Task):
    """A task whose data has a separator."""

    def separator_in(self, dictionary: Any) -> int:
        return SEPARATOR


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--length", type=int, default=4096, help="tokens of both sides (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=205, help="of a query (default: %(default)s, 5%% of 4,096)")
    parser.add_argument("--steps", type=int, default=32, help="of a measurement (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--only", help="systems, separated by commas (default: all)")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    case = f"T={args.length}, {args.keys} keys"
    ways: dict[str, dict[str, str]] = {"Lasformer": {}}
    ways |= {
        c.label: {"select_pattern": c.pattern, "select_modules": c.modules} for c in competitors(args.keys, args.length)
    }
    chosen = args.only.split(",") if args.only else list(ways)
    work = {}
    for name in chosen:
        model: Any = build("lasformer", args.keys / args.length, task=Lines(), **ways[name]).eval()
        model.make_generation_fast_()
        yield Row(case, name, "cost, %", 100 * share(model, args.length), compared=False)
        work[name] = steps_of(model, args.length, args.steps)
    for name, seconds in in_turns(work, args.repeat, case).items():
        yield Row(case, name, "steps/s", args.steps / seconds)


def share(model: Any, length: int) -> float:
    """Return the keys of a query in the layers' attentions, on average, as a share of all."""
    kappas = [p.share for _, p in model.selectors()]
    costs = [module_cost(m, model.cfg, module_patterns(m, model.cfg, kappas), length) for m in MODULES]
    return sum(cost.kappa for cost in costs) / len(costs)


@torch.no_grad()
def steps_of(model: Any, length: int, steps: int) -> Callable[[], float]:
    """Return a function that takes ``steps`` steps after ``length`` tokens and returns their seconds."""
    drawn = torch.Generator().manual_seed(1)
    tokens = torch.randint(5, VOCABULARY, (1, length), generator=drawn)
    tokens[torch.rand(1, length, generator=drawn) < 0.1] = SEPARATOR
    source = model.encoder(tokens)
    source = model.encoder.reorder_encoder_out(source, torch.zeros(BEAM, dtype=torch.int64))
    state: dict[str, Any] = {}
    words = tokens.expand(BEAM, -1)
    for i in range(length):
        model.decoder(words[:, : i + 1], source, state, features_only=True)
    words = torch.randint(5, VOCABULARY, (BEAM, length + 1 + steps * 64), generator=drawn)
    at = length

    def run() -> None:
        nonlocal at
        for _ in range(steps):
            at += 1
            model.decoder(words[:, :at], source, state)
            model.decoder.reorder_incremental_state_scripting(state, torch.randint(BEAM, (BEAM,)))

    return lambda: CPU.seconds(run)
