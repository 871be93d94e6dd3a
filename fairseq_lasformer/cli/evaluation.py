"""Subcommands for scores, contrastive test sets, reports and costs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from fairseq_lasformer.cli import DEFAULT_SAMPLES, Renamed, add_device, add_max_tokens
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import atomic_write, check_writable


def run_score(args: argparse.Namespace) -> None:
    from fairseq_lasformer.data.documents import read_documents
    from fairseq_lasformer.data.hypotheses import read_hypotheses
    from fairseq_lasformer.evaluation import breakdown, tcp
    from fairseq_lasformer.evaluation.probe import accuracy, judge, read_probes
    from fairseq_lasformer.evaluation.scores import compare, comparison_table, score, table

    if bool(args.tcp) != bool(args.tcp_reference):
        raise InputError("--tcp and --tcp-reference go together: the candidates, and the tokenised reference")
    if args.tcp_tokenized and not args.tcp:
        raise InputError("--tcp-tokenized describes the hypotheses that --tcp scores; add --tcp, or leave it out")
    if args.bootstrap is not None and args.bootstrap < 1:
        raise InputError(f"--bootstrap {args.bootstrap}: at least one sample is needed")
    if args.bootstrap and len(args.hypotheses) < 2:
        raise InputError("--bootstrap compares systems: name at least two hypothesis files, the baseline first")
    if args.json:
        check_writable(args.json)
    references = read_documents(args.reference)
    probes = read_probes(args.probe) if args.probe else []
    found: dict[str, list[list[str]]] = {}
    for path in args.hypotheses:
        name = path.stem if path.stem not in found else str(path)
        found[name] = read_hypotheses(path, args.allow_empty, len(references))
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
    print(table(systems))
    for name, scores in systems.items():
        if text := breakdown.table(name, scores):
            print(text)
        if args.tcp:
            print(tcp.line(name, scores["tcp"]))
    report: dict[str, Any] = {"systems": systems}
    if args.bootstrap:
        report["bootstrap"] = compare(found, references, args.tokenize, args.bootstrap)
        print(comparison_table(report["bootstrap"]))
    for name, scores in systems.items():
        if probes:
            print(
                f"{name}: " + ", ".join(f"{k} {v:.1%}" for k, v in (scores["accuracy"] | scores["by_distance"]).items())
            )
    if args.json:
        atomic_write(args.json, json.dumps(report, indent=1) + "\n")


def add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", type=Path, help="reference documents, raw form")
    parser.add_argument(
        "hypotheses",
        type=Path,
        nargs="+",
        help="translated documents: one per line with tabs between sentences (lasformer generate), or in raw form",
    )
    parser.add_argument("--by-length", action="store_true", help="also d-BLEU and chrF by length of the document")
    parser.add_argument("--by-position", action="store_true", help="also by quarter of the document")
    parser.add_argument(
        "--omissions",
        action="store_true",
        help="also which sentences of the reference are missing, which lines too many",
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


def run_contrast(args: argparse.Namespace) -> None:
    from fairseq_lasformer.analysis import contrast
    from fairseq_lasformer.documents.hub import load_model

    if args.json:
        check_writable(args.json)
    policies = contrast.policies(args.context)
    hub = load_model(args.checkpoint, args.data, args.device)
    groups = contrast.read_groups(args.prefix, hub.settings.source_lang, hub.settings.target_lang)
    results = [contrast.evaluate(hub, groups, policy, args.max_tokens) for policy in policies]
    print(contrast.table(results))
    if args.json:
        atomic_write(args.json, json.dumps({"results": results}, indent=1) + "\n")


def add_contrast(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("prefix", type=Path, help="the set: PREFIX.SRC, PREFIX.TGT, PREFIX.groups, PREFIX.distance")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument(
        "--context", default="none,source,both", help="context policies: none, source, both (default: %(default)s)"
    )
    add_max_tokens(parser, 4096)
    add_device(parser)
    parser.add_argument("--cuda", dest="device", action=Renamed, now="--device cuda", value="cuda")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")


def run_report(args: argparse.Namespace) -> None:
    from fairseq_lasformer.analysis.report import report

    check_writable(args.out)
    runs = report(
        args.runs, args.out, args.document, args.title, args.show, args.data, args.reference, args.scores, args.device
    )
    print(f"{args.out}: {', '.join(run.name for run in runs)}")


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="output folder of examples/demo.py, or folder of checkpoints with train.log (or RUN.log next to it) and, "
        "if there are scores, scores.json (lasformer score --json)",
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="default: %(default)s")
    parser.add_argument("--document", type=Path, help="source text (raw form) to translate and to look at")
    parser.add_argument(
        "--reference", type=Path, help="its translation (default: the file beside it in the target language, if any)"
    )
    parser.add_argument("--show", type=int, default=3, help="number of its documents to show (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one each run was trained on)")
    parser.add_argument(
        "--scores", type=Path, help="scores of all runs, by their names (lasformer score --bootstrap --json)"
    )
    add_device(parser)
    parser.add_argument("--title", default="Lasformer report", help="default: %(default)s")


def run_cost(args: argparse.Namespace) -> None:
    from fairseq_lasformer.analysis.cost import checkpoint_cost, table

    try:
        lengths = [int(n) for n in args.lengths.split(",")]
    except ValueError as e:
        raise InputError(f"--lengths {args.lengths}: expected numbers of tokens separated by commas") from e
    if args.json:
        check_writable(args.json)
    costs = checkpoint_cost(args.checkpoint, lengths)
    print(table(costs))
    if args.json:
        ratios = ("ratio", "ratio_with_projections", "ratio_with_all_projections")
        rows = [c._asdict() | {r: getattr(c, r) for r in ratios} for c in costs]
        atomic_write(args.json, json.dumps({"rows": rows}, indent=1) + "\n")


def add_cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192", help="numbers of tokens (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
