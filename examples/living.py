#!/usr/bin/env python3
"""Updates of a translation, on the demo's corpus, after a line changes that later words depend on.

    python examples/living.py runs/demo/lasformer [--data FOLDER] [--documents 80]

In test documents, a line that alone settles something (the gender of an object, how somebody is addressed, …) is
replaced by one that settles it differently. It compares these ways to the new translation: translating everything
again; the same with the translation of that line given; and ``update``, which translates that line and what it
contradicts. It counts the later words that depend on the line and follow it, up to 300 words and punctuation marks
after it, and all other lines that change. Then a line that nothing depends on is replaced.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "data" / "demo"))
import demo  # noqa: F401  (sets up fairseq's logging)
import generate as corpus
import lexicon
import torch
from tqdm import tqdm

from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.documents.requests import Request
from fairseq_lasformer.documents.updating import KEPT, Former, Updater, kept_lines
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.probe import words
from fairseq_lasformer.evaluation.scores import score
from fairseq_lasformer.files import atomic_write

FACTS = {
    "pronoun": list(lexicon.OBJECTS),
    "ambiguity": list(lexicon.PLACES),
    "tense": list(lexicon.TENSE_ADVERBS),
    "address": list(lexicon.NAMES),
}
REACH = 300


class Case(NamedTuple):
    """A document in which a line is replaced.

    Attributes:
        old, new: source lines before and after.
        references: of the new lines, except for the dependent words.
        line: number of the replaced line.
        follow: for each line that depends on it, the word it had and the word it should have.
        far: lines that depend on it but are further away than :data:`REACH`.
    """

    old: list[str]
    new: list[str]
    references: list[str]
    line: int
    follow: dict[int, tuple[str, str]]
    far: set[int]


def fact_of(sentence: Any, phenomenon: str) -> str:
    """Return what a line settles: the group that its deciding word belongs to."""
    word = sentence.source[sentence.cue[1]].lower()
    tables = {
        "pronoun": lexicon.OBJECTS,
        "ambiguity": lexicon.PLACES,
        "tense": lexicon.TENSE_ADVERBS,
        "address": lexicon.NAMES,
    }
    return next(f for f, rows in tables[phenomenon].items() if any(row[0].lower().split()[0] == word for row in rows))


def case(lines: list[Any], split: str, rng: random.Random) -> Case | None:
    """Replace a line of a document that others depend on; return None if there is none."""
    found = []
    for i, line in enumerate(lines):
        if not line.cue or line.query:
            continue
        phenomenon, distance, depend, far = line.cue[0], len(line.source) - line.cue[1], [], set()
        settled = [j for j, other in enumerate(lines) if other.cue and other.cue[0] == phenomenon]
        if len(settled) > 1:
            continue
        for j, later in enumerate(lines[i + 1 :], i + 1):
            if later.query and later.query[0] == phenomenon:
                if distance + later.query[1] <= REACH:
                    depend.append(j)
                else:
                    far.add(j)
            distance += len(later.source)
        if depend:
            found.append((i, depend, far))
    if not found:
        return None
    i, depend, far = rng.choice(found)
    phenomenon = lines[i].cue[0]
    old = fact_of(lines[i], phenomenon)
    new = rng.choice([fact for fact in FACTS[phenomenon] if fact != old])
    writer = corpus.Writer(rng)
    while corpus.split_of(corpus.raw((changed := writer.cue(phenomenon, new)).source)) != split:
        pass
    follow = {}
    for j in depend:
        _, _, word, wrong = lines[j].query
        right = wrong[0]
        if phenomenon == "pronoun":
            right = next(w for w in wrong if w.lower() == new)
        follow[j] = lines[j].target[word], right
    sources = [corpus.raw(line.source) for line in lines]
    targets = [corpus.raw(line.target) for line in lines]
    replaced = [*sources[:i], corpus.raw(changed.source), *sources[i + 1 :]]
    return Case(sources, replaced, [*targets[:i], corpus.raw(changed.target), *targets[i + 1 :]], i, follow, far)


def harmless(lines: list[Any], split: str, rng: random.Random) -> Case | None:
    """Replace a line of a document that settles nothing; return None if there is none."""
    found = [i for i, line in enumerate(lines) if not line.cue and not line.query]
    if not found:
        return None
    i, writer = rng.choice(found), corpus.Writer(rng)
    while corpus.split_of(corpus.raw((changed := writer.filler()).source)) != split:
        pass
    sources, targets = ([corpus.raw(getattr(line, side)) for line in lines] for side in ("source", "target"))
    new, references = (
        [*its[:i], corpus.raw(own), *its[i + 1 :]]
        for its, own in ((sources, changed.source), (targets, changed.target))
    )
    return Case(sources, new, references, i, {}, set())


def cases(n: int, make: Callable[..., Case | None] = case, split: str = "test", seed: int = 1) -> list[Case]:
    """Return cases made of the demo's documents of 10 to 60 lines."""
    rng, draw = random.Random(seed * 1000 + corpus.SPLITS.index(split)), random.Random(seed)
    documents = [corpus.document(rng, split, corpus.length(rng, d))[0] for d in range(2000 // 25 * 2)]
    found = (make(lines, split, draw) for lines in documents if 10 <= len(lines) <= 60)
    return [c for c in found if c is not None][:n]


def judged(c: Case, old: list[str], new: list[str]) -> dict[str, Any]:
    """Judge how a translation followed: the dependent words that were right, and all other lines."""
    right = [j for j, (before, _) in c.follow.items() if before in words(old[j])]
    followed = [c.follow[j][1] in words(new[j]) and c.follow[j][0] not in words(new[j]) for j in right]
    others = [j for j in range(len(new)) if j != c.line and j not in c.follow and j not in c.far]
    return {
        "dependent": len(right),
        "followed": sum(followed),
        "others": len(others),
        "moved": sum(old[j] != new[j] for j in others),
        "other_lines": ([new[j] for j in others], [c.references[j] for j in others]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument("--documents", type=int, default=80, help="at most (default: %(default)s)")
    parser.add_argument("--beam", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/living.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        model = load_model(args.model, args.data, "cpu")
    except InputError as e:
        sys.exit(f"error: {e}")
    report = {}
    for title, make in (("a line that others depend on", case), ("a line that settles nothing", harmless)):
        rows = compared(model, cases(args.documents, make), args.beam, title)
        report[title] = rows
        print(f"\n{title}:\n")
        print("| | dependent words that follow | other lines that change | d-BLEU of other lines | seconds |")
        print("|---|---|---|---|---|")
        for name, t in rows.items():
            follow = f"{t['followed']} of {t['dependent']} ({t['followed'] / max(1, t['dependent']):.1%})"
            moved = f"{t['moved']} of {t['others']} ({t['moved'] / max(1, t['others']):.1%})"
            print(f"| {name} | {follow} | {moved} | {t['d_bleu_of_others']:.2f} | {t['seconds']:.1f} |", flush=True)
    atomic_write(args.out, json.dumps(report, indent=1) + "\n")


def compared(model: Any, done: list[Case], beam: int, title: str) -> dict[str, dict[str, Any]]:
    """Return the counts of each way to a new translation."""
    translator = model.translator(beam)
    updater = Updater(translator, model.device)
    totals: dict[str, dict[str, Any]] = {}
    for c in tqdm(done, desc=title, unit=" documents"):
        begun = time.perf_counter()
        (before,) = model.translate_documents(["\n".join(c.old)], beam)
        old = before.split("\n")
        tally(totals, "as it was", c, old, old, time.perf_counter() - begun)
        given = {c.line + 1: c.references[c.line]}
        ways = {"all retranslated": (c.new, None), "all retranslated, the line given": (c.new, given)}
        if c.follow:
            ways["all retranslated, the line given, its source as it was"] = (c.old, given)
        for name, (sources, known) in ways.items():
            begun = time.perf_counter()
            (made,) = model.translate_documents(["\n".join(sources)], beam, given=[known])
            tally(totals, name, c, old, made.split("\n"), time.perf_counter() - begun)
        begun = time.perf_counter()
        texts = updated(model, translator, updater, c, old)
        tally(totals, "update", c, old, texts, time.perf_counter() - begun)
    for t in totals.values():
        t["d_bleu_of_others"] = score(t.pop("lines"), t.pop("references"))["d_bleu"]
    return totals


def updated(model: Any, translator: Any, updater: Updater, c: Case, old: list[str]) -> list[str]:
    """Return the lines of an updated translation."""
    kept = kept_lines(c.old, c.new)
    known = {i + 1: old[j] for i, j in enumerate(kept) if j is not None}
    former = model.source(Request.of("\n".join(c.old), given=dict(enumerate(old, 1))), translator)
    document = model.source(Request.of("\n".join(c.new), given=known), translator)
    found = updater.update(Former(former, ()), document, kept)
    return [
        known[i] if state == KEPT else model.line(i, "", line).translation
        for i, (line, state) in enumerate(zip(found.lines, found.states), 1)
    ]


def tally(
    totals: dict[str, dict[str, Any]], name: str, c: Case, old: list[str], new: list[str], seconds: float
) -> None:
    """Add the results of a document to the counts of a way."""
    here = totals.setdefault(name, {"lines": [], "references": []})
    found = judged(c, old, new)
    lines, references = found.pop("other_lines")
    here["lines"].append(lines)
    here["references"].append(references)
    for key, value in {**found, "seconds": seconds}.items():
        here[key] = here.get(key, 0) + value


if __name__ == "__main__":
    main()
