"""Accuracy on contrastive test sets: preferring the right translation to wrong ones, and generating it."""

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.analysis.contrast_sets import Candidate, Group
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.documents.hub import DocumentHubInterface
from fairseq_lasformer.documents.scoring import log_probabilities

POLICIES = ("none", "source", "both")
PRONOUNS = ("er", "sie", "es", "he", "she", "it", "they", "we", "you", "i", "him", "them", "us", "me")


def policies(names: str) -> list[str]:
    """Parse a comma-separated list of context policies."""
    chosen = [name.strip() for name in names.split(",")]
    if wrong := [name for name in chosen if name not in POLICIES]:
        raise InputError(f"--context {wrong[0]}: expected any of {', '.join(POLICIES)}")
    return chosen


def pronoun(group: Group) -> str:
    """Return the pronoun at which the correct target first differs from the first incorrect one, or ``other``."""
    right, wrong = (re.findall(r"\w+", c.target.lower()) for c in group.candidates[:2])
    differing = next((r for r, w in zip(right, wrong) if r != w), "")
    return differing if differing in PRONOUNS else "other"


def differing(group: Group) -> bool:
    """Return whether the candidates of a group differ before the last sentence."""
    return len({c.target_context for c in group.candidates}) > 1


def encoded(
    candidate: Candidate, policy: str, hub: DocumentHubInterface, whole: bool = False
) -> tuple[Tensor, Tensor, int]:
    """Return source and target tokens of a candidate, and the target position at which the scored sentence begins.

    If the context exceeds the limit of the model's examples, its earliest sentences are dropped.

    Args:
        policy: ``none`` for the sentence alone, ``source`` for context on the source side only, ``both`` for context on
            both sides.
        hub: the model with its data.
        whole: also score the context in the target, because the candidates differ there.
    """
    codec = hub.codec
    source = [
        codec.encode_source(s) for s in (*(candidate.source_context if policy != "none" else ()), candidate.source)
    ]
    target = [
        codec.encode_target(s) for s in (*(candidate.target_context if policy == "both" else ()), candidate.target)
    ]
    for side in (source, target):
        while len(side) > 1 and sum(map(codec.length, side)) > codec.room:
            del side[0]
    tokens = hub.tgt_dict.encode_line(codec.join(target, 1), add_if_not_exist=False).long()
    start = bool(codec.tags[1]) + (0 if whole else sum(map(codec.length, target[:-1])))
    return hub.binarize(codec.join(source, 0)), tokens, start


def target_scores(
    hub: DocumentHubInterface,
    examples: Sequence[tuple[Tensor, Tensor, int]],
    max_tokens: int = 4096,
    what: str = "scoring",
    unit: str = " candidates",
) -> list[Tensor]:
    """Return the log probabilities of each target sentence's tokens, end of sentence included: a tensor per example.

    Args:
        hub: the model with its data.
        examples: source, target, and the first target position that counts.
        max_tokens: maximum number of tokens per batch, padding included.
        what, unit: for the progress bar.
    """
    with progress_bar(total=len(examples), desc=what, unit=unit) as bar:
        pairs = [(source, target) for source, target, _ in examples]
        scores = log_probabilities(hub.models[0], hub.tgt_dict, pairs, max_tokens, hub.device, bar.update)
    return [tokens[start:] for tokens, (_, _, start) in zip(scores, examples)]


def evaluate(hub: DocumentHubInterface, groups: Sequence[Group], policy: str, max_tokens: int = 4096) -> Scores:
    """Return the share of groups whose correct candidate scores best (a tie counts as a failure).

    Args:
        hub: the model with its data.
        policy: see :func:`encoded`.
        max_tokens: maximum number of tokens per batch, padding included.

    Returns:
        ``policy``; ``groups``; ``accuracy`` by length-normalised and ``accuracy_raw`` by summed log probability;
        ``by_pronoun`` and ``by_distance`` (empty if unknown): name -> accuracy, number of groups.
    """
    flat = [encoded(c, policy, hub, differing(group)) for group in groups for c in group.candidates]
    scores = iter(target_scores(hub, flat, max_tokens))
    right: dict[str, list[bool]] = {"accuracy": [], "accuracy_raw": []}
    for group in groups:
        scored = [next(scores) for _ in group.candidates]
        for name, value in (("accuracy", torch.Tensor.mean), ("accuracy_raw", torch.Tensor.sum)):
            values = [float(value(s)) for s in scored]
            right[name].append(values[0] > max(values[1:]))

    return {
        "policy": policy,
        "groups": len(groups),
        **{name: sum(r) / len(r) for name, r in right.items()},
        "by_pronoun": _by([pronoun(g) for g in groups], right["accuracy"]),
        "by_distance": _by([g.distance for g in groups], right["accuracy"]),
    }


def _by(keys: Sequence[Any], right: Sequence[bool]) -> dict[str, tuple[float, int]]:
    """Return the share and number of groups by key; groups without a key are left out."""
    names = sorted({k for k in keys if k is not None})
    picked = {k: [r for r, key in zip(right, keys) if key == k] for k in names}
    return {str(k): (sum(v) / len(v), len(v)) for k, v in picked.items()}


def generate(
    hub: DocumentHubInterface, groups: Sequence[Group], policy: str, beam: int = 5, max_tokens: int = 4096
) -> Scores:
    """Translate the sentences, and count those whose translation contains the pronoun of the right candidate.

    A model's preference among given translations says little about what it writes (arXiv 2304.12959). Groups that do
    not differ in a pronoun are left out.

    Args:
        policy: ``none`` translates each sentence alone, ``source`` with its context, as a document.

    Returns:
        ``policy``; ``groups`` and ``generated``, the share of them; ``by_pronoun`` and ``by_distance`` as of
        :func:`evaluate`.
    """
    if policy not in POLICIES[:2]:
        raise InputError(f"--context {policy}: with --generative, expected none or source: the model writes the target")
    chosen = [group for group in groups if pronoun(group) in PRONOUNS]
    if not chosen:
        raise InputError(f"--generative: no group differs in one of the pronouns {', '.join(PRONOUNS)}")
    sources = [group.candidates[0] for group in chosen]
    documents = ["\n".join((*(c.source_context if policy == "source" else ()), c.source)) for c in sources]
    translated = hub.translate_documents(documents, beam, max_tokens, lines=True)
    right = [
        pronoun(group) in re.findall(r"\w+", lines[-1].translation.lower() if lines else "")
        for group, lines in zip(chosen, translated)
    ]
    return {
        "policy": policy,
        "groups": len(chosen),
        "generated": sum(right) / len(right),
        "by_pronoun": _by([pronoun(g) for g in chosen], right),
        "by_distance": _by([g.distance for g in chosen], right),
    }


def table(results: Sequence[Scores]) -> str:
    """Format accuracy by policy, pronoun and distance for a terminal."""
    lines = []
    for r in results:
        if "generated" in r:
            lines.append(f"context {r['policy']}: {r['generated']:.1%} of {r['groups']} pronouns translated right")
        else:
            lines.append(
                f"context {r['policy']}: {r['accuracy']:.1%} of {r['groups']} groups, by score per token "
                f"({r['accuracy_raw']:.1%} by summed score)"
            )
        for what in ("by_pronoun", "by_distance"):
            for name, (share, n) in r[what].items():
                lines.append(f"  {what[3:]} {name}: {share:.1%} of {n}")
    return "\n".join(lines)
