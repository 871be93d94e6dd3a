"""Division of aligned documents into training, development and test sets that share no line."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

SPLITS = ("train", "dev", "test")

FRAME = 0.5
"""Share of the documents on which a pair is part of their frame: a site's header, menu and footer."""

FEWEST = 20
"""Number of documents that a frame needs; as many in the training set keep theirs."""


class AlignedDocument(NamedTuple):
    """A document in both languages."""

    name: str  # its file's relative name
    pairs: list[tuple[str, str]]  # its lines with their translations, in order


class Division(NamedTuple):
    """Documents by split; those without a line are in none."""

    documents: dict[str, list[AlignedDocument]]  # those of each split
    frame: int  # number of lines left out as the frame of their document
    equal: int  # number of lines left out of the development and test sets because nothing in them is translated
    repeated: int  # number of training lines left out because they occur in the development or test set
    empty: list[str]  # names of documents that have no line, or none left


def divide(documents: Sequence[AlignedDocument], shares: tuple[float, float]) -> Division:
    """Divide documents by a hash of their names.

    Lines of the development and test sets are left out of the training set, and lines that most documents have out
    of all documents but the first :data:`FEWEST` of the training set. Lines that are equal in both languages are left
    out of the development and test sets, where copying them would count as translation.

    Args:
        shares: of the documents for development and test; each gets at least one if its share is not 0.
    """
    numbers = {document.name: _number(document.name) for document in documents}
    ordered = sorted(numbers, key=lambda name: numbers[name])
    split = {name: "train" for name in ordered}
    start = 0.0
    for which, share in zip(("dev", "test"), shares):
        chosen = [name for name in ordered if start <= numbers[name] < start + share]
        if share and not chosen:
            chosen = [name for name in ordered if split[name] == "train"][:1]
        split |= dict.fromkeys(chosen, which)
        start += share
    occurrences = Counter(pair for document in documents for pair in set(document.pairs))
    enough = max(FEWEST, FRAME * len(documents))
    framing = {pair for pair, n in occurrences.items() if n >= enough}
    splits: dict[str, list[AlignedDocument]] = {which: [] for which in SPLITS}
    frame, equal, repeated, empty = 0, 0, 0, []
    seen: set[str] = set()
    for which in ("test", "dev", "train"):
        for document in documents:
            if split[document.name] != which:
                continue
            framed = which == "train" and len(splits["train"]) < FEWEST
            pairs = [pair for pair in document.pairs if framed or pair not in framing]
            frame += len(document.pairs) - len(pairs)
            if which == "train":
                left = [pair for pair in pairs if pair[0] not in seen]
                repeated += len(pairs) - len(left)
            else:
                left = [pair for pair in pairs if pair[0] != pair[1]]
                equal += len(pairs) - len(left)
            if left:
                splits[which].append(AlignedDocument(document.name, left))
            else:
                empty.append(document.name)
        if which != "train":
            seen |= {source for document in splits[which] for source, _ in document.pairs}
    return Division(splits, frame, equal, repeated, empty)


def _number(name: str) -> float:
    """Return a number from 0 to 1 that depends on a name alone."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
