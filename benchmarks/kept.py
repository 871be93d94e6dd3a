"""Keys that learned selection keeps, by kind: the share that is kept of all keys of a kind that a query may attend to.

Kinds of line: the query's own, and others by their distance; in cross-attention, the source line with the number of the
translation's line is its own. Kinds of word: separators and ends, punctuation, pronouns, pieces that begin with a
capital, those that continue a word, and others. Means over queries, layers that select and documents; the reference is
read, nothing is translated. The last column is the share beside that of all keys.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.rows import Row
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.evaluation.pronouns import CHINESE, ENGLISH, GERMAN
from fairseq_lasformer.nn.lines import TargetLines
from fairseq_lasformer.nn.others.relational import line_of
from fairseq_lasformer.plugin.placement import MODULES

ALL = "all keys"
BASELINES = (ALL,)
DISTANCES = {"own line": (0, 0), "next lines": (1, 1), "2 to 3 lines": (2, 3), "4 to 10 lines": (4, 10)}
FARTHER = "farther lines"
WORDS = ("separator", "punctuation", "pronoun", "capital", "rest of a word", "other word")


class Text(NamedTuple):
    """One side of a document.

    Attributes:
        line: int64 [N], the line of each token.
        words: int64 [N], the kind of each, a number in :data:`WORDS`.
    """

    line: Tensor
    words: Tensor


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a model with learned selection, or its folder")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument("--documents", type=int, default=100, help="of the test set (default: %(default)s)")
    parser.add_argument("--longer", type=int, default=200, help="tokens of these, at least (default: %(default)s)")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    hub = load_model(args.checkpoint, args.data, "cpu")
    model, task = hub.models[0], hub.task
    if not list(model.selectors()):
        raise InputError(f"{args.checkpoint}: selects nothing")
    task.load_dataset("test")
    data = task.datasets["test"]
    long = [i for i in range(len(data)) if len(data[i]["source"]) >= args.longer]
    long = long[:: max(1, len(long) // args.documents)][: args.documents]
    kept, allowed = ({module: dict[str, float]() for module in MODULES} for _ in range(2))
    for i in tqdm(long, desc="documents", unit=" documents"):
        batch = data.collater([data[i]])["net_input"]
        for module, queries, keys, mask in masks(hub, batch):
            causal = torch.ones_like(mask).tril() if module == "decoder" else torch.ones_like(mask)
            for kind, of_kind in kinds(queries, keys):
                there = of_kind & causal
                allowed[module][kind] = allowed[module].get(kind, 0.0) + float(there.sum())
                kept[module][kind] = kept[module].get(kind, 0.0) + float((there & mask).sum())
    for module in MODULES:
        for kind, n in allowed[module].items():
            if n:
                share = {"of all keys": f"{100 * n / allowed[module][ALL]:.1f}%"}
                yield Row(module, kind, "kept, %", 100 * kept[module][kind] / n, True, share)


def kinds(queries: Text, keys: Text) -> Iterator[tuple[str, Tensor]]:
    """Return the kinds of keys, each with which pairs of query and key are of it, bool [Q, K]."""
    apart = (queries.line[:, None] - keys.line).abs()
    yield ALL, torch.ones_like(apart, dtype=torch.bool)
    for name, (nearest, farthest) in DISTANCES.items():
        yield name, (apart >= nearest) & (apart <= farthest)
    yield FARTHER, apart > max(farthest for _, farthest in DISTANCES.values())
    for number, name in enumerate(WORDS):
        yield name, (keys.words == number).expand_as(apart)


@torch.enable_grad()  # otherwise, kept keys may take a form without a mask
def masks(hub: Any, batch: dict[str, Tensor]) -> Iterator[tuple[str, Text, Text, Tensor]]:
    """Return for each selection: its module, the texts of its queries and keys, and its kept keys, bool [Q, K]."""
    model, task = hub.models[0], hub.task
    tokens, dictionaries = (batch["src_tokens"][0], batch["prev_output_tokens"][0]), (task.src_dict, task.tgt_dict)
    ends = [
        torch.stack([words == end for end in side.line_ends.words]).any(0)
        for words, side in zip(tokens, (model.encoder, model.decoder))
    ]
    lines = line_of(ends[0][None])[0], TargetLines.of(ends[1][None]).line[0]
    source, target = (
        Text(line, torch.tensor([kind_of(dictionary[word], end) for word, end in zip(words.tolist(), is_end.tolist())]))
        for words, dictionary, line, is_end in zip(tokens, dictionaries, lines, ends)
    )
    places = [("encoder", layer.self_attn, source, source) for layer in model.encoder.layers]
    for layer in model.decoder.layers:
        places += [("decoder", layer.self_attn, target, target), ("cross", layer.encoder_attn, target, source)]
    kept: dict[Any, Tensor] = {}
    hooks = [
        attention.register_forward_hook(lambda a, _, out: kept.update({a: out.selection.kept(True)[0]}))
        for _, attention, _, _ in places
        if attention.selector is not None
    ]
    model(**batch)
    for hook in hooks:
        hook.remove()
    return iter([(name, queries, keys, kept[a]) for name, a, queries, keys in places if a in kept])


def kind_of(piece: str, end: bool) -> int:
    """Return the kind of a piece of a word, a number in :data:`WORDS`."""
    word = piece.removeprefix("\u2581")
    if end:
        return WORDS.index("separator")
    if not any(c.isalnum() for c in word):
        return WORDS.index("punctuation")
    if word.removesuffix("们") in CHINESE or word in GERMAN or word.lower() in ENGLISH:
        return WORDS.index("pronoun")
    if word[0].isupper():
        return WORDS.index("capital")
    continues = word[0].isascii() and not piece.startswith("\u2581")  # Chinese has no spaces
    return WORDS.index("rest of a word" if continues else "other word")
