"""Scores, contrastive sets, ablations, reports, costs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import atomic_write, check_writable

DEFAULT_SAMPLES = 1000


def run_score(args: argparse.Namespace) -> None:
    from fairseq_lasformer.documents import read_documents
    from fairseq_lasformer.evaluation.hypotheses import read_hypotheses
    from fairseq_lasformer.evaluation.probe import accuracy, judge, read_probes
    from fairseq_lasformer.evaluation.scores import compare, comparison_table, score, table

    if bool(args.tcp) != bool(args.tcp_reference):
        raise InputError("--tcp and --tcp-reference go together: the candidates, and the tokenised reference")
    if args.tcp_tokenized and not args.tcp:
        raise InputError("--tcp-tokenized says of what form the hypotheses are that --tcp is to score")
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
        if probes:
            systems[name] |= accuracy(probes, judge(probes, hypotheses, references))
        if args.tcp:
            systems[name]["tcp"] = _tcp(hypotheses, args.tcp, args.tcp_reference, args.tcp_tokenized)
    print(table(systems))
    for name, scores in systems.items():
        if args.tcp:
            print(f"{name}: " + ", ".join(f"{k} {scores['tcp'][k]:.1f}" for k in ("TC", "CP", "PT", "TCP")))
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


def _tcp(hypotheses: Sequence[Sequence[str]], candidates: Path, reference: Path, tokenized: bool) -> dict[str, float]:
    from fairseq_lasformer.documents import read_lines
    from fairseq_lasformer.evaluation import tcp

    tokens = [" ".join(d).split() if tokenized else tcp.tokenized(d) for d in hypotheses]
    return tcp.score(tokens, [line.split() for line in read_lines(reference)], tcp.read_labels(candidates))


def add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", type=Path, help="reference documents, raw form")
    parser.add_argument(
        "hypotheses",
        type=Path,
        nargs="+",
        help="translated documents: one per line, tabs between sentences (lasformer generate), or in raw form",
    )
    parser.add_argument("--probe", type=Path, help="probe file of the demo corpus")
    parser.add_argument("--tcp", type=Path, metavar="CANDIDATES", help="PDC's annotation, for TC, CP, PT and TCP")
    parser.add_argument("--tcp-reference", type=Path, metavar="TOK", help="PDC's tokenised reference, with --tcp")
    parser.add_argument(
        "--tcp-tokenized", action="store_true", help="the hypotheses are tokenised as PDC's reference is"
    )
    parser.add_argument(
        "--bootstrap",
        type=int,
        nargs="?",
        const=DEFAULT_SAMPLES,
        metavar="SAMPLES",
        help=f"test whether the differences of d-BLEU to the first system are significant (paired bootstrap, "
        f"{DEFAULT_SAMPLES} samples)",
    )
    parser.add_argument(
        "--tokenize", default="13a", help="sacrebleu's tokeniser, zh for Chinese (default: %(default)s)"
    )
    parser.add_argument("--allow-empty", action="store_true", help="count empty lines as empty output")
    parser.add_argument("--json", type=Path, help="write the scores to this file, too")


def run_contrast(args: argparse.Namespace) -> None:
    from fairseq_lasformer.evaluation import contrast
    from fairseq_lasformer.hub import from_pretrained

    if args.json:
        check_writable(args.json)
    policies = contrast.policies(args.context)
    hub = from_pretrained(args.checkpoint.parent, args.checkpoint.name, args.data)
    if args.cuda:
        import torch

        if not torch.cuda.is_available():
            raise InputError("--cuda: there is no GPU here; leave the option out")
        hub = hub.cuda()
    groups = contrast.read_groups(args.prefix, hub.settings.source_lang, hub.settings.target_lang)
    results = [contrast.evaluate(hub, groups, policy, args.max_tokens) for policy in policies]
    print(contrast.table(results))
    if args.json:
        atomic_write(args.json, json.dumps({"results": results}, indent=1) + "\n")


def add_contrast(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("prefix", type=Path, help="the set: PREFIX.SRC, PREFIX.TGT, PREFIX.groups, PREFIX.distance")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one that was trained on)")
    parser.add_argument(
        "--context", default="none,source,both", help="policies: none, source, both (default: %(default)s)"
    )
    parser.add_argument("--max-tokens", type=int, default=4096, help="of a batch (default: %(default)s)")
    parser.add_argument("--cuda", action="store_true", help="on a GPU")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")


def run_ablate(args: argparse.Namespace) -> None:
    from fairseq_lasformer import ablation
    from fairseq_lasformer.documents import read_documents
    from fairseq_lasformer.training import read_config

    rows = ablation.rows(args.table, read_config(args.config), args.values.split(",") if args.values else ())
    folder = args.out / args.config.stem / f"table{args.table}"
    chosen = [row for row in rows if args.only in (None, row.label)]
    if not chosen:
        raise InputError(f"--only {args.only}: table {args.table} has {', '.join(r.label for r in rows)}")
    plan = ablation.Plan(args.config, read_documents(args.reference), tuple(args.options), tuple(args.set))
    for row in [] if args.show else chosen:
        if args.submit is None:
            ablation.run(plan, row, folder / row.folder)
        elif ablation.finished(plan, row, folder / row.folder) is None:
            command = [str(Path(sys.executable).with_name("lasformer")), "ablate", str(args.config.resolve())]
            command += ["--table", str(args.table), "--only", row.label, "--reference", str(args.reference.resolve())]
            command += ["--out", str(args.out.resolve()), "--length", str(args.length)]
            command += ["--values", args.values] if args.values else []
            command += [o for override in args.set for o in ("--set", override)]
            ablation.submit(args.submit, [*command, *(["--", *args.options] if args.options else [])])
    print(ablation.text(plan, args.table, rows, folder, args.length))


def add_ablate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="configuration of the run that is varied, configs/NAME.yaml")
    parser.add_argument("--table", type=int, required=True, help="of the paper: 3, 4, 5, 6 or 7")
    parser.add_argument("--reference", type=Path, required=True, help="test reference, raw form")
    parser.add_argument("--out", type=Path, default=Path("runs/ablate"), help="default: %(default)s")
    parser.add_argument("--values", help="of what tables 5, 6 and 7 vary, separated by commas")
    parser.add_argument("--only", metavar="LABEL", help="this run alone")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="Hydra override of all runs")
    parser.add_argument("--length", type=int, default=1024, help="tokens, for the cost (default: %(default)s)")
    parser.add_argument("--submit", metavar="LAUNCHER", help="hand the runs to e.g. 'sbatch --gres=gpu:1 --wrap'")
    parser.add_argument("--show", action="store_true", help="print what is finished, run nothing")
    parser.epilog = "After -- : options of fairseq-generate, such as --cpu --beam 5."


def run_report(args: argparse.Namespace) -> None:
    from fairseq_lasformer.evaluation.report import report

    check_writable(args.out)
    runs = report(args.runs, args.out, args.document, args.title, args.show, args.data)
    print(f"{args.out}: {', '.join(run.name for run in runs)}")


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="folder of scripts/demo.py, or folder of checkpoints with a train.log (or RUN.log beside it) and, if "
        "there are scores, scores.json (lasformer score --json)",
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("report.html"), help="default: %(default)s")
    parser.add_argument("--document", type=Path, help="source text (raw form), for the attention view")
    parser.add_argument("--show", type=int, default=3, help="documents to show of it (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one each run was trained on)")
    parser.add_argument("--title", default="Lasformer report")


def run_cost(args: argparse.Namespace) -> None:
    from fairseq_lasformer.cost import checkpoint_cost, table

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
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192", help="tokens (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
