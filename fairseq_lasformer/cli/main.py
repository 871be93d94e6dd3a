"""The ``lasformer`` command: one subcommand per task. On bad input, it prints one line and exits with code 1."""

from __future__ import annotations

import argparse
import difflib
import logging
import shutil
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from fairseq_lasformer.base.errors import INTERRUPTED, InputError, Interrupted, missing
from fairseq_lasformer.base.machine import wait_briefly
from fairseq_lasformer.base.options import SAMPLES, options_of
from fairseq_lasformer.base.terminal import clean
from fairseq_lasformer.cli.outputs import check_outputs
from fairseq_lasformer.cli.parser import HelpFormatter, declare, make
from fairseq_lasformer.version import __version__


class Command(NamedTuple):
    """One subcommand."""

    help: str  # its help text
    module: str  # the module with its options and `run_NAME`, which does the work

    def load(self, name: str) -> tuple[Callable[[Any], None], type]:
        """Return the function that does the work, and the class of its options."""
        work = import_module(f"fairseq_lasformer.{self.module}")
        run = getattr(work, f"run_{function_of(name)}")
        return run, getattr(work, str(run.__annotations__["args"]))


GROUPS = {
    "translate": {
        "translate": Command("translate files, folders or standard input, in any known format", "apps.files.translate"),
        "explain": Command("show which earlier line decided a word of a translation", "apps.files.explain"),
        "memory": Command(
            "build a translation memory, look up sentences in one, or list its terms", "apps.memory.commands"
        ),
        "serve": Command("run a translation server with a web page", "apps.server.commands"),
    },
    "train": {
        "align": Command(
            "make a corpus of documents from two folders of files, one in each language", "apps.pairing.commands"
        ),
        "prepare": Command("convert raw documents to binarised data", "cli.data"),
        "train": Command("train on prepared data", "cli.experiments"),
        "run": Command("make a model and its report from raw documents, as configured in a file", "cli.experiments"),
        "upcycle": Command(
            "turn a dense model into one that selects, in a few hundred updates", "apps.models.commands"
        ),
        "distil": Command("train a student on a teacher's translations of the training text", "cli.experiments"),
        "back-translate": Command("train on back-translated documents of the target language", "cli.experiments"),
        "shortlist": Command("list the words that may translate each word, for faster translation", "cli.data"),
    },
    "measure": {
        "generate": Command("translate a prepared split, whole documents", "cli.data"),
        "score": Command("d-BLEU, s-BLEU and chrF of translated documents", "cli.scores"),
        "score terms": Command(
            "find names and their translations in a parallel text, for scores of terms", "cli.scores"
        ),
        "score contrast": Command(
            "score a contrastive test set (ContraPro's format) with a checkpoint", "cli.evaluation"
        ),
        "score context": Command("measure how much the context is worth to a model, in bits", "cli.evaluation"),
        "report": Command("write a page about models: their translations of a text, and attention", "cli.evaluation"),
    },
    "models": {
        "info": Command(
            "parameters of a model, and the cost of its attention relative to the dense Transformer", "cli.evaluation"
        ),
        "import": Command(
            "convert a Hugging Face model (OPUS-MT, NLLB, ...) to one that every command takes", "apps.models.commands"
        ),
        "convert": Command("convert a checkpoint of fairseq's transformer to lasformer_dense", "apps.models.commands"),
        "average": Command("average checkpoints, with kappa from the last", "cli.checkpoints"),
        "prune": Command("remove groups of layers, or heads, from a checkpoint", "apps.models.commands"),
        "pack": Command(
            "write a model as a small folder to give away: 8 bits, dictionaries, subwords", "apps.models.commands"
        ),
    },
    "the paper": {
        "corpus": Command("convert a public corpus to raw documents", "cli.data"),
        "reproduce": Command(
            "run a row of the paper's main table: corpus, training, translation, scores", "cli.experiments"
        ),
        "ablate": Command("run one of the paper's ablation tables and print it", "cli.experiments"),
    },
    "this installation": {
        "doctor": Command("show what lasformer finds here: Python, torch, kernels, GPU, disk", "cli.doctor"),
    },
}

COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

GONE: dict[str, str] = {
    "update": "lasformer translate MODEL NEW --since OLD OLD_TRANSLATION -o OUT",
    "options": "configs/reference.yaml has every option of model, criterion and task, with its default",
    "export": "ct2-fairseq-converter of CTranslate2 reads dense checkpoints of fairseq; other models run only here",
}
"""Commands that no longer exist, and what to do instead; for one release."""

