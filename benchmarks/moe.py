"""Cost of a mixture of experts: time of one layer by number of experts, compared with a dense network.

4,096 tokens, d = 512, h = 2,048, k = 2. forward: without gradients; training: forward and backward with the balance
losses; decode: one step of ``--rows`` rows. dense is a feed-forward network with the same active size, k h. Then a toy
training run with 8 experts, with and without the balance losses (a small version of table 6 of arXiv 1701.06538),
measures how unevenly the experts are used.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.devices import Place, add_place, place_of
from benchmarks.rows import Row, in_turns
from fairseq_lasformer.nn.moe import MixtureOfExperts, MoeConfig
from fairseq_lasformer.nn.moe.metrics import router_metrics

BASELINES = ("dense", "4 experts")
DIM, HIDDEN, K = 512, 2048, 2
EXPERTS = (4, 16, 64)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=4096, help="of forward and training (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="default: %(default)s")
    add_place(parser, "of a decoding step (default: 5)")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    place = place_of(args)
    systems: dict[str, nn.Module] = {"dense": Dense()} | {f"{n} experts": mixture(n) for n in EXPERTS}
    systems = {name: layer.to(place.device, place.dtype) for name, layer in systems.items()}
    for kind, n_tokens in {"forward": args.tokens, "training": args.tokens, "decode": args.rows or 5}.items():
        x = torch.randn(n_tokens, DIM).to(place.device, place.dtype)
        work = {name: partial(seconds, layer, x, kind, place) for name, layer in systems.items()}
        case = f"{kind}, {n_tokens} tokens"
        yield from (Row(case, name, "ms", 1000 * s) for name, s in in_turns(work, args.repeat, kind).items())
    for weights in ((0.0, 0.0), (0.1, 0.0), (0.0, 0.1), (0.1, 0.1)):
        found = toy_balance(*weights)
        system = f"w_importance {weights[0]}, w_load {weights[1]}"
        for metric in ("importance_cv", "load_cv", "load_max_over_mean"):
            yield Row("toy training", system, metric, found[metric], compared=False)


class Dense(nn.Module):
    """Feed-forward network with as many multiplications per token as k experts."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(DIM, K * HIDDEN, bias=False), nn.Linear(K * HIDDEN, DIM, bias=False)

    def forward(self, x: Tensor, padding: None) -> tuple[Tensor, None]:
        return self.fc2(self.fc1(x).relu()), None


def mixture(n_experts: int) -> MixtureOfExperts:
    """Build a mixture whose gate spreads tokens evenly, as after training."""
    layer = MixtureOfExperts(MoeConfig(n_experts, K), DIM, HIDDEN)
    nn.init.normal_(layer.gate.gate, std=DIM**-0.5)  # type: ignore[union-attr,arg-type]
    return layer


def seconds(layer: nn.Module, x: Tensor, kind: str, place: Place) -> float:
    """Return the seconds per call."""
    layer.train(kind == "training")
    work: Callable[[], None] = partial(_training if kind == "training" else _forward, layer, x)
    repeated = 50 if kind == "decode" else 1
    spent = place.seconds(lambda: [work() for _ in range(repeated)]) / repeated
    layer.zero_grad(set_to_none=True)
    return spent


@torch.no_grad()
def _forward(layer: nn.Module, x: Tensor) -> None:
    layer(x, None)


def _training(layer: nn.Module, x: Tensor) -> None:
    layer.zero_grad()
    out, stats = layer(x, None)
    (out.square().mean() + (0.0 if stats is None else stats.loss)).backward()


def toy_balance(importance_weight: float, load_weight: float) -> dict[str, float]:
    """Return how evenly 8 experts are used after 200 updates of 256 uncentred tokens each."""
    torch.manual_seed(0)
    cfg = MoeConfig(8, importance_weight=importance_weight, load_weight=load_weight)
    layer, target, centre = MixtureOfExperts(cfg, 16, 32), nn.Linear(16, 16), torch.randn(16)
    nn.init.normal_(layer.gate.gate)  # type: ignore[union-attr,arg-type]
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    for _ in range(200):
        x = torch.randn(256, 16) + centre
        out, stats = layer(x, None)
        loss = (out - target(x).detach()).square().mean() + stats.loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return router_metrics(stats._asdict())
