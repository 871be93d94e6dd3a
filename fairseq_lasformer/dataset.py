"""From prepared documents to batches: a split's manifest, and word dropout."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_lasformer.documents import InputError, atomic_write


@dataclass(frozen=True)
class SplitInfo:
    """What the preparation did to one split; kept beside the binarised data as ``documents.<split>.json``.

    Attributes:
        documents, sentences: counts in the raw text. n_examples: lines in the binarised split.
        n_cut: documents longer than the limit, cut into parts. n_parts: parts in all, one for an uncut document.
        dropped: pairs left out because one side was empty.
        longest: tokens of the longest example, source and target, end of sentence included.
        examples: for a split in reading order, (document, first sentence, sentences) of every example; empty for
            training data, whose examples overlap.
    """

    path: str
    documents: int
    sentences: int
    n_examples: int
    n_cut: int
    n_parts: int
    dropped: int
    longest: tuple[int, int]
    examples: tuple[tuple[int, int, int], ...] = ()

    @staticmethod
    def file(data: str | Path, split: str) -> Path:
        return Path(data) / f"documents.{split}.json"

    def save(self) -> None:
        atomic_write(self.path, json.dumps({k: v for k, v in asdict(self).items() if k != "path"}) + "\n")

    @classmethod
    def load(cls, data: str | Path, split: str) -> SplitInfo | None:
        """The split's manifest, None where the data was not prepared by this package."""
        path = cls.file(data, split)
        if not path.exists():
            return None
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            examples = tuple((int(d), int(s), int(n)) for d, s, n in fields.pop("examples"))
            source, target = fields.pop("longest")
            return cls(path=str(path), examples=examples, longest=(int(source), int(target)), **fields)
        except (ValueError, TypeError, KeyError) as e:
            raise InputError(f"{path}: not a manifest of this package ({e}); run the preprocessing again") from e


@dataclass(frozen=True)
class DroppedSide:
    """One side's input in a batch, what a dropped word becomes, and the symbols that are never dropped."""

    key: str
    unk: int
    spared: frozenset[int]


def dropped_side(key: str, dictionary: Any, separator: str) -> DroppedSide:
    """The side ``key`` of a batch; end of sentence, padding and the separator between sentences are spared."""
    spared = {dictionary.eos(), dictionary.bos(), dictionary.pad()}
    if separator:
        spared.add(dictionary.index(separator))
    return DroppedSide(key, dictionary.unk(), frozenset(spared))


def drop_words(sample: dict[str, Any], p: float, sides: Sequence[DroppedSide]) -> dict[str, Any]:
    """The batch with each word of the given sides replaced by <unk> with probability ``p``; the target stays whole.

    Drawn from torch's generator, which fairseq seeds by the update's number: anew every update, the same after a
    resume. The batch itself is not changed.
    """
    if not sample:
        return sample
    net_input = dict(sample["net_input"])
    for side in sides:
        tokens: Tensor = net_input[side.key]
        drop = torch.rand(tokens.shape, device=tokens.device) < p
        for symbol in side.spared:
            drop &= tokens != symbol
        net_input[side.key] = tokens.masked_fill(drop, side.unk)
    return {**sample, "net_input": net_input}
