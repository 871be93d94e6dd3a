"""Subcommand ``align``: a corpus from two folders of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import OWN, argument, option
from fairseq_lasformer.base.shared_options import language


@dataclass(frozen=True, kw_only=True)
class Align:
    """Two folders of documents."""

    source_folder: Path = argument("files in the source language, in any format of translate")
    target_folder: Path = argument("the same files in the target language")
    source_lang: str = language("source", ", such as en")
    target_lang: str = language("target", ", such as de")
    out: Path = option(help="folder for train, dev and test in raw form", short="-o", writes=OWN)
    rename: str = option(
        "",
        "how the names of partners differ: this text in the source file's, that in the target file's, such as "
        ".en.=.de. (default: they are equal)",
        metavar="SOURCE=TARGET",
    )
    split: str = option(
        "0.02,0.04",
        "shares of the documents for development and test, chosen by a hash of their names; none of their lines stays "
        "in train",
        metavar="DEV,TEST",
    )
    encoding: str | None = option(None, "of text files (default: as each says, else UTF-8 or a guess)")
    epilog = "Example: lasformer align site/en site/de -s en -t de -o raw/mine"


def run_align(args: Align) -> None:
    from fairseq_lasformer.apps.pairing.align import align

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
