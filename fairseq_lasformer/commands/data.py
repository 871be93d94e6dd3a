"""Corpora, preparation, translation, checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_lasformer.documents import RESOLUTIONS
from fairseq_lasformer.text import SUBWORDS, TOKENIZERS


def run_corpus(args: argparse.Namespace) -> None:
    from fairseq_lasformer.corpora.recipes import build

    for line in build(args.name, args.files, args.out, args.trust_first_download):
        print(line)


def add_corpus(parser: argparse.ArgumentParser) -> None:
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


def run_prepare(args: argparse.Namespace) -> None:
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


def add_prepare(parser: argparse.ArgumentParser) -> None:
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


def run_generate(args: argparse.Namespace) -> None:
    from fairseq_lasformer.generate import generate

    n = generate(args.data, args.checkpoint, args.out, args.split, args.shards, args.options, args.jobs)
    print(f"{args.out}: {n} documents")


def add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="prepared folder")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path, help="file for the translated documents, one a line")
    parser.add_argument("--split", default="test", help="test, test1, ... or valid (default: %(default)s)")
    parser.add_argument("--shards", type=int, default=4, help="a killed run repeats at most one (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="shards translated at once (default: %(default)s)")
    parser.epilog = "After -- : further options of fairseq-generate, such as --beam 5 --max-tokens 8192."


def run_params(args: argparse.Namespace) -> None:
    from fairseq_lasformer import parameters

    model = parameters.build(
        args.arch, args.words, args.words if args.target_words is None else args.target_words, args.options
    )
    print(parameters.table(parameters.parts(model)))


def add_params(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default="lasformer", help="default: %(default)s")
    parser.add_argument("--words", type=int, default=32000, help="of the source dictionary (default: %(default)s)")
    parser.add_argument("--target-words", type=int, help="of the target dictionary (default: as many)")
    parser.epilog = "After -- : options of the model, such as --encoder-embed-dim 256."


def run_average(args: argparse.Namespace) -> None:
    from fairseq_lasformer.checkpoints import average

    average(args.checkpoints, args.out)
    print(f"{args.out}: mean of {len(args.checkpoints)} checkpoints, kappa of {args.checkpoints[-1]}")


def add_average(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path)
    parser.add_argument("checkpoints", type=Path, nargs="+", help="of one run, the last one last")
