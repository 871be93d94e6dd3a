"""Subcommands that train: on own data, for ablation tables, for rows of the paper's main table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fairseq_lasformer.cli import Renamed, add_beam, add_device, add_engine, add_max_tokens, fairseqs_options
from fairseq_lasformer.errors import InputError


def run_ablate(args: argparse.Namespace) -> None:
    from fairseq_lasformer.evaluation.probe import read_probes
    from fairseq_lasformer.executors import InProcess
    from fairseq_lasformer.experiments import ablation
    from fairseq_lasformer.experiments.training import read_config
    from fairseq_lasformer.text.documents import read_documents

    values = args.values.split(",") if args.values else ()
    rows = ablation.rows(args.table, read_config(args.config), values, args.modules.split(","))
    folder = args.out / args.config.stem / f"table{args.table}"
    chosen = [row for row in rows if args.only in (None, row.label)]
    if not chosen:
        raise InputError(f"--only {args.only}: table {args.table} has {', '.join(r.label for r in rows)}")
    options = fairseqs_options(args)
    probes = tuple(read_probes(args.probe)) if args.probe else ()
    common = ablation.Ablation(args.config, read_documents(args.reference), tuple(options), tuple(args.set), probes)
    if args.submit is None and not args.show:
        for _ in InProcess().map(ablation.AblationRun(common, folder), chosen):
            pass
    elif not args.show:
        for row in (row for row in chosen if ablation.finished(common, row, folder / row.folder) is None):
            command = [str(Path(sys.executable).with_name("lasformer")), "ablate", str(args.config.resolve())]
            command += ["--table", str(args.table), "--only", row.label, "--reference", str(args.reference.resolve())]
            command += ["--out", str(args.out.resolve()), "--length", str(args.length)]
            command += ["--modules", args.modules] if args.table == 1 else []
            command += ["--values", args.values] if args.values else []
            command += ["--probe", str(args.probe.resolve())] if args.probe else []
            command += [o for override in args.set for o in ("--set", override)]
            ablation.submit(args.submit, [*command, *(["--", *options] if options else [])])
    print(ablation.text(common, args.table, rows, folder, args.length))


def add_ablate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="configuration that the runs vary, configs/NAME.yaml")
    parser.add_argument("--table", type=int, required=True, help="table of the paper: 1, 3, 4, 5, 6 or 7")
    parser.add_argument("--reference", type=Path, required=True, help="test reference, raw form")
    parser.add_argument("--out", type=Path, default=Path("runs/ablate"), help="default: %(default)s")
    parser.add_argument(
        "--values", help="values to try in tables 5, 6 and 7, separated by commas; in table 1, keys per query (80)"
    )
    parser.add_argument(
        "--modules",
        default="encoder,decoder,cross",
        help="in table 1, modules that the other ways to attend apply to; the rest attend fully (default: %(default)s)",
    )
    parser.add_argument(
        "--probe", type=Path, help="words that depend on their context (the demo's: raw/test.probe.jsonl)"
    )
    parser.add_argument("--only", metavar="LABEL", help="run only this row")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="Hydra override of all runs")
    parser.add_argument(
        "--length", type=int, default=1024, help="length in tokens at which the cost is shown (default: %(default)s)"
    )
    parser.add_argument("--submit", metavar="LAUNCHER", help="submit the runs with e.g. 'sbatch --gres=gpu:1 --wrap'")
    parser.add_argument("--show", action="store_true", help="print finished runs without running any")
    add_device(parser)
    add_beam(parser)
    add_max_tokens(parser, None)
    parser.epilog = "After -- : further options of fairseq-generate, such as --lenpen 0.8."


def run_train(args: argparse.Namespace) -> None:
    from fairseq_lasformer.experiments.settings import TrainOptions
    from fairseq_lasformer.experiments.train import chosen_options, train_own

    named = {name: getattr(args, name) for name in TrainOptions.__dataclass_fields__ if hasattr(args, name)}
    given = {name: value for name, value in named.items() if value is not None} | {"options": tuple(args.options)}
    options, note = chosen_options(args.data, args.out, given, args.small_corpus)
    if note:
        print(note, file=sys.stderr)
    print(train_own(args.data, args.out, options))


def add_train(parser: argparse.ArgumentParser) -> None:
    from fairseq_lasformer.experiments.settings import SMALL, SMALL_CORPUS, TrainOptions

    parser.add_argument("data", type=Path, help="folder made by lasformer prepare")
    parser.add_argument("out", type=Path, help="folder for checkpoints and train.log; a killed training resumes there")
    parser.add_argument(
        "--small-corpus",
        action=argparse.BooleanOptionalAction,
        help=f"defaults for a small corpus: {SMALL['arch']}, {SMALL['max_update']:,} updates of one batch, more "
        f"dropout (default: below {SMALL_CORPUS:,} sentences)",
    )
    parser.add_argument("--criterion", help="loss (default: the one that goes with the architecture)")
    parser.add_argument("--max-tokens", type=int, help="tokens per batch (default: 4096, or the longest example)")
    for name, kind, metavar, text in (
        ("arch", str, None, "architecture, see docs/training.md"),
        ("max_update", int, None, "number of updates"),
        ("patience", int, None, "end after this many validations without improvement; 0: never"),
        ("update_freq", int, None, "batches per update"),
        ("lr", float, None, "peak learning rate"),
        ("warmup", int, "UPDATES", "updates until the peak"),
        ("dropout", float, None, "probability"),
        ("word_dropout", float, None, "probability"),
        ("save_every", int, "UPDATES", "save and validate"),
        ("save_minutes", float, "MINUTES", "also save this often"),
        ("log_every", int, "UPDATES", "write a log line"),
        ("optimizer", str, None, "adam, or muon: muon for matrices and Adam for the rest"),
        ("subword_sampling", float, None, "draw new subwords in every epoch: 0.3 for sentencepiece, 0.1 for BPE"),
        ("ema_decay", float, None, "keep a moving average of the weights, such as 0.999"),
        ("precision", str, None, "fp16 (GPU), bf16 (linear layers on a CPU), fp32, or auto: the fastest"),
        (
            "tie_embeddings",
            str,
            None,
            "embeddings sharing a table: all, decoder (its input and output), none, or auto",
        ),
    ):
        option, usual = f"--{name.replace('_', '-')}", getattr(TrainOptions, name)
        parser.add_argument(option, type=kind, metavar=metavar, help=f"{text} (default: {usual})")
    parser.epilog = "After -- : further options of fairseq-train, such as --select-share 2; they take precedence."


def run_upcycle(args: argparse.Namespace) -> None:
    from fairseq_lasformer.conversion.dense_start import StartOptions
    from fairseq_lasformer.experiments.upcycle import UpcycleOptions, upcycle

    start = StartOptions(args.select_modules, args.select_dim, args.share_loss, args.select_groups, args.words)
    named = {name: getattr(args, name) for name in UpcycleOptions.__dataclass_fields__ if name != "options"}
    print(upcycle(args.checkpoint, args.data, args.out, start, UpcycleOptions(**named, options=tuple(args.options))))


def add_upcycle(parser: argparse.ArgumentParser) -> None:
    from fairseq_lasformer.conversion.dense_start import StartOptions
    from fairseq_lasformer.experiments.upcycle import UpcycleOptions

    parser.add_argument("checkpoint", type=Path, help="dense checkpoint, as written by lasformer import or convert")
    parser.add_argument("data", type=Path, help="prepared folder of documents, with the model's subwords (--reuse)")
    parser.add_argument("out", type=Path, help="folder for checkpoints and logs; a killed run resumes there")
    parser.add_argument("--words", type=Path, help="folder of the model's dictionaries (default: as in the checkpoint)")
    numbers: tuple[tuple[str, type, str], ...] = (
        ("select_modules", str, "attention modules that select"),
        ("select_dim", int, "width of the selectors"),
        ("share_loss", float, "share of the attention that layers may lose by sharing a selection"),
        (
            "select_groups",
            str,
            "lowest layers of groups, such as encoder.0,decoder.0 (default: by their attention)",
        ),
        ("updates", int, "updates of only the selectors, with kappa at 1"),
        ("budget", float, "bits per token that selecting may cost"),
        ("calibration", int, "documents on which the budget is measured"),
        ("documents", int, "prior updates of all weights on the documents, for sentence-level models"),
        ("lr", float, "peak learning rate of the selectors"),
        ("documents_lr", float, "peak learning rate of --documents"),
        ("max_tokens", int, "tokens per batch (default: 4096, or the longest example)"),
        ("update_freq", int, "batches per update"),
    )
    defaults = StartOptions()._asdict() | vars(UpcycleOptions())
    for name, kind, text in numbers:
        default = defaults[name.removeprefix("select_")]
        shown = text if default in (None, "") else f"{text} (default: %(default)s)"
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default, help=shown)
    parser.epilog = "After -- : further options of fairseq-train, such as --seed 2; they take precedence."


def _add_work(parser: argparse.ArgumentParser) -> None:
    """Declare the options for translating training text."""
    parser.add_argument("--beam", type=int, default=5, help="hypotheses per sentence (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="workers that translate (default: %(default)s)")
    add_engine(parser)


def _work(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of :func:`_add_work`."""
    return {"beam": args.beam, "jobs": args.jobs, "engine": args.engine}


