"""The share of allowed keys that neighbouring queries of a tile keep together, in a trained model.

A kernel that gathered the keys of a tile, instead of reading all of them with a mask, would read this share. Documents
of the test set are joined until they have --tokens tokens; the model reads them with their references. With
independent choices, r queries that keep a share s each would keep 1 - (1 - s)^r together.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from benchmarks.rows import Row
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.ops import AttentionMask, reference

BASELINES: tuple[str, ...] = ()
QUERIES = (1, 8, 16, 32, 64)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a model with learned selection, or its folder")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument("--documents", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, default=4096, help="of a document, at least (default: %(default)s)")


@torch.no_grad()
def measure(args: argparse.Namespace) -> Iterator[Row]:
    hub = load_model(args.checkpoint, args.data, "cpu")
    model, task = hub.models[0], hub.task
    selectors = dict(model.selectors())
    if not selectors:
        raise InputError(f"{args.checkpoint}: selects nothing")
    if model.cfg.own_lines:
        raise InputError(f"{args.checkpoint}: has own lines; this compares selections of all keys")
    seen: dict[str, Pass] = {}
    hooks = [
        s.register_forward_pre_hook(lambda _, inputs, name=name: seen.__setitem__(name, inputs[0]))
        for name, s in selectors.items()
    ]
    task.load_dataset("test")
    case, sums, loss = f"{args.documents} documents of {args.tokens} tokens", defaultdict[Any, float](float), 0.0
    for source, target in tqdm(list(joined(task, args.documents, args.tokens)), unit=" documents"):
        previous = target.roll(1, 1)  # begins with the end of sentence
        scores = model(source, torch.tensor([source.size(1)]), previous)[0]
        loss += float(F.cross_entropy(scores[0], target[0])) / args.documents
        for name, full in seen.items():
            for n, share in shares(selectors[name], *full[:3]).items():
                sums[name, n] += 100 * share / args.documents
    for hook in hooks:
        hook.remove()
    for (name, n), share in sums.items():
        yield Row(case, name, f"{n} queries, %", share, compared=False)
    yield Row(case, "model", "nats per subword", loss, compared=False)


def joined(task: Any, n_documents: int, n_tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return documents of the test set joined, [1, N] of both sides, until each has so many tokens."""
    data, place = task.datasets["test"], 0
    dictionaries = task.source_dictionary, task.target_dictionary
    ends = [[d.eos() if (i := task.separator_in(d)) is None else i] for d in dictionaries]
    for _ in range(n_documents):
        sides: tuple[list[int], list[int]] = ([], [])
        while len(sides[0]) < n_tokens:
            if place == len(data):
                raise InputError(f"the test set has fewer than {n_documents} x {n_tokens} tokens")
            for words, name, end in zip(sides, ("source", "target"), ends, strict=True):
                words += data[place][name].tolist()[:-1] + end
            place += 1
        source, target = (torch.tensor([[*words[:-1], d.eos()]]) for words, d in zip(sides, dictionaries, strict=True))
        yield source, target


def shares(selector: Any, query: Tensor, key: Tensor, mask: AttentionMask) -> dict[int, float]:
    """Return the share of the allowed keys that so many neighbouring queries keep together."""
    allowed = mask.full(1, query.size(1), key.size(1), query.device)[0]
    scores = selector.q_proj(query)[0] @ selector.k_proj(key)[0].T
    kept = reference.select(
        scores.masked_fill(~allowed, float("-inf")), reference.keep_counts(allowed.sum(-1), selector.millionths)
    )
    of_tiles = {}
    for n in QUERIES:
        tiles, open_ = (t[: t.size(0) // n * n].view(-1, n, t.size(1)).any(1) for t in (kept, allowed))
        of_tiles[n] = float(tiles.sum() / open_.sum())
    return of_tiles
