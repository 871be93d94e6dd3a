"""Forms of a selector's scores, taught by a frozen checkpoint's attention: the share of it on their best keys.

bilinear: q . k of one head (arXiv 2309.14174, eq 1); ReLU heads: sum over heads of w_h(x) ReLU(q_h . k), whose heads
share one narrow key (DeepSeek's lightning indexer). Each represents the lowest group of layers of a module. All read
the same states and learn from the same queries, by the KL loss alone (eq 4); the model stays as it is. recall:
attention, mean of the group's heads and layers, on the kappa highest-scored keys of a query (at least ten), over the
documents of another split.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from benchmarks.rows import Row
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.nn.attentions.selected import SelectedAttention
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.ops import reference
from fairseq_lasformer.plugin.placement import MODULES

BASELINES = ("the checkpoint's own",)
SHARES = (0.02, 0.05, 0.1, 0.2)
QUERIES = 64
MINIMUM = 6e-8  # of values kept in 16 bits; 0 means that a key is not allowed


class Text(NamedTuple):
    """Input and target of a module's selector in a document: states [Q, d] and [K, d], and the attention [Q, K]."""

    queries: Tensor
    keys: Tensor
    attention: Tensor


class Bilinear(nn.Module):
    """q . k of one head."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, width, bias=False), nn.Linear(dim, width, bias=False)
        self.scale = width**-0.5

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        return self.q(queries) @ self.k(keys).T * self.scale


class ReluHeads(nn.Module):
    """Sum over heads of w_h(x) ReLU(q_h . k)."""

    def __init__(self, dim: int, width: int, heads: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, width * heads, bias=False), nn.Linear(dim, width, bias=False)
        self.weight = nn.Linear(dim, heads)
        nn.init.ones_(self.weight.bias)
        self.heads, self.scale = heads, width**-0.5

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        of_heads = self.q(queries).view(queries.size(0), self.heads, -1) @ self.k(keys).T * self.scale
        return torch.einsum("qhk,qh->qk", of_heads.relu(), self.weight(queries))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a model with learned selection, or its folder")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument("--documents", type=int, default=300, help="of the training set (default: %(default)s)")
    parser.add_argument("--tested", type=int, default=40, help="of the test set (default: %(default)s)")
    parser.add_argument("--longer", type=int, default=200, help="tokens of these, at least (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=3000, help="of one document each (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=3e-3, help="of Adam; it falls to 0 (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="default: %(default)s")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    hub = load_model(args.checkpoint, args.data, "cpu")
    model = hub.models[0]
    if not list(model.selectors()):
        raise InputError(f"{args.checkpoint}: selects nothing")
    if model.cfg.own_lines:
        raise InputError(f"{args.checkpoint}: has own lines; this compares selections of all keys")
    learned = texts(hub, "train", args.documents, args.longer)
    tested = texts(hub, "test", args.tested, args.longer)
    for module in MODULES:
        own = next((s for name, s in model.selectors() if name.startswith(f"{module}.")), None)
        if own is None:
            continue
        yield from _recalls(module, BASELINES[0], tested[module], [lambda q, k, s=own: s.q_proj(q) @ s.k_proj(k).T])
        dim, width = tested[module][0].queries.size(1), own.q_proj.out_features
        forms: dict[str, Any] = {
            f"bilinear, {width}": partial(Bilinear, dim, width),
            f"bilinear, {width // 4}": partial(Bilinear, dim, width // 4),
            f"4 ReLU heads on a key of {width // 4}": partial(ReluHeads, dim, width // 4, 4),
            f"4 ReLU heads on a key of {width}": partial(ReluHeads, dim, width, 4),
        }
        for name, make in forms.items():
            trained = [train(make, learned[module], args, seed, f"{module}, {name}") for seed in range(args.seeds)]
            yield from _recalls(module, name, tested[module], trained)


def _recalls(module: str, name: str, tested: list[Text], scorers: list[Any]) -> Iterator[Row]:
    for share in SHARES:
        found = [recall(scorer, tested, share) for scorer in scorers]
        spread = {"range": f"{100 * min(found):.2f} to {100 * max(found):.2f}"} if len(found) > 1 else {}
        yield Row(f"{module}, kappa {share}", name, "recall, %", 100 * sum(found) / len(found), True, spread)


@torch.no_grad()
def texts(hub: Any, split: str, most: int, longer: int) -> dict[str, list[Text]]:
    """Return the selectors' inputs in documents of a split, by module, and the attention that they represent."""
    model, task = hub.models[0], hub.task  # in evaluation already
    task.load_dataset(split)
    data, found = task.datasets[split], {module: list[Text]() for module in MODULES}
    order = [i for i in range(len(data)) if len(data[i]["source"]) >= longer]
    random.Random(1).shuffle(order)
    seen: dict[str, list[tuple[SelectedAttention, Pass]]] = {}
    sides = {"encoder": (model.encoder, "self_attn"), "decoder": (model.decoder, "self_attn")}
    sides["cross"] = (model.decoder, "encoder_attn")
    hooks = []
    for module, (side, attention) in sides.items():
        for layer in side.layers:

            def remember(a: Any, inputs: Any, module: str = module) -> None:
                seen.setdefault(module, []).append((a, inputs[0]))

            hooks.append(getattr(layer, attention).register_forward_pre_hook(remember))
    for i in tqdm(order[:most], desc=split, unit=" documents"):
        seen.clear()
        model(**data.collater([data[i]])["net_input"])
        for module, calls in seen.items():
            lowest = [n for n, call in enumerate(calls) if call[0].selector is not None][:2]
            if not lowest:
                continue
            calls = calls[lowest[0] : lowest[1] if len(lowest) > 1 else None]  # until the next group
            states = calls[0][1][:2]
            mean = 0.0
            for attention, full in calls:
                q, k, _ = attention.projected(full.query, full.memory)
                allowed = full.mask.full(1, q.size(2), k.size(2), q.device)
                weights = reference.masked_softmax(reference.attention_scores(q, k), allowed[:, None])
                mean = mean + weights.mean(1)[0] / len(calls)
            least = mean.half().clamp_min(MINIMUM).masked_fill(~allowed[0], 0.0)
            found[module].append(Text(states[0][0], states[1][0], least))
    for hook in hooks:
        hook.remove()
    return found


def train(make: Any, learned: list[Text], args: argparse.Namespace, seed: int, what: str) -> Any:
    """Train a selector of one form by the KL loss, on some queries of one document after another."""
    torch.manual_seed(seed)
    scorer, rng = make(), random.Random(seed)
    optimizer = torch.optim.Adam(scorer.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, args.updates)
    for _ in tqdm(range(args.updates), desc=f"{what}, seed {seed}", unit=" updates"):
        text = rng.choice(learned)
        rows = torch.randperm(text.queries.size(0))[:QUERIES]
        attention = text.attention[rows].float()
        scores = scorer(text.queries[rows], text.keys).masked_fill(attention == 0, -1e30)
        loss = -(attention * scores.log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return scorer


@torch.no_grad()
def recall(scorer: Any, tested: list[Text], share: float) -> float:
    """Return the attention on a query's kept keys, the mean over all queries of all documents."""
    total, queries = 0.0, 0
    for text in tested:
        attention = text.attention.float()
        allowed = attention > 0
        scores = scorer(text.queries, text.keys).masked_fill(~allowed, float("-inf"))
        kept = reference.select(scores, reference.keep_counts(allowed.sum(-1), round(share * 1e6)))
        total += float((attention * kept).sum())
        queries += attention.size(0)
    return total / queries
