"""Subcommands for corpora, preparation, translation, parameter counts and options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_lasformer.cli import (
    Renamed,
    add_beam,
    add_decoding,
    add_device,
    add_engine,
    add_max_tokens,
    add_memory_options,
    decoding_of,
    fairseqs_options,
    shard_of,
)
from fairseq_lasformer.data.subwords import SUBWORDS, TOKENIZERS
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.text.documents import RESOLUTIONS
from fairseq_lasformer.text.hypotheses import FORMS


def run_corpus(args: argparse.Namespace) -> None:
    from fairseq_lasformer.data.corpora.recipes import build

    languages = None if args.languages is None else tuple(args.languages.split(","))
    if languages is not None and (len(languages) != 2 or not all(languages)):
        raise InputError("--languages: expected two codes, such as en,de")
    for line in build(args.name, args.files, args.out, args.trust_first_download, languages):
        print(line)


def add_corpus(parser: argparse.ArgumentParser) -> None:
    from fairseq_lasformer.data.corpora import libreoffice
    from fairseq_lasformer.data.corpora.recipes import CORPORA

    parser.add_argument("name", choices=(*CORPORA, libreoffice.NAME))
    parser.add_argument("out", type=Path, help="folder for train, dev and test in raw form")
    parser.add_argument(
        "--files",
        type=Path,
        default=Path("downloads"),
        help="folder of the original files (default: %(default)s)",
    )
    parser.add_argument(
        "--trust-first-download",
        action="store_true",
        help="download files that have no published checksum; their hashes are recorded, and checked from then on",
    )
    parser.add_argument(
        "--languages", metavar="SOURCE,TARGET", help="of libreoffice-help, which has 35 (default: en,de)"
    )


def run_align(args: argparse.Namespace) -> None:
    from fairseq_lasformer.alignment.align import align

    before, sign, after = args.rename.partition("=")
    if args.rename and not (before and sign):
        raise InputError("--rename: expected SOURCE=TARGET, such as .en.=.de.")
    try:
        dev, test = (float(share) for share in args.split.split(","))
    except ValueError as e:
        raise InputError("--split: expected two shares, of development and test, such as 0.02,0.04") from e
    languages = args.source_lang, args.target_lang
    folders = args.source_folder, args.target_folder
    print(align(folders, languages, args.out, (before, after), (dev, test), args.encoding))


def add_align(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source_folder", type=Path, help="files in the source language, in any format of translate")
    parser.add_argument("target_folder", type=Path, help="the same files in the target language")
    parser.add_argument("-s", "--source-lang", required=True, help="source language, such as en")
    parser.add_argument("-t", "--target-lang", required=True, help="target language, such as de")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder for train, dev and test in raw form")
    parser.add_argument(
        "--rename",
        default="",
        metavar="SOURCE=TARGET",
        help="how the names of partners differ: this text in the source file's, that in the target file's, such as "
        ".en.=.de. (default: they are equal)",
    )
    parser.add_argument(
        "--split",
        default="0.02,0.04",
        metavar="DEV,TEST",
        help="shares of the documents for development and test, chosen by a hash of their names; none of their lines "
        "stays in train (default: %(default)s)",
    )
    parser.add_argument("--encoding", help="of text files (default: as each says, else UTF-8 or a guess)")
    parser.epilog = "Example: lasformer align site/en site/de -s en -t de -o raw/mine"


def run_prepare(args: argparse.Namespace) -> None:
    from fairseq_lasformer.data.prepare import prepare, summary
    from fairseq_lasformer.data.prepare_config import PrepareConfig

    options = {name: getattr(args, name) for name in PrepareConfig.__dataclass_fields__ if hasattr(args, name)}
    config = PrepareConfig(
        **options | {name: tuple(options[name]) for name in ("train", "train_sentences", "valid", "mono", "test")}
    )
    print(summary(config, prepare(config, args.overwrite)))


def add_prepare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path, help="folder for the binarised data")
    parser.add_argument("-s", "--source-lang", required=True, help="source language, the suffix of its files")
    parser.add_argument("-t", "--target-lang", required=True, help="target language, the suffix of its files")
    parser.add_argument("--train", nargs="+", default=[], metavar="PREFIX", help="raw files PREFIX.LANG, joined")
    parser.add_argument(
        "--train-sentences",
        nargs="+",
        default=[],
        metavar="PREFIX",
        help="raw files PREFIX.LANG of sentences that do not belong together, for training: every line is a document",
    )
    parser.add_argument("--valid", nargs="+", default=[], metavar="PREFIX", help="raw files PREFIX.LANG, joined")
    parser.add_argument(
        "--mono",
        nargs="+",
        default=[],
        metavar="PREFIX",
        help="documents in one language, PREFIX.LANG, which the model learns to restore from noise",
    )
    parser.add_argument(
        "--test",
        nargs="+",
        default=[],
        metavar="PREFIX",
        help="raw files PREFIX.LANG, each its own split: test, test1, ...; one without a target file has no reference",
    )
    parser.add_argument("--tokenizer", choices=TOKENIZERS, help="word tokenisation (default: moses)")
    parser.add_argument("--bpe", choices=sorted(SUBWORDS), help="subword algorithm (default: subword-nmt)")
    parser.add_argument("--size", type=int, help="BPE merges or sentencepiece vocabulary (default: 32000)")
    parser.add_argument(
        "--resolutions",
        choices=RESOLUTIONS,
        help="training examples: whole documents, sentences, or chunks of every length (default: mixture)",
    )
    parser.add_argument("--limit", type=int, help="maximum number of tokens per example (default: 1024)")
    parser.add_argument(
        "--max-lines", type=int, help="maximum number of sentences per example, such as 3 (default: no limit)"
    )
    parser.add_argument(
        "--memory-examples",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of the training examples, such as 0.3, that start with similar lines of other documents in their "
        "file, as translations with a memory do (default: none)",
    )
    parser.add_argument(
        "--memory-tokens", type=int, default=256, help="maximum number of tokens of these lines (default: %(default)s)"
    )
    parser.add_argument(
        "--separator",
        help="token between sentences, used to align lines (default: <sep>); '' for none, as in the paper",
    )
    parser.add_argument(
        "--joined-dictionary",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="one subword model and dictionary for both languages, or one for each, as needed for different scripts "
        "(default: one for both)",
    )
    parser.add_argument("--drop-empty", action="store_true", help="drop pairs with an empty side, and count them")
    parser.add_argument(
        "--clean", action="store_true", help="replace tabs, Windows line endings and control characters with spaces"
    )
    parser.add_argument(
        "--reuse", type=Path, metavar="DATA", help="reuse the subwords, dictionary and settings of prepared data"
    )
    parser.add_argument("--text", type=Path, metavar="FOLDER", help="cache encoded sentences for other preparations")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    add_engine(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace data prepared with other inputs or options")
    parser.epilog = (
        "Example: lasformer prepare data-bin/mine -s en -t de --train raw/train --valid raw/dev --test raw/test"
    )


def run_generate(args: argparse.Namespace) -> None:
    from fairseq_lasformer.files import beside
    from fairseq_lasformer.jobs.collecting import summary
    from fairseq_lasformer.jobs.generate import generate

    options = fairseqs_options(args)
    if args.overlap is not None:
        options += ["--overlap", str(args.overlap)]
    for name, value in decoding_of(args).items():
        options += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    if args.glossary is not None:
        options += ["--glossary", str(args.glossary.resolve())]
    if args.memory is not None:
        options += ["--memory", str(args.memory.resolve()), "--memory-tokens", str(args.memory_tokens)]
    number, shards = (None, args.shards) if args.shard is None else shard_of(args.shard)
    work: dict[str, Any] = {"shards": shards, "jobs": args.jobs, "only": number, "engine": args.engine}
    work |= {"report": args.report, "keep_doubtful": args.keep_doubtful == "yes"}
    done = generate(args.data, args.checkpoint, args.out, args.split, options=options, form=args.layout, **work)
    if done is None:
        print(f"{args.out}: shard {args.shard} is done; the last one to finish writes the documents")
    else:
        print(f"{args.out}: {summary(done, args.layout)}")
        if args.keep_doubtful == "no":
            apart = beside(args.out, ".doubtful.tsv")
            print(f"{apart}: {len(done.doubts)} doubtful lines, which the other files leave out")


def add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="prepared folder")
    parser.add_argument("checkpoint", type=Path, help="such as checkpoints/mine/checkpoint_best.pt")
    parser.add_argument("out", type=Path, help="file for the translated documents")
    parser.add_argument("--split", default="test", help="test, test1, ... or valid (default: %(default)s)")
    parser.add_argument(
        "--layout",
        choices=FORMS,
        default=FORMS[0],
        help="lines: one document per line, tabs between its sentences; raw: one sentence per line, like the input "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--shards",
        type=int,
        help="number of parts to divide the work into; a killed run repeats at most JOBS of them (default: 16, or with "
        "Ray one per 2,000 lines)",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="translate only the Ith of N shards; the last one to finish writes the documents",
    )
    parser.add_argument("--jobs", type=int, default=1, help="shards translated in parallel (default: %(default)s)")
    add_engine(parser)
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write a table with a row per shard: lines, repaired, doubtful, loops, length ratio, duplicates, seconds",
    )
    parser.add_argument(
        "--keep-doubtful",
        choices=("yes", "no"),
        default="yes",
        help="no: write doubtful lines to OUT.doubtful.tsv instead, and the source of the others to OUT.source "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--overlap",
        type=int,
        metavar="SENTENCES",
        help="sentences that each part of a document beyond the limit repeats from the previous part as context "
        "(default: 3)",
    )
    parser.add_argument(
        "--glossary", type=Path, metavar="FILE", help="required translations: source term, tab, target term"
    )
    add_memory_options(parser, exact=False)
    parser.add_argument("--format", dest="layout", choices=FORMS, action=Renamed, now="--layout")
    add_device(parser)
    add_beam(parser)
    add_max_tokens(parser, None)
    add_decoding(parser)
    parser.epilog = "After -- : further options of fairseq-generate, such as --lenpen 0.8."


def run_shortlist(args: argparse.Namespace) -> None:
    from fairseq_lasformer.data.shortlist import FILE, build

    print(build(args.data, args.data / FILE if args.out is None else args.out, args.best, args.frequent))


def add_shortlist(parser: argparse.ArgumentParser) -> None:
    from fairseq_lasformer.data.shortlist import BEST, FILE, FREQUENT

    parser.add_argument("data", type=Path, help="prepared folder with training data")
    parser.add_argument("-o", "--out", type=Path, help=f"file to write (default: {FILE} in that folder)")
    parser.add_argument("--best", type=int, default=BEST, help="translations per source word (default: %(default)s)")
    parser.add_argument("--frequent", type=int, default=FREQUENT, help="words on every list (default: %(default)s)")
    parser.epilog = f"Example: lasformer translate checkpoints/mine in.txt --shortlist data-bin/mine/{FILE}"


def run_options(args: argparse.Namespace) -> None:
    from fairseq_lasformer.analysis.param_count import options

    print(options(args.pattern))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pattern", nargs="?", default="", help="list only options that contain this, e.g. sparsity")
