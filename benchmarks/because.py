"""Explanations against the truth of the demo corpus: ``python -m benchmarks.because [--documents N]``.

Needs the demo's model (``make demo``). It prints the bars of docs/because.md:

- hit@1: of the context-dependent words that the model translates rightly, those whose deciding line is named;
- own: of the words that their own line decides, those for which no other line is named;
- leaving a line out, in float64: the largest difference from scoring the text without the line;
- the time of one sentence's explanation and of a whole document's, and that of its translation;
- ambiguity: documents from which all lines that settle a phenomenon are removed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fairseq_lasformer.analysis.contrast import PRONOUNS, pronoun
from fairseq_lasformer.analysis.contrast_sets import read_set
from fairseq_lasformer.documents.because import Because, explain
from fairseq_lasformer.documents.forced import ForcedDocument
from fairseq_lasformer.documents.hub import load_model
from fairseq_lasformer.evaluation.probe import Probe, read_probes, words
from fairseq_lasformer.text.documents import read_documents
from fairseq_lasformer.text.hypotheses import read_hypotheses

ROOT = Path(__file__).resolve().parent.parent
FAR = 300
"""Source words and punctuation marks beyond which a deciding word is far away."""


def deciding(probe: Probe, source: list[str], asked: int) -> tuple[int, int]:
    """Return the line that decides a probed word, and the word in it, from its distance to the source word."""
    starts = np.cumsum([0, *(len(words(line)) for line in source)])
    place = int(starts[probe.sentence]) + asked - probe.distance
    line = int(np.searchsorted(starts, place, side="right")) - 1
    return line, place - int(starts[line])


def asked_word(probe: Probe, line: str, lexicon: Any) -> int:
    """Return the source word that a probe tests: the last of its kind in the line."""
    kinds = {
        "pronoun": {"it"},
        "address": {"you"},
        "ambiguity": {row[0] for row in lexicon.AMBIGUOUS},
        "tense": {row[0] for row in lexicon.UNMARKED_VERBS},
    }
    return max(i for i, word in enumerate(words(line)) if word.lower() in kinds[probe.phenomenon])


def named(document: ForcedDocument, found: list[Any], line: int, word: int) -> list[Any] | None:
    """Return the explanations of a word; None if the line has no such word."""
    if word >= len(document.words[line]):
        return None
    start, end = document.words[line][word]
    return [one for one in found if one.line == line and one.start < end and one.end > start]


def hits(hub: Any, demo: Path, chosen: range) -> None:
    import lexicon

    sources = read_documents(demo / "raw/test.en")
    translations = read_hypotheses(demo / "lasformer.de", allow_empty=True)
    probes = read_probes(demo / "raw/test.probe.jsonl")
    right, total, own, said = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    seconds, tokens = 0.0, 0
    for d in chosen:
        if len(translations[d]) != len(sources[d]):
            total["documents with other lines"] += 1
            continue
        begun = time.perf_counter()
        document = ForcedDocument(hub, sources[d], translations[d])
        found = Because(document).explain()
        seconds, tokens = seconds + time.perf_counter() - begun, tokens + sum(map(len, document.sources))
        for probe in (p for p in probes if p.document == d):
            line = probe.sentence
            explained = named(document, found, line, probe.word)
            start, end = document.words[line][probe.word] if explained is not None else (0, 0)
            if explained is None or translations[d][line][start:end] != probe.right:
                continue
            causes = [one.cause.line for one in explained if one.cause is not None]
            if probe.distance == 0:
                own["words"] += 1
                own["name no other line"] += not causes
                continue
            truth, _ = deciding(probe, sources[d], asked_word(probe, sources[d][line], lexicon))
            for kind in ("all", probe.phenomenon, f"beyond {FAR}" if probe.distance > FAR else f"up to {FAR}"):
                total[kind] += 1
                right[kind] += causes[:1] == [truth]
            said["ambiguous"] += any(one.ambiguous for one in explained)
    for kind in ("all", f"up to {FAR}", f"beyond {FAR}", "pronoun", "ambiguity", "tense", "address"):
        print(f"hit@1 {kind}: {right[kind] / max(1, total[kind]):.1%} of {total[kind]}")
    print(f"own line: {own['name no other line'] / max(1, own['words']):.1%} of {own['words']} name no other")
    print(f"called ambiguous though decided: {said['ambiguous']}")
    print(f"not explained, with another number of lines: {total['documents with other lines']} documents")
    print(f"{seconds / tokens * 1000:.2f} s per 1,000 tokens, whole documents")


def differences(hub: Any, demo: Path, most: int = 200) -> None:
    """Leave lines out, and compare with the text without them: encoded, joined and scored by the model's own pass."""
    sources = read_documents(demo / "raw/test.en")
    translations = read_hypotheses(demo / "lasformer.de", allow_empty=True)
    hub.models[0].double()
    worst, n = 0.0, 0
    for source, target in zip(sources, translations):
        if n >= most or not 5 < len(source) == len(target) < 40:
            continue
        search = Because(ForcedDocument(hub, source, target))
        asked = [(w, (w.place.line - 1,)) for i in range(1, len(source)) for w in search.words(i) if not w.ambiguous]
        for (word, (line,)), cost in list(zip(asked, search.costs(asked)))[: most - n]:
            kept = [i for i in range(len(source)) if i != line]
            scores = [
                own_pass(hub, [source[i] for i in its], [target[i] for i in its], its.index(word.place.line))
                for its in (list(range(len(source))), kept)
            ]
            whole, without = (float(s[word.place.first : word.place.end].sum()) for s in scores)
            worst, n = max(worst, abs(cost - (whole - without))), n + 1
    hub.models[0].float()
    print(f"leaving a line out, float64: at most {worst:.1e} nats from scoring the text without it ({n} words)")


