"""The command ``lasformer``: one subcommand a job. Each prints one line and exits with 1 on bad input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import fairseq_lasformer
from fairseq_lasformer.commands import data, evaluation
from fairseq_lasformer.commands.evaluation import DEFAULT_SAMPLES
from fairseq_lasformer.errors import InputError

COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], None]]] = {
    "corpus": ("one of the paper's corpora to raw documents", data.add_corpus, data.run_corpus),
    "prepare": ("raw documents to binarised data", data.add_prepare, data.run_prepare),
    "generate": ("translate a prepared split, whole documents", data.add_generate, data.run_generate),
    "score": ("d-BLEU, s-BLEU and chrF of translated documents", evaluation.add_score, evaluation.run_score),
    "contrast": (
        "score a contrastive set (ContraPro's form) with a checkpoint",
        evaluation.add_contrast,
        evaluation.run_contrast,
    ),
    "ablate": ("the runs of one of the paper's tables, and the table", evaluation.add_ablate, evaluation.run_ablate),
    "report": ("one page on runs: curves, scores, cost, attention", evaluation.add_report, evaluation.run_report),
    "cost": ("attention cost against the dense Transformer", evaluation.add_cost, evaluation.run_cost),
    "options": ("what fairseq-train can be told of model, criterion and task", data.add_options, data.run_options),
    "params": ("an architecture's parameters, by part", data.add_params, data.run_params),
    "average": ("average checkpoints, kappa from the last", data.add_average, data.run_average),
}


TAKING_MORE = ("generate", "ablate", "params")


def _with_numbers(words: list[str]) -> list[str]:
    """``--bootstrap`` with its number, wherever it stands: argparse would take the file behind it for one."""
    following = [*words[1:], ""]
    return [
        f"{word}={DEFAULT_SAMPLES}" if word == "--bootstrap" and not after.isdecimal() else word
        for word, after in zip(words, following)
    ]


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="lasformer", description="Document-level translation with Lasformer.")
    parser.add_argument("--version", action="version", version=f"fairseq_lasformer {fairseq_lasformer.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, add, run) in COMMANDS.items():
        title = text if text.startswith("d-BLEU") else text[0].upper() + text[1:]
        sub = commands.add_parser(name, help=text, description=title + ".")
        add(sub)
        sub.set_defaults(run=run)
    words = list(sys.argv[1:] if argv is None else argv)
    # argparse cannot put what follows -- behind options and positionals alike
    end = words.index("--") if "--" in words else len(words)
    args, unknown = parser.parse_known_args(_with_numbers(words[:end]))
    if unknown:
        hint = " (options of fairseq-generate and of models go behind --)" if args.command in TAKING_MORE else ""
        parser.error(f"{args.command}: unrecognised: {' '.join(unknown)}{hint}; see lasformer {args.command} --help")
    args.options = words[end + 1 :]
    if args.options and args.command not in TAKING_MORE:
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
