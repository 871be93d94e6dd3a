"""Subcommands that score translations and find terms to score."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_write, check_writable
from fairseq_lasformer.base.options import NEW, SAMPLES, SCORES, argument, option
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.base.shared_options import Overwrite, language
from fairseq_lasformer.evaluation.breakdown import Breakdown
from fairseq_lasformer.evaluation.further import Systems, further_scores
from fairseq_lasformer.evaluation.probe import ProbeScore
from fairseq_lasformer.evaluation.pronouns import PronounScore
from fairseq_lasformer.evaluation.tcp import TcpScore
from fairseq_lasformer.evaluation.terms import TermScore
from fairseq_lasformer.text.documents import Document


@dataclass(frozen=True, kw_only=True)
class Score(Breakdown, TcpScore, TermScore, PronounScore, ProbeScore, Overwrite):
    """Scores of translated documents; every base but the last is a score."""

    reference: Path = argument("reference documents, raw form")
    hypotheses: tuple[Path, ...] = argument(
        "translated documents: one per line with tabs between sentences (lasformer generate), or in raw form", ()
    )
    source: Path | None = option(None, "source documents, raw form, for --terms and --pronouns")
    realign: bool = option(
        False, "first cut translations whose lines differ from their reference's into its lines (mweralign)"
    )
    ctxpro: Path | None = option(
        None, "instead, accuracy on a set of ctxpro, SET.json; name only the file of translations", metavar="SET"
    )
    target_lang: str = option("", "language of the translations, for --ctxpro and --pronouns")
    bootstrap: int | None = option(
        None,
        "test whether d-BLEU differs significantly from that of the first system (paired bootstrap, "
        f"{SAMPLES} samples)",
        bare=SAMPLES,
        metavar="SAMPLES",
        minimum=1,
    )
    tokenize: str = option("13a", "sacrebleu's tokeniser, zh for Chinese")
    allow_empty: bool = option(False, "count empty lines as empty output")
    json: Path | None = option(None, "also write the scores to this file", writes=SCORES)


def run_score(args: Score) -> None:
    if args.json:
        check_writable(args.json)
    if args.ctxpro:
        report = _ctxpro(args, args.ctxpro)
    elif args.reference.suffix == ".srt":
        raise InputError(f"{args.reference}: SubER is no longer computed here; use the package subtitle-edit-rate")
    else:
        report = _documents(args)
    if args.json:
        atomic_write(args.json, json.dumps(report, indent=1) + "\n")


def _ctxpro(args: Score, of: Path) -> Scores:
    from fairseq_lasformer.evaluation import ctxpro
    from fairseq_lasformer.text.hypotheses import read_hypotheses

    if args.hypotheses:
        raise InputError("--ctxpro: expected only the translations: lasformer score --ctxpro SET.json OUTPUT")
    items, language = ctxpro.read_set(of)
    outputs = read_hypotheses(args.reference, args.allow_empty, len(items))
    scores = ctxpro.evaluate(outputs, items, args.target_lang or language)
    print(ctxpro.text(scores))
    return {"ctxpro": scores}


def _documents(args: Score) -> Scores:
    from fairseq_lasformer.evaluation.realign import realign
    from fairseq_lasformer.evaluation.scores import compare, comparison_table, score, table
    from fairseq_lasformer.text.documents import read_documents
    from fairseq_lasformer.text.hypotheses import read_hypotheses

    if not args.hypotheses:
        raise InputError("also name the translated documents: lasformer score REFERENCE OUTPUT...")
    if args.bootstrap and len(args.hypotheses) < 2:
        raise InputError("--bootstrap compares systems: name at least two hypothesis files, the baseline first")
    further = further_scores(args, len(args.hypotheses), args.source is not None)
    references = read_documents(args.reference)
    documents: dict[str, list[Document]] = {}
    for name, path in _named(args.hypotheses).items():
        documents[name] = read_hypotheses(path, args.allow_empty, len(references))
        if args.realign and len(documents[name]) == len(references):
            documents[name] = realign(documents[name], references, args.tokenize)
    results = {name: score(hypotheses, references, args.tokenize) for name, hypotheses in documents.items()}
    sources = read_documents(args.source) if args.source else []
    if args.source and len(sources) != len(references):
        raise InputError(f"{args.source}: {len(sources)} documents for {len(references)} reference documents")
    systems = Systems(documents, references, sources, args.tokenize, args.bootstrap or 0, args.target_lang)
    for one in further:
        for name, scores in one.evaluate(systems).items():
            results[name] |= scores
    print(table(results))
    for name, scores in results.items():
        for one in further:
            if text := one.text(name, scores):
                print(text)
    report: Scores = {"systems": results}
    if args.bootstrap:
        report["bootstrap"] = compare(documents, references, args.tokenize, args.bootstrap)
        print(comparison_table(report["bootstrap"]))
    return report


def _named(paths: Sequence[Path]) -> dict[str, Path]:
    """Return files by their names without folder and suffix; where these are not unique, by their paths."""
    stems, times = Counter(path.stem for path in paths), Counter(map(str, paths))
    if twice := [name for name, n in times.items() if n > 1]:
        raise InputError(f"{twice[0]}: given {times[twice[0]]} times; give each file once")
    return {path.stem if stems[path.stem] == 1 else str(path): path for path in paths}


@dataclass(frozen=True, kw_only=True)
class Terms(Overwrite):
    """Names and their translations in a parallel text."""

    prefix: Path = argument("documents and their translation, raw form: PREFIX.SRC, PREFIX.TGT")
    out: Path = argument("file for the terms: source term, tab, target term", writes=NEW)
    source_lang: str = language("source", ", the suffix of its file")
    target_lang: str = language("target", ", the suffix of its file")
    least: int = option(5, "minimum number of lines with a term", minimum=1)
    random: int | None = option(None, "find as many random words instead of names, for comparison", metavar="SEED")


def run_terms(args: Terms) -> None:
    from fairseq_lasformer.evaluation.term_pairs import find
    from fairseq_lasformer.text.documents import read_corpus, sides

    check_writable(args.out)
    terms = find(
        read_corpus(*sides(args.prefix, args.source_lang, args.target_lang)).documents, args.least, args.random
    )
    if not terms:
        raise InputError(
            f"{args.prefix}: no term occurs in {args.least} lines with a reliable translation; try a lower --least"
        )
    atomic_write(args.out, "".join(f"{source}\t{target}\n" for source, target in terms))
    print(f"{args.out}: {len(terms)} terms")