def run_distil(args: argparse.Namespace) -> None:
    from fairseq_lasformer.experiments.distil import distil

    more = {"originals": args.originals, "word_level": args.word_level, **_work(args)}
    distil(args.teacher, args.data, args.student, **more)


def add_distil(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("teacher", type=Path, help="checkpoint or its folder")
    parser.add_argument("data", type=Path, help="prepared folder of the teacher; the student has its subwords")
    parser.add_argument("student", type=Path, help="configuration of lasformer run, whose train is translated")
    _add_work(parser)
    parser.add_argument("--originals", action="store_true", help="also train on the original translations")
    parser.add_argument("--word-level", action="store_true", help="also learn the teacher's most likely words")
    parser.epilog = "Everything is written to the student's out; a killed run resumes there."


def run_back_translate(args: argparse.Namespace) -> None:
    from fairseq_lasformer.experiments.back_translate import back_translate

    back_translate(args.model, args.data, args.config, **_work(args))


def add_back_translate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, help="checkpoint of the other direction, or its folder")
    parser.add_argument("data", type=Path, help="prepared folder of that model")
    parser.add_argument("config", type=Path, help="configuration of lasformer run, whose mono is translated")
    _add_work(parser)
    parser.epilog = "Everything is written to the configuration's out; a killed run resumes there."


