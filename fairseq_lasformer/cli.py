"""The command ``lasformer``: one subcommand a job. Each prints one line and exits with 1 on bad input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fairseq_lasformer.documents import RESOLUTIONS, InputError, atomic_write
from fairseq_lasformer.text import SUBWORDS, TOKENIZERS


def _corpus(args: argparse.Namespace) -> None:
    from fairseq_lasformer.corpora.recipes import build

    for line in build(args.name, args.files, args.out, args.trust_first_download):
        print(line)


def _add_corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=("ted", "news", "europarl", "pdc"))
    parser.add_argument("out", type=Path, help="folder for train, dev and test in raw form")
    parser.add_argument(
        "--files", type=Path, default=Path("downloads"), help="the distribution's files (default: %(default)s)"
    )
    parser.add_argument(
        "--trust-first-download",
        action="store_true",
        help="download files for which no checksum is published; their hashes are kept and checked from then on",
    )


def _prepare(args: argparse.Namespace) -> None:
    from fairseq_lasformer.prepare import Plan, prepare

    plan = Plan(
        source_lang=args.source_lang,
        target_lang=args.target_lang,
        train=tuple(args.train),
        valid=tuple(args.valid),
        test=tuple(args.test),
        out=args.out,
        tokenizer=args.tokenizer,
        bpe=args.bpe,
        size=args.size,
        resolutions=args.resolutions,
        limit=args.limit,
        separator=args.separator,
        drop_empty=args.drop_empty,
        reuse=args.reuse,
        text=args.text,
        workers=args.workers,
    )
    for info in prepare(plan, args.overwrite):
        name = Path(info.path).name.split(".")[1]
        print(
            f"{name}: {info.documents} documents, {info.sentences} sentences, {info.n_examples} examples; "
            f"{info.n_cut} documents cut, {info.n_parts} parts in all; {info.dropped} pairs dropped; "
            f"longest example {info.longest[0]} / {info.longest[1]} tokens"
        )


def _add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="folder for the binarised data")
    parser.add_argument("-s", "--source-lang", required=True)
    parser.add_argument("-t", "--target-lang", required=True)
    parser.add_argument("--train", nargs="+", default=[], metavar="PREFIX", help="raw files PREFIX.LANG, joined")
    parser.add_argument("--valid", nargs="+", default=[], metavar="PREFIX", help="likewise")
    parser.add_argument("--test", nargs="+", default=[], metavar="PREFIX", help="each its own split: test, test1, ...")
    parser.add_argument("--tokenizer", choices=TOKENIZERS, default="moses")
    parser.add_argument("--bpe", choices=sorted(SUBWORDS), default="subword-nmt")
    parser.add_argument(
        "--size", type=int, default=32000, help="BPE merges or sentencepiece vocabulary (default: %(default)s)"
    )
    parser.add_argument("--resolutions", choices=RESOLUTIONS, default="mixture", help="of the training examples")
    parser.add_argument("--limit", type=int, default=1024, help="tokens an example may have (default: %(default)s)")
    parser.add_argument("--separator", default="", help="token to put between sentences (default: none)")
    parser.add_argument("--drop-empty", action="store_true", help="drop pairs with an empty side, and count them")
    parser.add_argument("--reuse", type=Path, metavar="DATA", help="take subwords and dictionary from prepared data")
    parser.add_argument("--text", type=Path, metavar="FOLDER", help="keep encoded sentences for other preparations")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--overwrite", action="store_true", help="replace data prepared otherwise")


def _generate(args: argparse.Namespace) -> None:
    from fairseq_lasformer.generate import generate

    n = generate(args.data, args.checkpoint, args.out, args.split, args.shards, args.options, args.jobs)
    print(f"{args.out}: {n} documents")


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="prepared folder")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path, help="file for the translated documents, one a line")
    parser.add_argument("--split", default="test", help="test, test1, ... or valid (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=4, help="a killed run repeats at most one (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="shards translated at once (default: %(default)s)")
    parser.epilog = "After -- : further options of fairseq-generate, such as --beam 5 --max-tokens 8192."


def _score(args: argparse.Namespace) -> None:
    from fairseq_lasformer.documents import read_documents
    from fairseq_lasformer.evaluation.hypotheses import read_hypotheses
    from fairseq_lasformer.evaluation.probe import accuracy, judge, read_probes
    from fairseq_lasformer.evaluation.scores import compare, comparison_table, score, table

    if bool(args.tcp) != bool(args.tcp_reference):
        raise InputError("--tcp and --tcp-reference go together: the candidates, and the tokenised reference")
    if args.bootstrap and len(args.hypotheses) < 2:
        raise InputError("--bootstrap compares systems: name at least two hypothesis files, the baseline first")
    references = read_documents(args.reference)
    probes = read_probes(args.probe) if args.probe else []
    found: dict[str, list[list[str]]] = {}
    for path in args.hypotheses:
        name = path.stem if path.stem not in found else str(path)
        found[name] = read_hypotheses(path, args.allow_empty)
    systems = {}
    for name, hypotheses in found.items():
        systems[name] = score(hypotheses, references, args.tokenize)
        if probes:
            systems[name] |= accuracy(probes, judge(probes, hypotheses, references))
        if args.tcp:
            systems[name]["tcp"] = _tcp(hypotheses, args.tcp, args.tcp_reference)
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


def _tcp(hypotheses: Sequence[Sequence[str]], candidates: Path, reference: Path) -> dict[str, float]:
    from fairseq_lasformer.documents import read_lines
    from fairseq_lasformer.evaluation import tcp

    tokens = [tcp.tokenized(" ".join(document)) for document in hypotheses]
    return tcp.score(tokens, [line.split() for line in read_lines(reference)], tcp.read_labels(candidates))


def _add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", type=Path, help="reference documents, raw form")
    parser.add_argument(
        "hypotheses", type=Path, nargs="+", help="translated documents, one a line (lasformer generate)"
    )
    parser.add_argument("--probe", type=Path, help="probe file of the demo corpus")
    parser.add_argument("--tcp", type=Path, metavar="CANDIDATES", help="PDC's annotation, for TC, CP, PT and TCP")
    parser.add_argument("--tcp-reference", type=Path, metavar="TOK", help="PDC's tokenised reference, with --tcp")
    parser.add_argument(
        "--bootstrap",
        type=int,
        nargs="?",
        const=1000,
        metavar="SAMPLES",
        help="paired bootstrap of d-BLEU against the first system (1000 samples)",
    )
    parser.add_argument(
        "--tokenize", default="13a", help="sacrebleu's tokeniser, zh for Chinese (default: %(default)s)"
    )
    parser.add_argument("--allow-empty", action="store_true", help="count empty lines as empty output")
    parser.add_argument("--json", type=Path, help="write the scores to this file, too")


def _contrast(args: argparse.Namespace) -> None:
    from fairseq_lasformer.evaluation import contrast
    from fairseq_lasformer.hub import from_pretrained

    hub = from_pretrained(args.checkpoint.parent, args.checkpoint.name, args.data)
    if args.cuda:
        hub = hub.cuda()
    groups = contrast.read_groups(args.prefix, hub.settings.source_lang, hub.settings.target_lang)
    policies = contrast.policies(args.context)
    results = [contrast.evaluate(hub, groups, policy, args.max_tokens) for policy in policies]
    print(contrast.table(results))
    if args.json:
        atomic_write(args.json, json.dumps({"results": results}, indent=1) + "\n")


def _add_contrast(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("prefix", type=Path, help="the set: PREFIX.SRC, PREFIX.TGT, PREFIX.groups, PREFIX.distance")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one that was trained on)")
    parser.add_argument(
        "--context", default="none,source,both", help="policies: none, source, both (default: %(default)s)"
    )
    parser.add_argument("--max-tokens", type=int, default=4096, help="of a batch (default: %(default)s)")
    parser.add_argument("--cuda", action="store_true", help="on a GPU")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")


def _ablate(args: argparse.Namespace) -> None:
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
        if not args.submit:
            ablation.run(plan, row, folder / row.folder)
        elif ablation.finished(plan, row, folder / row.folder) is None:
            command = [str(Path(sys.executable).with_name("lasformer")), "ablate", str(args.config.resolve())]
            command += ["--table", str(args.table), "--only", row.label, "--reference", str(args.reference.resolve())]
            command += ["--out", str(args.out.resolve()), "--length", str(args.length)]
            command += ["--values", args.values] if args.values else []
            command += [o for override in args.set for o in ("--set", override)]
            ablation.submit(args.submit, [*command, *(["--", *args.options] if args.options else [])])
    print(ablation.text(plan, args.table, rows, folder, args.length))


def _add_ablate(parser: argparse.ArgumentParser) -> None:
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


def _report(args: argparse.Namespace) -> None:
    from fairseq_lasformer.evaluation.report import report

    runs = report(args.runs, args.out, args.document, args.title, args.show, args.data)
    print(f"{args.out}: {', '.join(run.name for run in runs)}")


def _add_report(parser: argparse.ArgumentParser) -> None:
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


def _cost(args: argparse.Namespace) -> None:
    from fairseq_lasformer.cost import checkpoint_cost, table

    try:
        lengths = [int(n) for n in args.lengths.split(",")]
    except ValueError as e:
        raise InputError(f"--lengths {args.lengths}: expected numbers of tokens separated by commas") from e
    costs = checkpoint_cost(args.checkpoint, lengths)
    print(table(costs))
    if args.json:
        ratios = ("ratio", "ratio_with_projections")
        rows = [c._asdict() | {r: getattr(c, r) for r in ratios} for c in costs]
        atomic_write(args.json, json.dumps({"rows": rows}, indent=1) + "\n")


def _add_cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--lengths", default="512,1024,2048,4096,8192", help="tokens (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")


def _params(args: argparse.Namespace) -> None:
    from fairseq_lasformer import parameters

    model = parameters.build(args.arch, args.words, args.target_words or args.words, args.options)
    print(parameters.table(parameters.parts(model)))


def _add_params(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default="lasformer", help="default: %(default)s")
    parser.add_argument("--words", type=int, default=32000, help="of the source dictionary (default: %(default)s)")
    parser.add_argument("--target-words", type=int, help="of the target dictionary (default: as many)")
    parser.epilog = "After -- : options of the model, such as --encoder-embed-dim 256."


def _average(args: argparse.Namespace) -> None:
    from fairseq_lasformer.checkpoints import average

    average(args.checkpoints, args.out)
    print(f"{args.out}: mean of {len(args.checkpoints)} checkpoints, kappa of {args.checkpoints[-1]}")


def _add_average(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path)
    parser.add_argument("checkpoints", type=Path, nargs="+", help="of one run, the last one last")


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], None]]] = {
    "corpus": ("one of the paper's corpora to raw documents", _add_corpus, _corpus),
    "prepare": ("raw documents to binarised data", _add_prepare, _prepare),
    "generate": ("translate a prepared split, whole documents", _add_generate, _generate),
    "score": ("d-BLEU, s-BLEU and chrF of translated documents", _add_score, _score),
    "contrast": ("score a contrastive set (ContraPro's form) with a checkpoint", _add_contrast, _contrast),
    "ablate": ("the runs of one of the paper's tables, and the table", _add_ablate, _ablate),
    "report": ("one page on runs: curves, scores, cost, attention", _add_report, _report),
    "cost": ("attention cost against the dense Transformer", _add_cost, _cost),
    "params": ("an architecture's parameters, by part", _add_params, _params),
    "average": ("average checkpoints, kappa from the last", _add_average, _average),
}


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="lasformer", description="Document-level translation with Lasformer.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, add, run) in COMMANDS.items():
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        add(sub)
        sub.set_defaults(run=run)
    words = list(sys.argv[1:] if argv is None else argv)
    # argparse cannot put what follows -- behind options and positionals alike
    end = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:end])
    args.options = words[end + 1 :]
    if args.options and args.command not in ("generate", "ablate", "params"):
        parser.error(f"{args.command} takes nothing after --")
    try:
        args.run(args)
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    return 0


def run() -> None:
    """Console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
