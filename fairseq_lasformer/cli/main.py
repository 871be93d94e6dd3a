"""The ``lasformer`` command: one subcommand per task. On bad input, it prints one line and exits with code 1."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

from fairseq_lasformer.cli import DEFAULT_SAMPLES
from fairseq_lasformer.cli.outputs import NEW, OWN, PAGE, SCORES, TABLE, add_overwrite, check_outputs
from fairseq_lasformer.errors import INTERRUPTED, InputError, Interrupted, missing
from fairseq_lasformer.threads import wait_briefly
from fairseq_lasformer.version import __version__


class Command(NamedTuple):
    """One subcommand.

    Attributes:
        help: its help text.
        module: the module that declares its options and does the work.
        writes: options that name what it writes, and what may stand there before; see :mod:`cli.outputs`.
    """

    help: str
    module: str
    writes: Mapping[str, str] = {"out": OWN}


COMMANDS = {
    "corpus": Command("convert a public corpus to raw documents", "data"),
    "align": Command("make a corpus of documents from two folders of files, one in each language", "data"),
    "prepare": Command("convert raw documents to binarised data", "data"),
    "train": Command("train on prepared data", "experiments"),
    "upcycle": Command("turn a dense model into one that selects, in a few hundred updates", "experiments"),
    "back-translate": Command("train on back-translated documents of the target language", "experiments"),
    "distil": Command("train a student on a teacher's translations of the training text", "experiments"),
    "run": Command("make a model and its report from raw documents, as configured in a file", "experiments"),
    "translate": Command(
        "translate files, folders or standard input, in any known format", "translate", {"out": OWN, "report": TABLE}
    ),
    "verify": Command("repeat the translation of a receipt and compare the bytes", "verify"),
    "update": Command("update a translation: translate what has changed in its source", "update"),
    "memory": Command("build a translation memory, or look up sentences in one", "memory", {"memory": OWN}),
    "serve": Command("run a translation server with a web page", "serve"),
    "generate": Command("translate a prepared split, whole documents", "data", {"out": OWN, "report": TABLE}),
    "score": Command("d-BLEU, s-BLEU and chrF of translated documents", "scores", {"json": SCORES, "windows": NEW}),
    "terms": Command(
        "find names and their translations in a parallel text, for scores of terms", "scores", {"out": NEW}
    ),
    "contrast": Command(
        "score a contrastive test set (ContraPro's format) with a checkpoint", "evaluation", {"json": SCORES}
    ),
    "context": Command("measure how much the context is worth to a model, in bits", "evaluation", {"json": SCORES}),
    "reproduce": Command("run a row of the paper's main table: corpus, training, translation, scores", "experiments"),
    "ablate": Command("run one of the paper's ablation tables and print it", "experiments"),
    "report": Command("write a page about runs: curves, scores, cost, attention", "evaluation", {"out": PAGE}),
    "cost": Command("compute the cost of attention relative to the dense Transformer", "evaluation", {"json": SCORES}),
    "shortlist": Command("list the words that may translate each word, for faster translation", "data", {"out": NEW}),
    "options": Command("list the options of model, criterion and task for fairseq-train", "data"),
    "params": Command("count an architecture's parameters, by part", "data"),
    "prune": Command("remove groups of layers, or heads, from a checkpoint", "checkpoints", {"out": NEW}),
    "convert": Command("convert a checkpoint of fairseq's transformer to lasformer_dense", "checkpoints", {"out": NEW}),
    "import": Command(
        "convert a Hugging Face model (OPUS-MT, NLLB, ...) to one that every command takes", "checkpoints"
    ),
    "export": Command("write a model at kappa 1 for CTranslate2", "checkpoints"),
    "pack": Command("write a model as a small folder to give away: 8 bits, dictionaries, subwords", "checkpoints"),
    "average": Command("average checkpoints, with kappa from the last", "checkpoints", {"out": NEW}),
}

TAKING_MORE = ("train", "upcycle", "generate", "ablate", "params")


def _with_numbers(words: list[str]) -> list[str]:
    """Make the number of ``--bootstrap`` explicit: argparse would mistake a file name after it for the number."""
    following = [*words[1:], ""]
    return [
        f"{word}={DEFAULT_SAMPLES}" if word == "--bootstrap" and not after.isdecimal() else word
        for word, after in zip(words, following)
    ]


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand and return the exit code."""
    wait_briefly()
    logging.basicConfig(level=logging.WARNING)  # otherwise, importing fairseq shows the log lines of all libraries
    parser = argparse.ArgumentParser(prog="lasformer", description="Document-level translation with Lasformer.")
    parser.add_argument("--version", action="version", version=f"fairseq_lasformer {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    words = list(sys.argv[1:] if argv is None else argv)
    for name, (text, module, writes) in COMMANDS.items():
        title = text if text.startswith("d-BLEU") else text[0].upper() + text[1:]
        sub = commands.add_parser(name, help=text, description=title + ".")
        if name in words:  # the others' options are not needed, and their modules take time to import
            work = import_module(f"fairseq_lasformer.cli.{module}")
            function = name.replace("-", "_")
            getattr(work, f"add_{function}")(sub)
            add_overwrite(sub, writes)
            sub.set_defaults(run=getattr(work, f"run_{function}"))
    # argparse cannot separate the arguments after -- from both options and positionals
    end = words.index("--") if "--" in words else len(words)
    args, unknown = parser.parse_known_args(_with_numbers(words[:end]))
    late, default = getattr(args, "late", ("", None))
    if late and unknown and not any(word.startswith("-") for word in unknown):
        # argparse treats an optional argument after options as unknown
        before = [] if getattr(args, late) == default else getattr(args, late)
        if isinstance(default, list):
            setattr(args, late, [*before, *unknown])
            unknown = []
        elif not before and len(unknown) == 1:
            setattr(args, late, unknown.pop())
    if unknown:
        hint = " (further options of fairseq go after --)" if args.command in TAKING_MORE else ""
        if args.command == "translate" and {"--to", "--target", "-t"} & set(unknown):
            hint = " (a model translates from one language into another; lasformer serve lists its models' languages)"
        parser.error(f"{args.command}: unrecognised: {' '.join(unknown)}{hint}; see lasformer {args.command} --help")
    args.options = words[end + 1 :]
    if args.options and args.command not in TAKING_MORE:
        parser.error(f"{args.command} takes nothing after --")
    try:
        check_outputs(args, COMMANDS[args.command].writes)
        args.run(args)
    except Interrupted as e:
        print(e, file=sys.stderr)
        return INTERRUPTED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as e:
        print(f"error: {missing(e)}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    return 0


def run() -> None:
    """Run the console script, and exit with its code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
