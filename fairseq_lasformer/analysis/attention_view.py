"""Attention on the report page: words of a document and its translation, and what each attends to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fairseq_lasformer.base.records import Json
from fairseq_lasformer.documents.word_attention import WordAttention, document_attention
from fairseq_lasformer.plugin.config import module_config
from fairseq_lasformer.plugin.placement import group_starts
from fairseq_lasformer.text.units import units

if TYPE_CHECKING:
    from fairseq_lasformer.documents.hub import DocumentHubInterface

# Maximum number of source tokens: more make the page slow and hard to read.
TOKENS = 400
SIDES = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}


def attention_view(hub: DocumentHubInterface, source: Sequence[str], target: Sequence[str]) -> Json | None:
    """Return the words of a document and its translation, and what they attend to; None for models without selection.

    Args:
        hub: a :class:`DocumentHubInterface`.
        source: lines of the document; left out from the line at which they exceed :data:`TOKENS`.
        target: lines of the translation; as many, or one for all.

    Returns:
        ``source`` and ``target``: for each line, its words, each with the text between it and the next. ``modules``:
        name of each; ``from`` and ``to``, its sides; ``rows``, see :func:`sparse`; ``lines``, the mean attention from
        each line to each line. ``open``: the module and word shown first.
    """
    if not hasattr(hub.models[0], "selectors") or not list(hub.models[0].selectors()):
        return None
    total, shown = 0, 0
    for line in source:
        total += hub.codec.length(hub.codec.encode_source(line))
        if shown and total > TOKENS:
            break
        shown += 1
    target = target[:shown] if len(target) == len(source) else target
    attention = document_attention(hub, source[:shown], target)
    places = {"source": attention.source, "target": attention.target}
    modules = []
    for name, weights in attention.modules.items():
        start, end = SIDES[name.partition(".")[0]]
        lines = [[line for line, _ in places[side]] for side in (start, end)]
        modules.append(
            {
                "name": _readable(name, hub),
                "from": start,
                "to": end,
                "rows": sparse(weights),
                "lines": _by_line(weights, *lines).round(4).tolist(),
            }
        )
    return {
        "source": [_words(line) for line in source[:shown]],
        "target": [_words(line) for line in target],
        "modules": modules,
        "open": telling(attention, source, target),
    }


def sparse(weights: np.ndarray, most: int = 64, minimum: float = 0.002) -> list[list[list[float]]]:
    """Return the highest weights of every row, as ``[index, weight]``, the highest first.

    Args:
        weights: attention weights, [queries, keys].
        most: maximum number of keys per query.
    """
    best = np.argsort(-weights, axis=1, kind="stable")[:, :most]
    return [[[int(i), round(float(row[i]), 4)] for i in keys if row[i] >= minimum] for row, keys in zip(weights, best)]


def telling(attention: WordAttention, source: Sequence[str], target: Sequence[str]) -> list[int]:
    """Return the numbers of the module and word that show best what the context is for.

    They have the strongest link to a word of another line. Distant words count more; frequent words count less, as
    their copies attract each other.
    """
    texts = {"source": [_texts(line) for line in source], "target": [_texts(line) for line in target]}
    best, strongest = (-1.0, -1.0), [0, 0]
    for number, (name, weights) in enumerate(attention.modules.items()):
        sides = SIDES[name.partition(".")[0]]
        places = [attention.source if side == "source" else attention.target for side in sides]
        if not weights.size:
            continue
        worth = [_worth([texts[side][i][j] for i, j in here]) for side, here in zip(sides, places)]
        away = np.abs(np.subtract.outer(*([line for line, _ in here] for here in places)))
        values = weights * np.outer(*worth)
        far = values * np.log2(1 + away)
        value = float(far.max()), float(values.max())  # without other lines, the strongest link of all
        if value > best:
            best, strongest = value, [number, int((far if far.any() else values).max(1).argmax())]
    return strongest


def _texts(line: str) -> list[str]:
    return [line[start:end].lower() for start, end in units(line)]


def _worth(words: Sequence[str]) -> np.ndarray:
    """Return the weight of each word: 0 for punctuation, otherwise lower the more often it occurs."""
    counts = Counter(words)
    return np.array([1 / counts[word] if re.search(r"\w", word) else 0.0 for word in words])


def _by_line(weights: np.ndarray, rows: Sequence[int], columns: Sequence[int]) -> np.ndarray:
    """Return attention between lines: the mean over attending words, the sum over words attended to."""
    ends = [max(side, default=-1) + 1 for side in (rows, columns)]
    merged = np.zeros(ends, np.float32)
    np.add.at(merged, (np.array(rows, int)[:, None], np.array(columns, int)[None]), weights)
    return merged / np.maximum(np.bincount(rows, minlength=ends[0]), 1)[:, None]


def _words(line: str) -> list[list[str]]:
    """Return the words of a line, each with the space after it."""
    spans = units(line)
    ends = [start for start, _ in spans[1:]] + [len(line)]
    return [[line[start:end], line[end:after]] for (start, end), after in zip(spans, ends)]


def _readable(name: str, hub: DocumentHubInterface) -> str:
    """Return ``encoder.0`` as "encoder, layers 1–2"; without layers, if all of them share a selection."""
    cfg, (module, group) = module_config(hub.cfg.model), (name.split("."))
    layers = cfg.encoder.layers if module == "encoder" else cfg.decoder.layers
    starts = (*group_starts(cfg, module), layers)
    first, last = starts[int(group)], starts[int(group) + 1]
    if last - first == layers:
        return module
    return f"{module}, layer {last}" if last - first == 1 else f"{module}, layers {first + 1}–{last}"
