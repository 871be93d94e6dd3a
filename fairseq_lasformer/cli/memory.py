"""Subcommand ``memory``: builds translation memories, and looks up sentences in them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from fairseq_lasformer.errors import InputError


def add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("build", "find"), help="add the pairs of files, or look up sentences")
    parser.add_argument("memory", type=Path, metavar="MEMORY", help="the file of the memory, such as mine.tm")
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE|SENTENCE",
        help="build: .tmx, .tsv (source, tab, target), .po, .xlf, or PREFIX for PREFIX.SOURCE and PREFIX.TARGET; find: "
        "sentences (default: one per line of standard input)",
    )
    parser.add_argument("-s", "--source-lang", help="source language of a new memory")
    parser.add_argument("-t", "--target-lang", help="target language of a new memory")
    parser.add_argument(
        "--unreviewed", action="store_true", help="also take fuzzy and unreviewed units of .po and .xlf"
    )
    parser.add_argument("--matches", type=int, default=3, help="find: maximum per sentence (default: %(default)s)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    parser.epilog = (
        "Example: lasformer memory build mine.tm old.tmx -s en -t de, then lasformer translate … --memory mine.tm"
    )


def run_memory(args: argparse.Namespace) -> None:
    if args.action == "build":
        _build(args)
    else:
        _find(args)


def _build(args: argparse.Namespace) -> None:
    from fairseq_lasformer.translation_memory.building import build

    if not args.files:
        raise InputError("memory build: name the files whose pairs to add")
    if bool(args.source_lang) != bool(args.target_lang):
        raise InputError("memory build: name both languages, with -s and -t, or neither if the memory exists")
    languages = (args.source_lang, args.target_lang) if args.source_lang else None
    with tqdm(desc="reading", unit=" pairs", disable=args.quiet) as bar:
        found = build(args.memory, [Path(file) for file in args.files], languages, args.unreviewed, bar.update)
    if not args.quiet:
        print(f"{args.memory}: {found.summary()}", file=sys.stderr)


def _find(args: argparse.Namespace) -> None:
    """Print a row for each match: similarity, source, translation; an empty row after each sentence."""
    from fairseq_lasformer.translation_memory.matching import Matcher
    from fairseq_lasformer.translation_memory.store import MemoryStore

    if args.matches < 1:
        raise InputError("--matches: at least 1")
    matcher = Matcher(MemoryStore(args.memory))
    for sentence in args.files or (line.rstrip("\n") for line in sys.stdin):
        matches = matcher.find(sentence, args.matches)
        if not matches and not args.quiet:
            print(f"no match: {sentence}", file=sys.stderr)
        for match in matches:
            cells = (f"{match.similarity:.0%}", match.source, match.target)
            print("\t".join(cell.replace("\t", " ") for cell in cells))
        print(flush=True)
