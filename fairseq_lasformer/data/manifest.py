"""The manifest of a split: what the preparation did to it, and which documents its examples come from."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write

MONO = {"mono_source": 0, "mono_target": 1}
"""Splits of documents in one language, and the side of that language, which is used for both sides."""
TRAINING = ("train", *MONO)
"""Splits whose examples are for training."""


@dataclass(frozen=True)
class SplitInfo:
    """Record of the preparation of one split; stored with the binarised data as ``documents.<split>.json``."""

    path: str
    # documents, sentences: counts in the raw text
    documents: int
    sentences: int
    n_examples: int  # number of lines in the binarised split
    n_cut: int  # number of documents that were longer than the limit and cut into parts
    n_parts: int  # number of parts in total; an uncut document is one part
    dropped: int  # number of pairs left out because one side was empty
    longest: tuple[int, int]  # tokens of the longest example, source and target, end of sentence included
    # for a split in reading order, (document, first sentence, number of sentences) of every example; empty for training
    # data, whose examples overlap
    examples: tuple[tuple[int, int, int], ...] = ()
    cleaned: int = 0  # number of lines in which control characters were replaced with spaces
    reference: bool = True  # False for a test set without translations
    # share of the tokens that are missing from the dictionary, source and target
    unknown: tuple[float, float] = (0.0, 0.0)
    # for a split in reading order, number of blank lines before each document, and after the last; empty if not known
    blanks: tuple[int, ...] = ()
    undivided: tuple[str, ...] = ()  # files, each a single document of hundreds of sentences

    @property
    def name(self) -> str:
        """Name of the split: train, valid, test, test1, …"""
        return Path(self.path).name.split(".")[1]

    @staticmethod
    def binarised(data: str | Path, split: str, source: str, target: str) -> bool:
        """Return whether the binarised examples of a split exist, in either direction."""
        pairs = (f"{source}-{target}", f"{target}-{source}")
        return any((Path(data) / f"{split}.{pair}.{source}.idx").exists() for pair in pairs)

    @staticmethod
    def file(data: str | Path, split: str) -> Path:
        return Path(data) / f"documents.{split}.json"

    def save(self) -> None:
        atomic_write(self.path, json.dumps({k: v for k, v in asdict(self).items() if k != "path"}) + "\n")

    @classmethod
    def load(cls, data: str | Path, split: str) -> SplitInfo | None:
        """Load the manifest of a split; None if the data was not prepared by this package."""
        path = cls.file(data, split)
        if not path.exists():
            return None
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            examples = tuple((int(d), int(s), int(n)) for d, s, n in fields.pop("examples"))
            source, target = fields.pop("longest")
            unknown = fields.pop("unknown", (0.0, 0.0))
            blanks = tuple(map(int, fields.pop("blanks", ())))
            undivided = tuple(map(str, fields.pop("undivided", ())))
            fields.pop("n_remembering", 0)  # of an earlier version
            info = cls(
                path=str(path),
                examples=examples,
                longest=(int(source), int(target)),
                unknown=(float(unknown[0]), float(unknown[1])),
                blanks=blanks,
                undivided=undivided,
                **fields,
            )
            if examples and len(examples) != info.n_examples:
                raise ValueError(f"it lists {len(examples)} of {info.n_examples} examples")
            return info
        except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as e:
            raise InputError(f"{path}: not a manifest of this package ({e}); run the preprocessing again") from e


def check_binarised(data: str | Path, split: str, source: str, target: str) -> None:
    """Reject a split with a truncated file: fairseq would stop midway, or read past the end of the file."""
    for index in sorted(Path(data).glob(f"{split}.*.idx")):
        if index.name.split(".")[-2] not in (source, target):
            continue
        tokens = index.with_suffix(".bin")
        with open(index, "rb") as f:
            head = f.read(26)
        if head[:9] != b"MMIDIDX\x00\x00":
            continue  # a different fairseq format, or not an index at all
        damage = f"{index}: damaged, prepare the data again"
        if len(head) < 26 or head[17] not in _ITEM_BYTES:
            raise InputError(damage)
        (n,) = struct.unpack("<Q", head[18:])
        if index.stat().st_size != 26 + 12 * n or not tokens.exists():
            raise InputError(damage)
        with open(index, "rb") as f:
            f.seek(26)
            sizes = np.fromfile(f, dtype="<i4", count=n)
        if tokens.stat().st_size != int(sizes.sum(dtype=np.int64)) * _ITEM_BYTES[head[17]]:
            raise InputError(f"{tokens}: damaged, prepare the data again")


# Bytes per item in fairseq's memory-mapped format, by type code.
_ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 8, 7: 8, 8: 2, 9: 4, 10: 8}
