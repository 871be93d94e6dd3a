"""Subcommand ``memory``: builds translation memories, looks up sentences in them, and lists their terms."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import NOTHING, OWN, TEXT, argument, option
from fairseq_lasformer.base.shared_options import language
from fairseq_lasformer.base.terminal import progress_bar


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A translation memory."""

    action: str = argument(
        "add the pairs of files, look up sentences, or print the terms", choices=("build", "find", "terms")
    )
    memory: Path = argument("the file of the memory, such as mine.tm", metavar="MEMORY", writes=OWN, changes=TEXT)
    files: tuple[str, ...] = argument(
        "build: .tmx, .tsv (source, tab, target), .po, .xlf, or PREFIX for PREFIX.SOURCE and PREFIX.TARGET; find: "
        "sentences (default: one per line of standard input)",
        (),
        metavar="FILE|SENTENCE",
        place=True,
    )
    source_lang: str | None = language("source", " of a new memory", "")
    target_lang: str | None = language("target", " of a new memory", "")
    unreviewed: bool = option(False, "also take fuzzy and unreviewed units of .po and .xlf")
    least: int = option(5, "terms: minimum number of pairs with a term", minimum=1)
    quiet: bool = option(False, "no progress bar, no summary", changes=NOTHING)
    epilog = "Example: lasformer memory build mine.tm old.tmx -s en -t de, then lasformer translate … --memory mine.tm"


def run_memory(args: Memory) -> None:
    {"build": _build, "find": _find, "terms": _terms}[args.action](args)


def _build(args: Memory) -> None:
    from fairseq_lasformer.apps.memory.building import build

    if not args.files:
        raise InputError("memory build: name the files whose pairs to add")
    source, target = args.source_lang, args.target_lang
    if bool(source) != bool(target):
        raise InputError("memory build: name both languages, with -s and -t, or neither if the memory exists")
    languages = (source, target) if source and target else None
    with progress_bar(desc="reading", unit=" pairs", disable=args.quiet) as bar:
        added = build(args.memory, [Path(file) for file in args.files], languages, args.unreviewed, bar.update)
    if not args.quiet:
        print(f"{args.memory}: {added.summary()}", file=sys.stderr)


def _find(args: Memory) -> None:
    """Print a row for each match: similarity, source, translation; an empty row after each sentence."""
    from fairseq_lasformer.translation_memory.matching import Matcher
    from fairseq_lasformer.translation_memory.remembering import MATCHES
    from fairseq_lasformer.translation_memory.store import MemoryStore

    matcher = Matcher(MemoryStore(args.memory))
    for sentence in args.files or (line.rstrip("\n") for line in sys.stdin):
        matches = matcher.find(sentence, MATCHES)
        if not matches and not args.quiet:
            print(f"no match: {sentence}", file=sys.stderr)
        for match in matches:
            cells = (f"{match.similarity:.0%}", match.source, match.target)
            print("\t".join(cell.replace("\t", " ") for cell in cells))
        print(flush=True)


def _terms(args: Memory) -> None:
    """Print a row for each term: source, translation; as a glossary has them."""
    from fairseq_lasformer.translation_memory.remembering import terms_of
    from fairseq_lasformer.translation_memory.store import MemoryStore

    if args.files:
        raise InputError(f"{args.files[0]}: memory terms takes a memory alone")
    terms = terms_of(MemoryStore(args.memory), args.least)
    for source, target in terms:
        print(f"{source}\t{target}")
    if not args.quiet:
        print(f"{args.memory}: {len(terms)} terms", file=sys.stderr)
