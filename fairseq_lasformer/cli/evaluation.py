"""Subcommands that analyse models: contrastive test sets, use of context, reports, costs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fairseq_lasformer.cli import Renamed, add_beam, add_device, add_max_tokens
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import atomic_write, check_writable


def run_contrast(args: argparse.Namespace) -> None:
    from fairseq_lasformer.analysis import contrast
    from fairseq_lasformer.analysis.contrast_sets import read_set
    from fairseq_lasformer.documents.hub import load_model

    if args.json:
        check_writable(args.json)
    policies = contrast.policies(args.context or ("none,source" if args.generative else "none,source,both"))
    hub = load_model(args.checkpoint, args.data, args.device)
    groups = read_set(args.prefix, hub.settings.source_lang, hub.settings.target_lang)
    if args.generative:
        results = [contrast.generate(hub, groups, policy, args.beam, args.max_tokens) for policy in policies]
    else:
        results = [contrast.evaluate(hub, groups, policy, args.max_tokens) for policy in policies]
    print(contrast.table(results))
    if args.json:
        atomic_write(args.json, json.dumps({"results": results}, indent=1) + "\n")


def add_contrast(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument(
        "prefix",
        type=Path,
        help="the set: PREFIX.SRC, PREFIX.TGT, PREFIX.groups, PREFIX.distance; or SET.json (Voita et al.)",
    )
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument(
        "--context", help="context policies, from none,source,both (default: all; --generative: the first two)"
    )
    parser.add_argument(
        "--generative",
        action="store_true",
        help="translate, and count the sentences whose translation contains the right pronoun (er, sie, es)",
    )
    add_beam(parser)
    add_max_tokens(parser, 4096)
    add_device(parser)
    parser.add_argument("--cuda", dest="device", action=Renamed, now="--device cuda", value="cuda")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")


def run_context(args: argparse.Namespace) -> None:
    from fairseq_lasformer.analysis import context_use
    from fairseq_lasformer.documents.hub import load_model
    from fairseq_lasformer.text.documents import read_corpus

    try:
        tokens = sorted({int(n) for n in args.tokens.split(",")})
        shares = [float(share) for share in args.kappa.split(",")] if args.kappa else []
    except ValueError as e:
        raise InputError(f"--tokens {args.tokens} --kappa {args.kappa}: expected numbers separated by commas") from e
    if min(tokens) < 1 or any(not 0 < share <= 1 for share in shares):
        raise InputError("--tokens: expected numbers of tokens; --kappa: shares from 0 to 1")
    if args.json:
        check_writable(args.json)
    hub = load_model(args.checkpoint, args.data, args.device)
    prefix = args.prefix
    sides = (prefix.with_name(f"{prefix.name}.{lang}") for lang in (hub.settings.source_lang, hub.settings.target_lang))
    use = context_use.ContextUse(hub, read_corpus(*sides).documents)
    chosen = context_use.places(use.documents, args.lines or None)
    results = []
    for share in (*shares,) or (None,):
        if share is not None:
            context_use.set_kappa(hub, share)
        results.append({"kappa": share} | context_use.evaluate(use, chosen, tokens, args.max_tokens))
        print(context_use.table(results[-1]))
    if args.json:
        atomic_write(args.json, json.dumps({"results": results}, indent=1) + "\n")


def add_context(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("prefix", type=Path, help="documents and their translation, raw form: PREFIX.SRC, PREFIX.TGT")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument(
        "--tokens", default="10,30,100,300", help="tokens of context on either side (default: %(default)s)"
    )
    parser.add_argument(
        "--lines", type=int, default=2000, help="lines to score, evenly drawn; 0: all (default: %(default)s)"
    )
    parser.add_argument("--kappa", default="", help="shares of keys to keep, such as 0.05,0.2 (default: the model's)")
    add_max_tokens(parser, 4096)
    add_device(parser)
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
    parser.add_argument("--document", type=Path, help="source text (raw form) to translate and inspect")
    parser.add_argument(
        "--reference", type=Path, help="its translation (default: the file next to it in the target language, if any)"
    )
    parser.add_argument("--show", type=int, default=3, help="number of its documents to show (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one each run was trained on)")
    parser.add_argument(
        "--scores", type=Path, help="scores of all runs, by their names (lasformer score --bootstrap --json)"
    )
    add_device(parser)
    parser.add_argument("--title", default="Lasformer report", help="default: %(default)s")


def run_info(args: argparse.Namespace) -> None:
    from fairseq_lasformer.analysis import param_count
    from fairseq_lasformer.analysis.cost import checkpoint_cost, table
    from fairseq_lasformer.checkpoints.loading import chosen, load

    if args.checkpoint is None:
        target = args.words if args.target_words is None else args.target_words
        model = param_count.build(args.arch or "lasformer", args.words, target, args.options)
        print(param_count.table(param_count.parts(model.named_parameters())))
        return
    if args.arch is not None or args.options:
        raise InputError(f"{args.checkpoint}: has its own architecture; leave out --arch and its options")
    try:
        lengths = [int(n) for n in args.lengths.split(",")]
    except ValueError as e:
        raise InputError(f"--lengths {args.lengths}: expected numbers of tokens separated by commas") from e
    if args.json:
        check_writable(args.json)
    checkpoint = chosen(args.checkpoint)
    costs = checkpoint_cost(checkpoint, lengths)
    print(param_count.table(param_count.parts(param_count.stored(load(checkpoint)["model"]))))
    print(f"\n{table(costs)}")
    if args.json:
        ratios = ("ratio", "ratio_with_projections", "ratio_with_all_projections")
        rows = [c._asdict() | {r: getattr(c, r) for r in ratios} for c in costs]
        atomic_write(args.json, json.dumps({"rows": rows}, indent=1) + "\n")


def add_info(parser: argparse.ArgumentParser) -> None:
    from fairseq_lasformer.shared import model_path

    parser.add_argument(
        *("checkpoint",),
        nargs="?",
        type=model_path,
        help="a checkpoint, or its folder: its parameters, and what its attention costs",
    )
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192", help="numbers of tokens (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the costs to this file")
    parser.add_argument("--arch", help="instead of a checkpoint: parameters of an architecture (default: lasformer)")
    parser.add_argument("--words", type=int, default=32000, help="size of its source dictionary (default: %(default)s)")
    parser.add_argument("--target-words", type=int, help="size of its target dictionary (default: the same)")
    parser.set_defaults(late=("checkpoint", None))
    parser.epilog = "After -- : options of the architecture, such as --encoder-embed-dim 256."