@torch.no_grad()
def own_pass(hub: Any, source: list[str], target: list[str], line: int) -> torch.Tensor:
    """Return the log probabilities of a line's tokens by fairseq's interface of the model."""
    codec = hub.codec
    pieces = [codec.encode_target(text) for text in target]
    joined = hub.tgt_dict.encode_line(codec.join(pieces, 1), add_if_not_exist=False).long()
    tokens = hub.src_dict.encode_line(codec.join([codec.encode_source(s) for s in source], 0), add_if_not_exist=False)
    previous = joined.roll(1)
    scores = hub.models[0](tokens.long()[None], torch.tensor([len(tokens)]), previous[None])[0][0].log_softmax(-1)
    start = sum(map(codec.length, pieces[:line]))
    return scores.gather(1, joined[:, None])[:, 0][start : start + len(pieces[line].split())]


def times(hub: Any, demo: Path) -> None:
    """Time the document that is closest to a thousand tokens."""
    sources = read_documents(demo / "raw/test.en")
    source = min(sources, key=lambda d: abs(sum(len(hub.codec.encode_source(s).split()) + 1 for s in d) - 1000))
    text = "\n".join(source)

    def seconds(work: Any, times: int = 3) -> float:
        work()
        begun = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - begun) / times

    (found,) = hub.translate_documents([text], progress=False, lines=True)
    lines = [(i, s, line.translation) for i, (s, line) in enumerate(zip(source, found), 1)]
    n_words = sum(len(line.translation.split()) for line in found)
    translation = seconds(lambda: hub.translate_documents([text], progress=False))
    whole = seconds(lambda: explain(hub, lines))
    thorough = seconds(lambda: explain(hub, lines, thorough=True))
    one = seconds(lambda: explain(hub, lines, [len(lines) - 1]))
    print(f"a document of {len(source)} lines and {n_words} words, {torch.get_num_threads()} threads")
    print(f"translation, beam 5: {translation:.2f} s; all words: {whole:.2f} s, {whole / translation:.2f} of it")
    print(f"all words, thoroughly: {thorough:.2f} s, {thorough / n_words * 1000:.1f} ms a word")
    print(f"one sentence, thoroughly: {one * 1000:.0f} ms")


