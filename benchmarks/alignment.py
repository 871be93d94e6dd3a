"""Aligned against free search: line counts, quality and seconds of trained models, on the CPU.

free: a translation has as many lines as the model produces; aligned (the default): as many as its source; glossary:
aligned, with --glossary.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.rows import Row
from fairseq_lasformer.documents.hub import TranslatedLine, from_pretrained
from fairseq_lasformer.evaluation.line_alignment import align
from fairseq_lasformer.evaluation.scores import score
from fairseq_lasformer.search.glossary import Glossary
from fairseq_lasformer.text.documents import join_documents, read_documents

BASELINES = ("free",)
LONG = 5000
WAYS: dict[str, dict[str, Any]] = {"free": {"align_sentences": "no"}, "aligned": {}}
"""Options of translate_documents."""

Documents = list[list[str]]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", type=Path, nargs="+", help="one case each")
    parser.add_argument("--source", type=Path, required=True, help="documents, raw form")
    parser.add_argument("--reference", type=Path, required=True, help="their translations, raw form")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument("--glossary", type=Path, help="source term, tab, target term")
    parser.add_argument("--ways", default=",".join(WAYS), help="default: %(default)s")
    parser.add_argument("--join", type=int, default=0, help="join documents until they have this many source tokens")
    parser.add_argument("--limit", type=int, help="tokens per part (default: the limit of the data)")
    parser.add_argument("--overlap", type=int, default=3, help="sentences (default: %(default)s)")
    parser.add_argument("--beam", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--max-tokens", type=int, default=8192, help="default: %(default)s")


def measure(args: argparse.Namespace) -> Iterator[Row]:
    ways = {way: WAYS[way] for way in args.ways.split(",")}
    if args.glossary:
        ways["glossary"] = {"glossary": args.glossary}
    for checkpoint in args.checkpoints:
        hub = from_pretrained(checkpoint.parent, checkpoint.name, args.data)
        if args.limit:
            hub.codec.limit, hub.codec.room = args.limit, hub.codec.room + args.limit - hub.codec.limit
        hub.task.cfg.overlap = args.overlap
        sources, references = joined(hub, read_documents(args.source), read_documents(args.reference), args.join)
        texts = [join_documents([document]) for document in sources]
        hub.translate_documents(texts[:1], args.beam, progress=False)  # warm-up
        yield Row(str(checkpoint), "aligned", "first line, s", first_line(hub, texts, args.beam), compared=False)
        for way, options in tqdm(ways.items(), desc=str(checkpoint), unit=" ways"):
            if (str(checkpoint), way) in args.done:
                continue
            start = time.perf_counter()
            found = hub.translate_documents(texts, args.beam, args.max_tokens, progress=False, lines=True, **options)
            yield Row(str(checkpoint), way, "seconds", time.perf_counter() - start)
            yield from figures(str(checkpoint), way, found, references)
            if args.glossary:
                share = met(Glossary.read(args.glossary), sources, found)
                yield Row(str(checkpoint), way, "terms, %", 100 * share, compared=False)


def joined(hub: Any, sources: Documents, references: Documents, tokens: int) -> tuple[Documents, Documents]:
    """Return the documents, consecutive ones joined until their sources have ``tokens`` tokens."""
    found: tuple[Documents, Documents] = ([], [])
    filled = tokens
    for source, reference in zip(sources, references):
        if filled >= tokens:
            filled = 0
            found[0].append([])
            found[1].append([])
        found[0][-1].extend(source)
        found[1][-1].extend(reference)
        filled += sum(hub.codec.length(hub.codec.encode_source(sentence)) for sentence in source)
    return found


def first_line(hub: Any, texts: Sequence[str], beam: int) -> float:
    """Return the seconds until the first line of a document of 5,000 words is settled, tokenisation included."""
    words, chosen = 0, []
    for text in texts:
        chosen.append(text)
        words += len(text.split())
        if words >= LONG:
            break
    lines = hub.translate_lines("".join(chosen), beam)
    start = time.perf_counter()
    next(lines)
    seconds = time.perf_counter() - start
    lines.close()
    return seconds


def figures(case: str, way: str, found: Sequence[Sequence[TranslatedLine]], references: Documents) -> list[Row]:
    """Return the figures of one model and one way."""
    lines: Documents = [[line.translation for line in document] for document in found]
    scores, aligned = score(lines, references), [align(*pair) for pair in zip(lines, references)]
    words = [[len(" ".join(document).split()) for document in side] for side in (lines, references)]
    values: dict[str, float | None] = {
        "lines right, %": 100 * sum(len(a) == len(b) for a, b in zip(lines, references)) / len(references),
        "d-BLEU": scores["d_bleu"],
        "s-BLEU": scores["s_bleu"],
        "length off": sum(not 0.9 <= a / b <= 1.1 for a, b in zip(*words)),
        "omitted": sum(len(found.omitted) for found in aligned),
        "added": sum(len(found.added) for found in aligned),
        "out of place": sum(
            len(document) - sum(a == b for a, b in found.pairs) for document, found in zip(lines, aligned)
        ),
    }
    return [Row(case, way, name, value, compared=False) for name, value in values.items() if value is not None]


def met(glossary: Glossary, sources: Documents, found: Sequence[Sequence[TranslatedLine]]) -> float:
    """Return the share of required terms that occur in their lines."""
    right = total = 0
    for source, lines in zip(sources, found):
        for i, sentence in enumerate(source):
            for term in glossary.required(sentence):
                total += 1
                right += i < len(lines) and term.lower() in lines[i].translation.lower()
    return right / max(1, total)
