"""Subcommands that score translations and find terms to score."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_lasformer.cli import DEFAULT_SAMPLES
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import atomic_write, check_writable
from fairseq_lasformer.text.documents import Document

_WITH_SOURCE = ("pronouns", "terms", "windows", "comet")


def run_score(args: argparse.Namespace) -> None:
    if args.json:
        check_writable(args.json)
    if args.ctxpro:
        report = _ctxpro(args)
    elif args.reference.suffix == ".srt":
        report = _subtitles(args)
    else:
        report = _documents(args)
    if args.json:
        atomic_write(args.json, json.dumps(report, indent=1) + "\n")


def _ctxpro(args: argparse.Namespace) -> dict[str, Any]:
    from fairseq_lasformer.evaluation import ctxpro
    from fairseq_lasformer.text.hypotheses import read_hypotheses

    if args.hypotheses:
        raise InputError("--ctxpro: expected only the translations: lasformer score --ctxpro SET.json OUTPUT")
    items, language = ctxpro.read_set(args.ctxpro)
    outputs = read_hypotheses(args.reference, args.allow_empty, len(items))
    found = ctxpro.evaluate(outputs, items, args.target_lang or language)
    print(ctxpro.text(found))
    return {"ctxpro": found}


def _subtitles(args: argparse.Namespace) -> dict[str, Any]:
    from fairseq_lasformer.evaluation import subtitles

    if not args.hypotheses:
        raise InputError("also name the translated subtitles: lasformer score REFERENCE.srt OUTPUT.srt")
    text, found = subtitles.table(args.reference, args.hypotheses, args.target_lang)
    print(text)
    return {"suber": found}


def _documents(args: argparse.Namespace) -> dict[str, Any]:
    from fairseq_lasformer.evaluation import breakdown, tcp
    from fairseq_lasformer.evaluation.probe import accuracy, judge, read_probes
    from fairseq_lasformer.evaluation.realign import realign
    from fairseq_lasformer.evaluation.scores import compare, comparison_table, score, table
    from fairseq_lasformer.text.documents import read_documents
    from fairseq_lasformer.text.hypotheses import read_hypotheses

    _check(args)
    references = read_documents(args.reference)
    probes = read_probes(args.probe) if args.probe else []
    found: dict[str, list[Document]] = {}
    for path in args.hypotheses:
        name = path.stem if path.stem not in found else str(path)
        found[name] = read_hypotheses(path, args.allow_empty, len(references))
        if args.realign and len(found[name]) == len(references):
            found[name] = realign(found[name], references, args.tokenize)
    systems = {}
    for name, hypotheses in found.items():
        systems[name] = score(hypotheses, references, args.tokenize)
        for key, measure in breakdown.MEASURES.items():
            if getattr(args, key):
                systems[name][key] = measure(hypotheses, references, args.tokenize)
        if args.omissions:
            systems[name]["omissions"] = breakdown.omissions(hypotheses, references)
        if probes:
            systems[name] |= accuracy(probes, judge(probes, hypotheses, references))
        if args.tcp:
            systems[name]["tcp"] = tcp.evaluate(hypotheses, args.tcp, args.tcp_reference, args.tcp_tokenized)
    said = _with_source(args, found, references, systems) if args.source else {}
    print(table(systems))
    for name, scores in systems.items():
        if text := breakdown.table(name, scores):
            print(text)
        if args.tcp:
            print(tcp.line(name, scores["tcp"]))
        for line in said.get(name, ()):
            print(line)
    report: dict[str, Any] = {"systems": systems}
    if args.bootstrap:
        report["bootstrap"] = compare(found, references, args.tokenize, args.bootstrap)
        print(comparison_table(report["bootstrap"]))
    for name, scores in systems.items():
        if probes:
            print(
                f"{name}: " + ", ".join(f"{k} {v:.1%}" for k, v in (scores["accuracy"] | scores["by_distance"]).items())
            )
    return report


def _check(args: argparse.Namespace) -> None:
    """Refuse options that are invalid or conflict."""
    if not args.hypotheses:
        raise InputError("also name the translated documents: lasformer score REFERENCE OUTPUT...")
    if bool(args.tcp) != bool(args.tcp_reference):
        raise InputError("--tcp and --tcp-reference go together: the candidates, and the tokenised reference")
    if args.tcp_tokenized and not args.tcp:
        raise InputError("--tcp-tokenized describes the hypotheses that --tcp scores; add --tcp, or leave it out")
    if args.bootstrap is not None and args.bootstrap < 1:
        raise InputError(f"--bootstrap {args.bootstrap}: at least one sample is needed")
    if args.bootstrap and len(args.hypotheses) < 2:
        raise InputError("--bootstrap compares systems: name at least two hypothesis files, the baseline first")
    wanted = [name for name in _WITH_SOURCE if getattr(args, name)]
    if wanted and not args.source:
        raise InputError(f"--{wanted[0]}: also needs the source documents: --source FILE")
    if args.windows and len(args.hypotheses) > 1:
        raise InputError("--windows: writes the windows of one system; name a single hypothesis file")
    if args.windows:
        check_writable(args.windows)


def _with_source(
    args: argparse.Namespace,
    found: dict[str, list[Document]],
    references: Sequence[Document],
    systems: dict[str, dict[str, Any]],
) -> dict[str, list[str]]:
    """Add the scores that need the source documents, and return lines about them for a terminal, by system."""
    from fairseq_lasformer.evaluation import pronouns, terms, windows
    from fairseq_lasformer.text.documents import read_documents
    from fairseq_lasformer.text.terms import read_terms

    sources = read_documents(args.source)
    if len(sources) != len(references):
        raise InputError(f"{args.source}: {len(sources)} documents for {len(references)} reference documents")
    said: dict[str, list[str]] = {name: [] for name in found}
    if args.terms:
        wanted = terms.grouped(read_terms(args.terms))
        for name, hypotheses in found.items():
            systems[name]["terms"] = terms.evaluate(hypotheses, sources, wanted)
            said[name].append(terms.text(name, systems[name]["terms"]))
    if args.pronouns:
        language = args.target_lang or "en"
        counts = {
            name: pronouns.evaluate(hypotheses, references, sources, language) for name, hypotheses in found.items()
        }
        first = next(iter(counts))
        for name, documents in counts.items():
            summary = systems[name]["pronouns"] = pronouns.summary(documents)
            if args.bootstrap and name != first:
                summary["p"] = pronouns.significance(documents, counts[first], args.bootstrap)
            said[name].append(pronouns.text(name, summary))
    if args.windows or args.comet:
        for name, hypotheses in found.items():
            cut = windows.windows(hypotheses, references, sources, args.window_lines, args.window_lines)
            if args.windows:
                windows.write(args.windows, cut)
                said[name].append(f"{args.windows}: {len(cut)} windows of {args.window_lines} lines")
            if args.comet:
                systems[name]["comet"] = windows.comet(args.comet, cut)
                said[name].append(f"{name}: COMET {systems[name]['comet']:.4f} over {len(cut)} windows ({args.comet})")
    return said


def run_terms(args: argparse.Namespace) -> None:
    from fairseq_lasformer.evaluation.term_pairs import find
    from fairseq_lasformer.text.documents import read_corpus

    check_writable(args.out)
    sides = (args.prefix.with_name(f"{args.prefix.name}.{lang}") for lang in (args.source_lang, args.target_lang))
    found = find(read_corpus(*sides).documents, args.least, args.random)
    if not found:
        raise InputError(
            f"{args.prefix}: no term occurs in {args.least} lines with a reliable translation; try a lower --least"
        )
    atomic_write(args.out, "".join(f"{source}\t{target}\n" for source, target in found))
    print(f"{args.out}: {len(found)} terms")


def add_terms(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", type=Path, help="documents and their translation, raw form: PREFIX.SRC, PREFIX.TGT")
    parser.add_argument("out", type=Path, help="file for the terms: source term, tab, target term")
    parser.add_argument("-s", "--source-lang", required=True, help="source language, the suffix of its file")
    parser.add_argument("-t", "--target-lang", required=True, help="target language, the suffix of its file")
    parser.add_argument(
        "--least", type=int, default=5, help="minimum number of lines with a term (default: %(default)s)"
    )
    parser.add_argument(
        "--random", type=int, metavar="SEED", help="find as many random words instead of names, for comparison"
    )


def add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", type=Path, help="reference documents, raw form; or an .srt file")
    parser.add_argument(
        "hypotheses",
        type=Path,
        nargs="*",
        help="translated documents: one per line with tabs between sentences (lasformer generate), or in raw form",
    )
    parser.add_argument("--by-length", action="store_true", help="also d-BLEU and chrF by length of the document")
    parser.add_argument("--by-position", action="store_true", help="also by quarter of the document")
    parser.add_argument(
        "--omissions",
        action="store_true",
        help="also which sentences of the reference are missing, and which lines are superfluous",
    )
    parser.add_argument("--source", type=Path, help="source documents, raw form, for the next four")
    parser.add_argument(
        "--pronouns",
        action="store_true",
        help="also the recall of pronouns: English ones (--target-lang en, the default) by whether the Chinese source "
        "sentence has one, German ones (de) by whether the English one has 'it'; with --bootstrap, "
        "whether it exceeds the first system's",
    )
    parser.add_argument(
        "--terms",
        type=Path,
        metavar="FILE",
        help="also how many terms are translated as FILE says, and in one form throughout a document",
    )
    parser.add_argument("--windows", type=Path, metavar="TSV", help="write windows of lines, for segment-level metrics")
    parser.add_argument("--comet", metavar="MODEL", help="also COMET over windows, with the package unbabel-comet")
    parser.add_argument("--window-lines", type=int, default=6, help="lines per window (default: %(default)s)")
    parser.add_argument(
        "--realign",
        action="store_true",
        help="first cut translations whose lines differ from their reference's into its lines (mweralign)",
    )
    parser.add_argument(
        "--ctxpro",
        type=Path,
        metavar="SET",
        help="instead, accuracy on a set of ctxpro, SET.json; name only the file of translations",
    )
    parser.add_argument(
        "--target-lang", default="", help="language of the translations, for --ctxpro, --pronouns and .srt files"
    )
    parser.add_argument("--probe", type=Path, help="probe file of the demo corpus")
    parser.add_argument("--tcp", type=Path, metavar="CANDIDATES", help="PDC's annotation, for TC, CP, PT and TCP")
    parser.add_argument("--tcp-reference", type=Path, metavar="TOK", help="PDC's tokenised reference, with --tcp")
    parser.add_argument(
        "--tcp-tokenized", action="store_true", help="the hypotheses are tokenised like PDC's reference"
    )
    parser.add_argument(
        "--bootstrap",
        type=int,
        nargs="?",
        const=DEFAULT_SAMPLES,
        metavar="SAMPLES",
        help=f"test whether d-BLEU differs significantly from that of the first system (paired bootstrap, "
        f"{DEFAULT_SAMPLES} samples)",
    )
    parser.add_argument(
        "--tokenize", default="13a", help="sacrebleu's tokeniser, zh for Chinese (default: %(default)s)"
    )
    parser.add_argument("--allow-empty", action="store_true", help="count empty lines as empty output")
    parser.add_argument("--json", type=Path, help="also write the scores to this file")