def ambiguity(hub: Any, chosen: range) -> None:
    import generate

    rng = random.Random(1002)  # the test split of seed 1
    tested: list[tuple[list[Any], str]] = []
    for d in range(chosen.stop):
        written, _ = generate.document(rng, "test", generate.length(rng, d))
        if d in chosen:
            for kind in sorted({s.query[0] for s in written if s.query}):
                kept = [s for s in written if not (s.cue and s.cue[0] == kind)]
                if len(kept) > 2 and any(s.query and s.query[0] == kind for s in kept):
                    tested.append((kept, kind))
    texts = [[generate.raw(s.source) for s in kept] for kept, _ in tested]
    translated = hub.translate_documents(["\n".join(text) for text in texts], 2, progress=False)
    flags = right = found_first = 0
    for (kept, kind), text, translation in zip(tested, texts, translated):
        document = ForcedDocument(hub, text, translation.split("\n"))
        undecided = {i: s.query[2] for i, s in enumerate(kept) if s.query and s.query[0] == kind}
        found = [one for one in Because(document).explain() if one.ambiguous]
        true = [one for i, word in undecided.items() for one in named(document, found, i, word) or ()]
        first = min(undecided)
        flags, right = flags + len(found), right + len(true)
        found_first += bool(named(document, found, first, undecided[first]))
    recall, precision = found_first / len(tested), right / max(1, flags)
    print(
        f"ambiguity: recall {recall:.1%} of {len(tested)} words that neither the source nor an earlier choice decides"
    )
    print(f"ambiguity: precision {precision:.1%} of {flags} words called ambiguous")


def contrapro(hub: Any, prefix: Path) -> None:
    """Explain the pronouns of the right candidates: their sentence, after the one before it."""
    counts = Counter[str]()
    for group in read_set(prefix, hub.settings.source_lang, hub.settings.target_lang):
        right, kind = group.candidates[0], pronoun(group)
        sides = [*right.source_context, right.source], [*right.target_context, right.target]
        if kind not in PRONOUNS or len(sides[0]) != len(sides[1]):
            continue
        lines = [(i, *pair) for i, pair in enumerate(zip(*sides))]
        last = len(lines) - 1
        found = [
            one
            for one in explain(hub, lines, [last], False).words
            if kind in sides[1][-1][one.start : one.end].lower().split()
        ]
        counts["pronouns"] += 1
        counts["decided by the sentence before"] += any(one.cause is not None for one in found)
        counts["ambiguous"] += any(one.ambiguous for one in found)
    print(f"{prefix}: " + ", ".join(f"{name} {n}" for name, n in counts.items()))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=ROOT / "runs/demo_paper")
    parser.add_argument("--first", type=int, default=0, help="first document (default: %(default)s)")
    parser.add_argument("--documents", type=int, default=160, help="number of documents (default: all, %(default)s)")
    parser.add_argument("--contrapro", type=Path, help="only this: the prefix of a contrastive set")
    parser.add_argument("--model", type=Path, default=ROOT / "data/models/help_en-de", help="its model")
    args = parser.parse_args(argv)
    if args.contrapro:
        contrapro(load_model(args.model, device="cpu"), args.contrapro)
        return
    sys.path.insert(0, str(ROOT / "data/demo"))
    chosen = range(args.first, min(160, args.first + args.documents))
    hub = load_model(args.demo / "lasformer", args.demo / "data/mixture", "cpu")
    times(hub, args.demo)
    hits(hub, args.demo, chosen)
    ambiguity(hub, chosen)
    differences(load_model(args.demo / "lasformer", args.demo / "data/mixture", "cpu"), args.demo)


if __name__ == "__main__":
    main()
