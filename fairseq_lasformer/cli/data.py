"""Subcommands for corpora, their preparation, and the translation of what is prepared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import NEW, NOTHING, OWN, SPEED, argument, option, part
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.base.shared_options import (
    Decoding,
    Engine,
    FairseqDecoding,
    Overwrite,
    OverwriteOthers,
    Remembering,
    glossary,
    jobs,
    overlap,
    shard_of,
)
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.data.shortlist import FILE
from fairseq_lasformer.text.hypotheses import FORMS


def _corpora() -> tuple[str, ...]:
    from fairseq_lasformer.data.corpora.recipes import CORPORA, ELSEWHERE

    return (*CORPORA, *ELSEWHERE)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A public corpus."""

    name: str = argument(choices=_corpora)
    out: Path = argument("folder for train, dev and test in raw form", writes=OWN)
    files: Path = option(Path("downloads"), "folder of the original files")
    trust_first_download: bool = option(
        False, "download files that have no published checksum; their hashes are recorded, and checked from then on"
    )
    languages: str | None = option(None, "of libreoffice-help, which has 35 (default: en,de)", metavar="SOURCE,TARGET")


def run_corpus(args: Corpus) -> None:
    from fairseq_lasformer.data.corpora.recipes import build

    languages = None if args.languages is None else tuple(args.languages.split(","))
    if languages is not None and (len(languages) != 2 or not all(languages)):
        raise InputError("--languages: expected two codes, such as en,de")
    for line in build(args.name, args.files, args.out, args.trust_first_download, languages):
        print(line)


@dataclass(frozen=True, kw_only=True)
class Prepare(PrepareConfig):
    """A preparation."""

    overwrite: bool = option(False, "replace data prepared with other inputs or options", changes=NOTHING)
    epilog = "Example: lasformer prepare data-bin/mine -s en -t de --train raw/train --valid raw/dev --test raw/test"


def run_prepare(args: Prepare) -> None:
    from fairseq_lasformer.data.prepare import prepare, summary

    config = part(PrepareConfig, args)
    print(summary(config, prepare(config, args.overwrite)))


@dataclass(frozen=True, kw_only=True)
class Generate(FairseqDecoding, Decoding, Remembering, Engine, OverwriteOthers):
    """A translation of a prepared split."""

    data: Path = argument("prepared folder", apart=True)
    checkpoint: Path = argument("such as checkpoints/mine/checkpoint_best.pt", apart=True)
    out: Path = argument("file for the translated documents", writes=OWN)
    split: str = option("test", "test, test1, ... or valid")
    layout: str = option(
        FORMS[0],
        "lines: one document per line, tabs between its sentences; raw: one sentence per line, like the input",
        choices=FORMS,
    )
    shards: int | None = option(
        None,
        "number of parts to divide the work into; a killed run repeats at most JOBS of them (default: 16, or with Ray "
        "one per 2,000 lines)",
        minimum=1,
        changes=SPEED,
    )
    shard: str | None = option(
        None,
        "translate only the Ith of N shards; the last one to finish writes the documents",
        metavar="I/N",
        changes=SPEED,
    )
    jobs: int = jobs("shards translated in parallel")
    overlap: int | None = overlap(
        "sentences around each part of a document beyond the limit that are read with it (default: 3)"
    )
    glossary: Path | None = glossary()


def run_generate(args: Generate) -> None:
    from fairseq_lasformer.jobs.collecting import summary
    from fairseq_lasformer.jobs.generate import generate

    options = args.fairseqs_options()
    if args.overlap is not None:
        options += ["--overlap", str(args.overlap)]
    for name, value in args.decoding().items():
        options += [f"--{name.replace('_', '-')}", *([] if value is True else [value])]
    if args.glossary is not None:
        options += ["--glossary", str(args.glossary.resolve())]
    if args.memory is not None:
        options += ["--memory", str(args.memory.resolve())]
    number, shards = (None, args.shards) if args.shard is None else shard_of(args.shard)
    work: Json = {"shards": shards, "jobs": args.jobs, "only": number, "engine": args.engine}
    done = generate(args.data, args.checkpoint, args.out, args.split, options=options, form=args.layout, **work)
    if done is None:
        print(f"{args.out}: shard {args.shard} is done; the last one to finish writes the documents")
    else:
        print(f"{args.out}: {summary(done, args.layout)}")


@dataclass(frozen=True, kw_only=True)
class Shortlist(Overwrite):
    """A list of the words that may translate each word."""

    data: Path = argument("prepared folder with training data")
    out: Path | None = option(None, f"file to write (default: {FILE} in that folder)", short="-o", writes=NEW)
    epilog = f"Example: lasformer translate checkpoints/mine in.txt --shortlist data-bin/mine/{FILE}"


def run_shortlist(args: Shortlist) -> None:
    from fairseq_lasformer.data.shortlist import build

    print(build(args.data, args.data / FILE if args.out is None else args.out))
