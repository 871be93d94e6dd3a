"""Contrastive test sets in ContraPro's format: does the model prefer the correct translation to incorrect ones?

Files ``PREFIX.SRC`` and ``PREFIX.TGT``: one candidate per line, ``context <SEP> sentence``; ``PREFIX.groups``: the
index of the first line of each group, from 0, followed by the total number of lines. The first line of each group is
the correct translation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_lasformer.data.documents import read_lines
from fairseq_lasformer.documents.hub import DocumentHubInterface
from fairseq_lasformer.documents.scoring import log_probabilities
from fairseq_lasformer.errors import InputError

POLICIES = ("none", "source", "both")
SEPARATOR = "<SEP>"
PRONOUNS = ("er", "sie", "es")


class Candidate(NamedTuple):
    """One line of a set: the preceding sentences (possibly none) and the sentence itself, on both sides."""

    source_context: tuple[str, ...]
    source: str
    target_context: tuple[str, ...]
    target: str


class Group(NamedTuple):
    """The candidates for one sentence, the correct one first, and its distance in sentences if the set specifies it."""

    candidates: list[Candidate]
    distance: int | None = None


def policies(names: str) -> list[str]:
    """Parses a comma-separated list of context policies.

    Raises:
        InputError: a name is not one of :data:`POLICIES`.
    """
    found = [name.strip() for name in names.split(",")]
    if wrong := [name for name in found if name not in POLICIES]:
        raise InputError(f"--context {wrong[0]}: expected any of {', '.join(POLICIES)}")
    return found


def _split(line: str, path: Path, number: int) -> tuple[tuple[str, ...], str]:
    *context, sentence = (part.strip() for part in line.split(SEPARATOR))
    if not sentence:
        raise InputError(f"{path}:{number}: no sentence after the last {SEPARATOR}")
    return tuple(c for c in context if c), sentence


def read_groups(prefix: Path, source_lang: str, target_lang: str) -> list[Group]:
    """Reads the groups of a set; ``PREFIX.distance``, if it exists, contains the distance of each group, one per line.

    Args:
        prefix: common prefix of the files.
        source_lang, target_lang: suffixes of the files with the two sides.

    Raises:
        InputError: a file is missing, or the files are inconsistent (the message says which file and where).
    """
    files = [prefix.with_name(f"{prefix.name}.{end}") for end in (source_lang, target_lang, "groups", "distance")]
    sides = [read_lines(f) for f in files[:2]]
    if len(sides[0]) != len(sides[1]):
        raise InputError(f"{files[0]}: {len(sides[0])} lines, but {files[1]} has {len(sides[1])}")
    starts: list[int] = []
    for number, line in enumerate(read_lines(files[2]), 1):
        if not line.isdecimal() or (starts and int(line) <= starts[-1]):
            raise InputError(f"{files[2]}:{number}: expected a line number greater than the previous group's")
        starts.append(int(line))
    if len(starts) < 2 or starts[0] != 0 or starts[-1] != len(sides[0]):
        raise InputError(f"{files[2]}: must begin with 0 and end with {len(sides[0])}, the number of lines")
    distances: Sequence[str] = read_lines(files[3]) if files[3].exists() else ()
    if distances and len(distances) != len(starts) - 1:
        raise InputError(f"{files[3]}: {len(distances)} distances for {len(starts) - 1} groups")
    for number, line in enumerate(distances, 1):
        if not line.isdecimal():
            raise InputError(f"{files[3]}:{number}: expected a number of sentences")
    groups = []
    for i, (begin, end) in enumerate(zip(starts, starts[1:])):
        if end - begin < 2:
            raise InputError(f"{files[2]}:{i + 1}: a group of one line; at least two candidates are needed")
        found = [
            Candidate(*_split(sides[0][j], files[0], j + 1), *_split(sides[1][j], files[1], j + 1))
            for j in range(begin, end)
        ]
        groups.append(Group(found, int(distances[i]) if distances else None))
    return groups


def pronoun(group: Group) -> str:
    """The pronoun at which the correct target first differs from the first incorrect one; otherwise ``other``."""
    right, wrong = (re.findall(r"\w+", c.target.lower()) for c in group.candidates[:2])
    differing = next((r for r, w in zip(right, wrong) if r != w), "")
    return differing if differing in PRONOUNS else "other"


def encoded(candidate: Candidate, policy: str, hub: DocumentHubInterface) -> tuple[Tensor, Tensor, int]:
    """Source and target tokens of a candidate, and the target position at which the sentence itself begins.

    If the context exceeds the limit of the model's examples, its earliest sentences are dropped.

    Args:
        policy: ``none`` for the sentence alone, ``source`` for context on the source side only, ``both`` for context on
            both sides.
        hub: the model with its data.
    """
    codec = hub.codec
    source = [
        codec.encode_source(s) for s in (*(candidate.source_context if policy != "none" else ()), candidate.source)
    ]
    target = [
        codec.encode_target(s) for s in (*(candidate.target_context if policy == "both" else ()), candidate.target)
    ]
    for side in (source, target):
        while len(side) > 1 and sum(map(codec.length, side)) + 1 > codec.limit:
            del side[0]
    tokens = hub.tgt_dict.encode_line(codec.join(target), add_if_not_exist=False).long()
    return hub.binarize(codec.join(source)), tokens, sum(map(codec.length, target[:-1]))


def target_scores(
    hub: DocumentHubInterface, examples: Sequence[tuple[Tensor, Tensor, int]], max_tokens: int = 4096
) -> list[Tensor]:
    """Log probabilities of the tokens of each target sentence, end of sentence included: one tensor per example.

    Args:
        hub: the model with its data.
        examples: source, target, and the first target position that counts.
        max_tokens: maximum number of tokens per batch, padding included.
    """
    with tqdm(total=len(examples), desc="scoring", unit=" candidates") as bar:
        pairs = [(source, target) for source, target, _ in examples]
        found = log_probabilities(hub.models[0], hub.tgt_dict, pairs, max_tokens, hub.device, bar.update)
    return [tokens[start:] for tokens, (_, _, start) in zip(found, examples)]


def evaluate(hub: DocumentHubInterface, groups: Sequence[Group], policy: str, max_tokens: int = 4096) -> dict[str, Any]:
    """Shares of groups whose correct candidate scores best (a tie counts as a failure).

    Args:
        hub: the model with its data.
        policy: see :func:`encoded`.
        max_tokens: maximum number of tokens per batch, padding included.

    Returns:
        ``policy``; ``groups``; ``accuracy`` by length-normalised and ``accuracy_raw`` by summed log probability;
        ``by_pronoun`` and ``by_distance`` (empty if unknown): name -> accuracy, number of groups.
    """
    flat = [encoded(c, policy, hub) for group in groups for c in group.candidates]
    scores = iter(target_scores(hub, flat, max_tokens))
    right: dict[str, list[bool]] = {"accuracy": [], "accuracy_raw": []}
    for group in groups:
        own = [next(scores) for _ in group.candidates]
        for name, value in (("accuracy", torch.Tensor.mean), ("accuracy_raw", torch.Tensor.sum)):
            values = [float(value(s)) for s in own]
            right[name].append(values[0] > max(values[1:]))

    def by(keys: Sequence[Any]) -> dict[str, tuple[float, int]]:
        names = sorted({k for k in keys if k is not None})
        picked = {k: [r for r, key in zip(right["accuracy"], keys) if key == k] for k in names}
        return {str(k): (sum(v) / len(v), len(v)) for k, v in picked.items()}

    return {
        "policy": policy,
        "groups": len(groups),
        **{name: sum(r) / len(r) for name, r in right.items()},
        "by_pronoun": by([pronoun(g) for g in groups]),
        "by_distance": by([g.distance for g in groups]),
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Formats accuracy by policy, pronoun and distance for a terminal."""
    lines = []
    for r in results:
        lines.append(
            f"context {r['policy']}: {r['accuracy']:.1%} of {r['groups']} groups, by score per token "
            f"({r['accuracy_raw']:.1%} by summed score)"
        )
        for what in ("by_pronoun", "by_distance"):
            for name, (share, n) in r[what].items():
                lines.append(f"  {what[3:]} {name}: {share:.1%} of {n}")
    return "\n".join(lines)
