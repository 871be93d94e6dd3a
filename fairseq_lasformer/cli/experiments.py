"""Subcommands that train: on own data, for ablation tables, for rows of the paper's main table."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import OWN, argument, given, option, options_of, part
from fairseq_lasformer.base.shared_options import Beam, Engine, FairseqDecoding, jobs
from fairseq_lasformer.experiments.settings import SMALL, SMALL_CORPUS, RowOptions, TrainOptions


@dataclass(frozen=True, kw_only=True)
class Ablate(FairseqDecoding):
    """One of the paper's ablation tables."""

    config: Path = argument("configuration that the runs vary, configs/NAME.yaml")
    table: int = option(help="table of the paper: 1, 3, 4, 5, 6 or 7")
    reference: Path = option(help="test reference, raw form")
    out: Path = option(Path("runs/ablate"), writes=OWN)
    values: str | None = option(
        None, "values to try in tables 5, 6 and 7, separated by commas; in table 1, keys per query (80)"
    )
    modules: str = option(
        "encoder,decoder,cross", "in table 1, modules that the other ways to attend apply to; the rest attend fully"
    )
    probe: Path | None = option(None, "words that depend on their context (the demo's: raw/test.probe.jsonl)")
    only: str | None = option(None, "run only this row", metavar="LABEL")
    set: tuple[str, ...] = option((), "Hydra override of all runs", append=True, metavar="KEY=VALUE")
    submit: str | None = option(None, "submit the runs with e.g. 'sbatch --gres=gpu:1 --wrap'", metavar="LAUNCHER")
    show: bool = option(False, "print finished runs without running any")


def run_ablate(args: Ablate) -> None:
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
    options = args.fairseqs_options()
    probes = tuple(read_probes(args.probe)) if args.probe else ()
    common = ablation.Ablation(args.config, read_documents(args.reference), tuple(options), tuple(args.set), probes)
    if args.show:
        chosen = []
    if args.submit is None:
        for _ in InProcess().map(ablation.AblationRun(common, folder), chosen):
            pass
    else:
        for row in (row for row in chosen if ablation.finished(common, row, folder / row.folder) is None):
            command = [str(Path(sys.executable).with_name("lasformer")), "ablate", str(args.config.resolve())]
            command += ["--table", str(args.table), "--only", row.label, "--reference", str(args.reference.resolve())]
            command += ["--out", str(args.out.resolve())]
            command += ["--modules", args.modules] if args.table == 1 else []
            command += ["--values", args.values] if args.values else []
            command += ["--probe", str(args.probe.resolve())] if args.probe else []
            command += [o for override in args.set for o in ("--set", override)]
            ablation.submit(args.submit, [*command, *(["--", *options] if options else [])])
    print(ablation.text(common, args.table, rows, folder))


@dataclass(frozen=True, kw_only=True)
class Train(TrainOptions):
    """A training."""

    data: Path = argument("folder made by lasformer prepare")
    out: Path = argument("folder for checkpoints and train.log; a killed training resumes there", writes=OWN)
    small_corpus: bool | None = option(
        None,
        f"defaults for a small corpus: {SMALL['arch']}, {SMALL['max_update']:,} updates of one batch, more dropout "
        f"(default: below {SMALL_CORPUS:,} sentences)",
    )
    given: tuple[str, ...] = given()


def run_train(args: Train) -> None:
    from fairseq_lasformer.experiments.train import chosen_options, train_own

    names = {one.name for one in options_of(TrainOptions)}
    named = {name: getattr(args, name) for name in (*args.given, "options") if name in names}
    options, note = chosen_options(args.data, args.out, named, args.small_corpus)
    if note:
        print(note, file=sys.stderr)
    print(train_own(args.data, args.out, options))


@dataclass(frozen=True, kw_only=True)
class TextTranslation(Beam, Engine):
    """Translation of training text."""

    jobs: int = jobs("workers that translate")


@dataclass(frozen=True, kw_only=True)
class Distil(TextTranslation):
    """A student of a teacher."""

    teacher: Path = argument("checkpoint or its folder")
    data: Path = argument("prepared folder of the teacher; the student has its subwords")
    student: Path = argument("configuration of lasformer run, whose train is translated")
    word_level: bool = option(False, "also learn the teacher's most likely words")
    epilog = "Everything is written to the student's out; a killed run resumes there."


def run_distil(args: Distil) -> None:
    from fairseq_lasformer.experiments.synthetic import distil

    work = vars(part(TextTranslation, args))
    distil(args.teacher, args.data, args.student, word_level=args.word_level, **work)


@dataclass(frozen=True, kw_only=True)
class BackTranslate(TextTranslation):
    """A training on back-translated documents."""

    model: Path = argument("checkpoint of the other direction, or its folder")
    data: Path = argument("prepared folder of that model")
    config: Path = argument("configuration of lasformer run, whose mono is translated")
    epilog = "Everything is written to the configuration's out; a killed run resumes there."


def run_back_translate(args: BackTranslate) -> None:
    from fairseq_lasformer.experiments.synthetic import back_translate

    back_translate(args.model, args.data, args.config, **vars(part(TextTranslation, args)))


@dataclass(frozen=True, kw_only=True)
class Run:
    """A configured run."""

    config: Path = argument("YAML file, such as examples/own_data.yaml")
    only: tuple[str, ...] = option((), "only these systems, and those that they start from", metavar="SYSTEM")


def run_run(args: Run) -> None:
    from fairseq_lasformer.experiments.run_config import run_from_config

    run_from_config(args.config, args.only)


@dataclass(frozen=True, kw_only=True)
class Reproduce(RowOptions):
    """A row of the paper's main table."""

    experiment: str = argument(
        "ted_en-de, news_en-de, europarl_en-de, pdc_zh-en, ted_en-de_whole, tvsub_zh-en or help_en-de"
    )
    system: str = argument("transformer, lasformer, ...: configs/systems.yaml, examples/tvsub.yaml")
    device: str = option("cuda", choices=("cuda", "cpu"))


def run_reproduce(args: Reproduce) -> None:
    from fairseq_lasformer.experiments.paper import run_row

    options = part(RowOptions, args)
    text, _ = run_row(args.experiment, args.system, replace(options, gpus=0) if args.device == "cpu" else options)
    print(text)