def run_run(args: argparse.Namespace) -> None:
    from fairseq_lasformer.experiments.run_config import run_from_config

    run_from_config(args.config, args.only)


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="YAML file, such as examples/own_data.yaml")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="SYSTEM", help="only these systems, and those that they start from"
    )


def run_reproduce(args: argparse.Namespace) -> None:
    from fairseq_lasformer.experiments.paper import run_row
    from fairseq_lasformer.experiments.settings import RowOptions

    if args.gpus == 0 and args.device != "cpu":
        print("note: --gpus 0 is now called --device cpu", file=sys.stderr)
    args.gpus = 0 if args.device == "cpu" else args.gpus
    options = {name: getattr(args, name) for name in RowOptions.__dataclass_fields__ if name != "overrides"}
    text, _ = run_row(args.experiment, args.system, RowOptions(**options, overrides=tuple(args.set)))
    print(text)


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    from fairseq_lasformer.experiments.settings import RowOptions

    parser.add_argument(
        "experiment",
        help="ted_en-de, news_en-de, europarl_en-de, pdc_zh-en, ted_en-de_whole, tvsub_zh-en or help_en-de",
    )
    parser.add_argument(
        "system", help="transformer, lasformer, ...: configs/EXPERIMENT_SYSTEM.yaml, examples/tvsub.yaml"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="Hydra override of the training"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    for name, kind, text in (
        ("gpus", int, "number of GPUs"),
        ("precision", str, "fp16, bf16 or fp32, on GPUs"),
        ("average", int, "checkpoints averaged with the last one"),
        ("size", int, "BPE merges"),
        ("workers", int, "processes for the preparation"),
        ("files", Path, "folder of the corpus files"),
    ):
        parser.add_argument(
            f"--{name}", type=kind, default=getattr(RowOptions, name), help=f"{text} (default: %(default)s)"
        )
    parser.add_argument("--max-update", type=int, help="number of updates (default: the configuration's)")
    parser.add_argument("--limit", type=int, help="tokens per example (default: the configuration's)")
    add_beam(parser)
    add_max_tokens(parser, None)
    parser.add_argument("--trust-first-download", dest="trust", action="store_true", help="as for lasformer corpus")
    parser.add_argument("--trust", dest="trust", action=Renamed, now="--trust-first-download", value=True)
