"""The command ``lasformer``: one subcommand a job. Each prints one line and exits with 1 on bad input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from fairseq_lasformer.documents import RESOLUTIONS, InputError, atomic_write
from fairseq_lasformer.text import SUBWORDS, TOKENIZERS


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
    from fairseq_lasformer.evaluation.scores import score, table

    references = read_documents(args.reference)
    probes = read_probes(args.probe) if args.probe else []
    systems = {}
    for path in args.hypotheses:
        hypotheses = read_hypotheses(path, args.allow_empty)
        systems[path.stem] = score(hypotheses, references, args.tokenize)
        if probes:
            systems[path.stem] |= accuracy(probes, judge(probes, hypotheses, references))
    print(table(systems))
    for name, scores in systems.items():
        if probes:
            print(
                f"{name}: " + ", ".join(f"{k} {v:.1%}" for k, v in (scores["accuracy"] | scores["by_distance"]).items())
            )
    if args.json:
        atomic_write(args.json, json.dumps({"systems": systems}, indent=1) + "\n")


def _add_score(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", type=Path, help="reference documents, raw form")
    parser.add_argument(
        "hypotheses", type=Path, nargs="+", help="translated documents, one a line (lasformer generate)"
    )
    parser.add_argument("--probe", type=Path, help="probe file of the demo corpus")
    parser.add_argument(
        "--tokenize", default="13a", help="sacrebleu's tokeniser, zh for Chinese (default: %(default)s)"
    )
    parser.add_argument("--allow-empty", action="store_true", help="count empty lines as empty output")
    parser.add_argument("--json", type=Path, help="write the scores to this file, too")


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


def _average(args: argparse.Namespace) -> None:
    from fairseq_lasformer.checkpoints import average

    average(args.checkpoints, args.out)
    print(f"{args.out}: mean of {len(args.checkpoints)} checkpoints, kappa of {args.checkpoints[-1]}")


def _add_average(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path)
    parser.add_argument("checkpoints", type=Path, nargs="+", help="of one run, the last one last")


COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], None]]] = {
    "prepare": ("raw documents to binarised data", _add_prepare, _prepare),
    "generate": ("translate a prepared split, whole documents", _add_generate, _generate),
    "score": ("d-BLEU, s-BLEU and chrF of translated documents", _add_score, _score),
    "cost": ("attention cost against the dense Transformer", _add_cost, _cost),
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
    if args.options and args.command != "generate":
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
