#!/usr/bin/env python3
"""What a mixture of experts costs: time of one layer against its number of experts and against a dense network.

    make bench-moe        or        python scripts/bench_moe.py [--threads 2] [--repeat 5]

4,096 tokens, d = 512, h = 2,048, k = 2, float32; ``forward`` without gradients, ``training`` forward and backward with
the balance losses, ``decode`` one step of 5 rows. ``dense`` is a feed-forward network of the same active size, k h. The
systems take turns, medians are told. Then a toy training, 8 experts, with and without the balance losses (the paper's
Table 6 in small). Writes runs/bench/moe.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from tqdm import tqdm

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fairseq_lasformer.files import atomic_write  # noqa: E402
from fairseq_lasformer.flags import MoeFlags  # noqa: E402
from fairseq_lasformer.moe import MixtureOfExperts  # noqa: E402
from fairseq_lasformer.moe.statistics import statistics as moe_statistics  # noqa: E402

DIM, HIDDEN, K = 512, 2048, 2
EXPERTS = (4, 16, 64)
TOKENS = {"forward": 4096, "training": 4096, "decode": 5}


class Dense(nn.Module):
    """The feed-forward network with as many multiplications a token as k experts."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(DIM, K * HIDDEN, bias=False), nn.Linear(K * HIDDEN, DIM, bias=False)

    def forward(self, x: Tensor, padding: None) -> tuple[Tensor, None]:
        return self.fc2(self.fc1(x).relu()), None


def mixture(n_experts: int) -> MixtureOfExperts:
    """A mixture whose gate is used evenly, as training makes it."""
    cfg = MoeFlags()
    cfg.moe_experts, cfg.moe_top_k = n_experts, K
    layer = MixtureOfExperts(cfg, DIM, HIDDEN)
    nn.init.normal_(layer.gate.gate, std=DIM**-0.5)  # type: ignore[union-attr]
    return layer


def run(layer: nn.Module, x: Tensor, kind: str) -> Callable[[], None]:
    def forward() -> None:
        with torch.no_grad():
            layer(x, None)

    def training() -> None:
        layer.zero_grad()
        out, balance = layer(x, None)
        (out.square().mean() + (0.0 if balance is None else balance.loss)).backward()

    layer.train(kind == "training")
    return training if kind == "training" else forward


def toy_balance(importance_weight: float, load_weight: float) -> dict[str, float]:
    """How evenly 8 experts are used at the end of 200 updates on tokens that are not centred, 256 an update."""
    torch.manual_seed(0)
    cfg = MoeFlags()
    cfg.moe_experts, cfg.moe_importance_weight, cfg.moe_load_weight = 8, importance_weight, load_weight
    layer, target, centre = MixtureOfExperts(cfg, 16, 32), nn.Linear(16, 16), torch.randn(16)
    nn.init.normal_(layer.gate.gate)  # type: ignore[union-attr]
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(200):
        x = torch.randn(256, 16) + centre
        out, balance = layer(x, None)
        loss = (out - target(x).detach()).square().mean() + balance.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return moe_statistics(balance._asdict())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench" / "moe.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    systems: dict[str, tuple[int, nn.Module]] = {"dense": (0, Dense())}
    systems |= {"moe": (EXPERTS[0], mixture(EXPERTS[0]))} | {f"moe{n}": (n, mixture(n)) for n in EXPERTS[1:]}
    rows = []
    for kind, n_tokens in TOKENS.items():
        x = torch.randn(n_tokens, DIM)
        seconds: dict[str, list[float]] = {name: [] for name in systems}
        inner = 50 if kind == "decode" else 1
        for turn in tqdm(range(args.repeat + 1), desc=kind):
            for name, (_, layer) in systems.items():
                work = run(layer, x, kind)
                start = time.perf_counter()
                for _ in range(inner):
                    work()
                if turn:  # the first is for warming up
                    seconds[name].append((time.perf_counter() - start) / inner)
                layer.zero_grad(set_to_none=True)
        dense = median(seconds["dense"])
        few = median(seconds["moe"])
        print(f"{kind}, {n_tokens} tokens\n{'layer':<8}{'experts':>8}{'ms':>10}{'to dense':>10}{'to 4 experts':>14}")
        for name, (n_experts, _) in systems.items():
            took = median(seconds[name])
            label = "dense" if name == "dense" else "moe"
            rows.append({"layer": f"{kind}/{label}", "experts": n_experts, "tokens": n_tokens, "seconds": took})
            ratio = "" if name == "dense" else f"{took / few:.2f}"
            print(f"{label:<8}{n_experts or '':>8}{1e3 * took:>10.2f}{took / dense:>10.2f}{ratio:>14}")
    print(f"toy training\n{'w_importance':>12}{'w_load':>8}{'CV(importance)':>16}{'CV(load)':>10}{'max/mean load':>15}")
    balance = []
    for weights in ((0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.1)):
        found = toy_balance(*weights)
        balance.append({"w_importance": weights[0], "w_load": weights[1], **found})
        told = f"{found['importance_cv']:>16.2f}{found['load_cv']:>10.2f}{found['load_max_over_mean']:>15.2f}"
        print(f"{weights[0]:>12}{weights[1]:>8}{told}")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"threads": args.threads, "repeat": args.repeat, "rows": rows, "balance": balance}
    atomic_write(args.out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
