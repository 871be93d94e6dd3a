"""Contrastive test sets: the right translation of a sentence in its context, and wrong ones. There are two formats.

ContraPro's (Müller et al. 2018) has the files ``PREFIX.SRC`` and ``PREFIX.TGT`` with a candidate per line, ``context
<SEP> sentence``, and ``PREFIX.groups``: the index of the first line of each group, from 0, followed by the total number
of lines. The first line of each group is the correct translation. The format of Voita et al. 2019 (deixis, ellipsis,
lexical cohesion) is ``SET.json``: a list of ``src``, ``dst`` and ``true_ind``, tokenised, ``_eos`` between sentences.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sacremoses import MosesDetokenizer

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.text.documents import read_lines

SEPARATOR = "<SEP>"


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


def read_set(path: Path, source_lang: str, target_lang: str) -> list[Group]:
    """Read a set in one of the two formats: a file ``SET.json``, or the prefix of ContraPro's files."""
    return (read_consistency if path.suffix == ".json" else read_groups)(path, source_lang, target_lang)


def read_consistency(path: Path, source_lang: str, target_lang: str) -> list[Group]:
    """Read a consistency test set of Voita et al.; the text is detokenised."""
    sides = [MosesDetokenizer(lang=language) for language in (source_lang, target_lang)]

    def sentences(text: str, side: int) -> list[str]:
        texts = [sides[side].detokenize(part.split()) for part in text.split("_eos")]
        if not all(texts):
            raise ValueError("a sentence is empty")
        return texts

    try:
        groups = []
        for item in json.loads(path.read_text(encoding="utf-8")):
            *before, source = sentences(item["src"], 0)
            targets = [sentences(text, 1) for text in item["dst"]]
            targets.insert(0, targets.pop(int(item["true_ind"])))
            if len(targets) < 2:
                raise ValueError("a group of one candidate")
            candidates = [Candidate(tuple(before), source, tuple(context), last) for *context, last in targets]
            groups.append(Group(candidates, item.get("ctx_dist")))
        if not groups:
            raise ValueError("it is empty")
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as e:
        raise InputError(f"{path}: not a consistency test set, a list of src, dst and true_ind ({e})") from e
    return groups


def _split(line: str, path: Path, number: int) -> tuple[tuple[str, ...], str]:
    *context, sentence = (part.strip() for part in line.split(SEPARATOR))
    if not sentence:
        raise InputError(f"{path}:{number}: no sentence after the last {SEPARATOR}")
    return tuple(c for c in context if c), sentence


def read_groups(prefix: Path, source_lang: str, target_lang: str) -> list[Group]:
    """Read the groups of a set; ``PREFIX.distance``, if it exists, contains the distance of each group, one per line.

    Args:
        prefix: common prefix of the files.
        source_lang, target_lang: suffixes of the files with the two sides.
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
        filled = [
            Candidate(*_split(sides[0][j], files[0], j + 1), *_split(sides[1][j], files[1], j + 1))
            for j in range(begin, end)
        ]
        groups.append(Group(filled, int(distances[i]) if distances else None))
    return groups
