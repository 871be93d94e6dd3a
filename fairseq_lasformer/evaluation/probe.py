"""Discourse probe of the demo corpus: accuracy on context-dependent words.

A hypothesis is aligned with its reference word by word (Levenshtein); a word counts as right if the aligned word of the
hypothesis is identical.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rapidfuzz.distance import Levenshtein

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import option
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.evaluation.further import FurtherScore, Systems
from fairseq_lasformer.text.documents import Document

# Classes of distances in source tokens: name and largest distance.
DISTANCES = (("1-30", 30), ("31-100", 100), ("101-300", 300), ("301-1000", 1000), (">1000", 10**9))
_WORD = re.compile(r"\w+|[^\w\s]")


class Probe(NamedTuple):
    """A context-dependent word; the fields are those of the probe file (see data/demo/generate.py)."""

    document: int
    sentence: int
    word: int
    phenomenon: str
    right: str
    wrong: list[str]
    distance: int
    first: bool


def read_probes(path: str | Path) -> list[Probe]:
    """Return the entries of a probe file."""
    try:
        with open(path, encoding="utf-8") as f:
            return [_probe(json.loads(line)) for line in f]
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
    except (ValueError, TypeError, OverflowError, RecursionError) as e:
        raise InputError(f"{path}: not a probe file ({e})") from e


def _probe(fields: Any) -> Probe:
    probe = Probe(**fields)
    counts = (probe.document, probe.sentence, probe.word, probe.distance)
    if not all(type(n) is int and 0 <= n < 10**9 for n in counts):
        raise ValueError("document, sentence, word and distance are counts")
    if not (isinstance(probe.phenomenon, str) and isinstance(probe.right, str) and isinstance(probe.first, bool)):
        raise ValueError("phenomenon and right are words, first is true or false")
    if not (isinstance(probe.wrong, list) and all(isinstance(w, str) for w in probe.wrong)):
        raise ValueError("wrong is a list of words")
    return probe


def words(text: str) -> list[str]:
    """Return the words and punctuation marks of a text."""
    return _WORD.findall(text)


def judge(probes: Sequence[Probe], hypotheses: Sequence[Document], references: Sequence[Document]) -> list[bool]:
    """Return whether each probed word is translated correctly.

    Args:
        hypotheses, references: documents, in the same order.
    """
    if len(hypotheses) != len(references):
        raise InputError(f"{len(hypotheses)} hypotheses for {len(references)} reference documents")
    aligned: dict[int, dict[int, str]] = {}
    starts: dict[int, list[int]] = {}
    results = []
    for probe in probes:
        if probe.document >= len(references) or probe.sentence >= len(references[probe.document]):
            raise InputError(
                f"the probe names sentence {probe.sentence} of document {probe.document}, which does not exist"
            )
        d = probe.document
        if d not in aligned:
            sentences = [words(s) for s in references[d]]
            starts[d] = [sum(len(s) for s in sentences[:i]) for i in range(len(sentences))]
            aligned[d] = _align([w for s in sentences for w in s], words(" ".join(hypotheses[d])))
        results.append(aligned[d].get(starts[d][probe.sentence] + probe.word) == probe.right)
    return results


def _align(reference: list[str], hypothesis: list[str]) -> dict[int, str]:
    """Return the hypothesis word aligned with each reference position that has a counterpart."""
    pairs = {}
    for op in Levenshtein.opcodes(reference, hypothesis):
        if op.tag in ("equal", "replace"):
            for offset in range(op.src_end - op.src_start):
                pairs[op.src_start + offset] = hypothesis[op.dest_start + offset]
    return pairs


def accuracy(probes: Sequence[Probe], right: Sequence[bool]) -> Scores:
    """Return the shares of correctly translated words.

    Args:
        right: results of :func:`judge`.

    Returns:
        ``accuracy``: for ``all`` words decided by an earlier sentence, and by phenomenon; ``by_distance``: the same
        words by distance; ``same_sentence``: for words decided in their own sentence; ``first``: for those of ``all``
        whose decision is not yet visible in the preceding translation; ``chance``: expected accuracy when guessing
        among a word's choices; ``counts``: number of words in each class.
    """
    classes: dict[str, list[int]] = {}
    for i, probe in enumerate(probes):
        if probe.distance == 0:
            classes.setdefault("same_sentence", []).append(i)
            continue
        name = next(name for name, most in DISTANCES if probe.distance <= most)
        for key in ("all", probe.phenomenon, name, *(["first"] if probe.first else [])):
            classes.setdefault(key, []).append(i)
    share = {key: sum(right[i] for i in members) / len(members) for key, members in classes.items()}
    kinds = ["all", *dict.fromkeys(p.phenomenon for p in probes)]
    return {
        "accuracy": {k: share[k] for k in kinds if k in share},
        "by_distance": {name: share[name] for name, _ in DISTANCES if name in share},
        "same_sentence": share.get("same_sentence"),
        "first": share.get("first"),
        "chance": {
            k: sum(1 / (1 + len(probes[i].wrong)) for i in classes[k]) / len(classes[k]) for k in kinds if k in classes
        },
        "counts": {key: len(members) for key, members in classes.items()},
    }


@dataclass(frozen=True, kw_only=True)
class ProbeScore(FurtherScore):
    """Accuracy on context-dependent words."""

    probe: Path | None = option(None, "probe file of the demo corpus")

    @property
    def asked(self) -> bool:
        return self.probe is not None

    def evaluate(self, systems: Systems) -> dict[str, Scores]:
        probes = read_probes(self.probe) if self.probe else []
        return {
            name: accuracy(probes, judge(probes, documents, systems.references))
            for name, documents in systems.hypotheses.items()
        }

    def text(self, name: str, scores: Scores) -> str:
        shares = scores["accuracy"] | scores["by_distance"]
        return f"{name}: " + ", ".join(f"{kind} {share:.1%}" for kind, share in shares.items())