_TERMS = "lasformer memory terms (or score terms) writes a glossary, --glossary requires its terms"
_READ = "no model reads the pairs of a memory as context any more: --memory takes exact matches and terms"
_SAME = "use --reproducible, and compare by sha256sum (docs/scale.md)"
RETIRED: dict[str, dict[str, str]] = {
    "shortlist": dict.fromkeys(("--best", "--frequent"), "lists have 50 translations per word, and 200 frequent words"),
    "explain": {"--word": "search for it in what is printed"},
    "ablate": {"--length": "lasformer info CHECKPOINT --lengths N"},
    "distil": {"--originals": "name both in the train of a configuration"},
    "upcycle": {"--update-freq": "write it after --"},
    "memory": {"--matches": "there are three per sentence"},
    "prepare": dict.fromkeys(("--memory-examples", "--memory-tokens"), _READ),
    "translate": {
        **{"--receipt": _SAME, "--verify": _SAME, "--exact": "--memory takes what is found verbatim"},
        **{"--consistent": _TERMS, "--memory-tokens": _READ},
        "--no-look-ahead": "lines before a given one are chosen with it in mind",
    },
    "generate": {
        **dict.fromkeys(("--report", "--keep-doubtful"), "lasformer translate --report counts lines by file"),
        "--memory-tokens": _READ,
    },
    "serve": {"--exact": "--memory takes what is found verbatim", "--memory-tokens": _READ},
    "info": dict.fromkeys(
        ("--arch", "--words", "--target-words"), "name a checkpoint (lasformer train --max-update 1)"
    ),
    "report": {
        "--scores": "lasformer score prints them (--bootstrap compares); curves: --tensorboard-logdir",
        "--title": "it is the <title> of the page",
    },
    "score": {
        **dict.fromkeys(("--windows", "--comet", "--window-lines"), "use the metric's own package"),
        "--by-length": "score the short and the long documents apart",
    },
}
"""Options that no longer exist, by command, and what to do instead; for one release."""


def _with_numbers(words: list[str]) -> list[str]:
    """Make the number of ``--bootstrap`` explicit: argparse would mistake a file name after it for the number."""
    following = [*words[1:], ""]
    return [
        f"{word}={SAMPLES}" if word == "--bootstrap" and not after.isdecimal() else word
        for word, after in zip(words, following)
    ]


def function_of(name: str) -> str:
    """Return what the functions of a command are named after: ``add_NAME`` and ``run_NAME``."""
    return name.split()[-1].lstrip("-").replace("-", "_")


def overview() -> str:
    """Return all commands, by group."""
    width = max(map(len, COMMANDS)) + 4
    room = min(shutil.get_terminal_size().columns - 2, 100) - width
    lines = []
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, command in commands.items():
            first, *more = textwrap.wrap(command.help, max(20, room))
            lines += [f"  {name:<{width - 2}}{first}", *(" " * width + line for line in more)]
    return "\n".join(lines[1:])


def _named(words: list[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the arguments with the command as one word.

    An unknown command ends the process, with the name that is most like it.
    """
    name, *rest = words
    if name in GONE:
        parser.error(f"{name}: no longer exists; {GONE[name]}")
    if rest and f"{name} {rest[0]}" in COMMANDS:
        return [f"{name} {rest[0]}", *rest[1:]]
    if name not in COMMANDS and not name.startswith("-"):
        like = difflib.get_close_matches(name, [*COMMANDS, *(one.split()[-1] for one in COMMANDS)], 1)
        hint = f"; did you mean {_whole(like[0])}?" if like else ""
        parser.error(f"there is no command {name}{hint} (lasformer --help lists them)")
    return words


def _whole(name: str) -> str:
    """Return the whole name of a command: ``contrast`` is ``score contrast``."""
    return next(one for one in COMMANDS if one == name or one.split()[-1] == name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lasformer",
        usage="lasformer [-h] [--version] COMMAND ...",
        description="Document-level translation with Lasformer.",
        epilog=f"{overview()}\n\nlasformer COMMAND --help describes a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fairseq_lasformer {__version__}")
    return parser


def _options(name: str, cls: type, words: list[str]) -> Any:
    """Return the options of a command; what cannot be parsed ends the process."""
    text = COMMANDS[name].help
    title = text if text.startswith("d-BLEU") else text[0].upper() + text[1:]
    parser = argparse.ArgumentParser(prog=f"lasformer {name}", description=f"{title}.", formatter_class=HelpFormatter)
    declare(parser, cls)
    # argparse cannot separate the arguments after -- from both options and positionals
    end = words.index("--") if "--" in words else len(words)
    namespace, unknown = parser.parse_known_intermixed_args(_with_numbers(words[:end]))
    takes_more = any(one.spec.rest for one in options_of(cls))
    if unknown:
        hint = " (further options of fairseq go after --)" if takes_more else ""
        if name == "translate" and {"--to", "--target", "-t"} & set(unknown):
            hint = " (a model translates from one language into another; lasformer serve lists its models' languages)"
        said = [f"{word} no longer exists: {now}" for word, now in RETIRED.get(name, {}).items() if word in unknown]
        hint = f"; {'; '.join(said)}" if said else hint
        parser.error(f"{name}: unrecognised: {' '.join(unknown)}{hint}; see lasformer {name} --help")
    if words[end + 1 :] and not takes_more:
        parser.error(f"{name} takes nothing after --")
    return make(cls, vars(namespace), words[end + 1 :])


@clean()
def main(argv: list[str] | None = None) -> int:
    """Run a subcommand and return the exit code."""
    wait_briefly()
    logging.basicConfig(level=logging.WARNING)  # otherwise, importing fairseq shows the log lines of all libraries
    words = list(sys.argv[1:] if argv is None else argv)
    words = _named(words, _parser()) if words else words
    if not words or words[0] not in COMMANDS:
        _parser().parse_args(words)
        _parser().error("the following arguments are required: COMMAND")
    name = words[0]
    try:
        run, cls = COMMANDS[name].load(name)
        options = _options(name, cls, words[1:])
        check_outputs(options)
        run(options)
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
    except ImportError as e:
        print(f"error: {' '.join(str(e).split())} (lasformer doctor shows what is installed)", file=sys.stderr)
        return 1
    except MemoryError:
        print("error: there is not enough memory", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    return 0


def run() -> None:
    """Run the console script, and exit with its code."""
    sys.exit(main())


if __name__ == "__main__":
    run()
