"""A row of the paper's main table (arXiv 2309.14174, table 1): corpus, preparation and pipeline."""

import json
import sys
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import shared
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.data.corpora.recipes import CORPORA, build
from fairseq_lasformer.data.prepare import prepare, summary
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.evaluation import tcp
from fairseq_lasformer.evaluation.scores import table
from fairseq_lasformer.experiments.pipeline import ConfiguredTraining, Experiment
from fairseq_lasformer.experiments.run_config import RunConfig, run_from_config
from fairseq_lasformer.experiments.settings import PRECISIONS, RowOptions
from fairseq_lasformer.experiments.training import read_config, systems_of
from fairseq_lasformer.text.documents import read_documents

CORPUS_OF = {"help": "libreoffice-help"}
"""Corpora whose name differs from that of their experiments."""


def described(experiment: str) -> Path | None:
    """Return the configuration of ``lasformer run`` for an experiment not in the paper; None for the paper's own."""
    path = shared("examples") / f"{experiment.partition('_')[0]}.yaml"
    return path if path.is_file() and RunConfig.read(path).out == Path("runs") / experiment else None


def run_system(experiment: str, config: Path, system: str, options: RowOptions) -> tuple[str, Scores]:
    """Run one of the systems described by a configuration of ``lasformer run``, starting from the corpus.

    Args:
        config: see :func:`described`.
        options: ``files``, ``trust``; options set by the configuration must not be given.
    """
    for name in ("beam", "average", "max_update", "max_tokens", "limit", "size", "overrides"):
        if getattr(options, name) != getattr(RowOptions, name):
            what = "--set" if name == "overrides" else f"--{name.replace('_', '-')}"
            raise InputError(f"{what}: {experiment} is described by {config.name}; copy it, and use lasformer run")
    whole = RunConfig.read(config)
    corpus = experiment.partition("_")[0]
    raw = Path("data-bin") / experiment / "raw"
    languages = whole.source, whole.target
    for line in build(CORPUS_OF.get(corpus, corpus), options.files, raw, options.trust, languages):
        print(line, file=sys.stderr)
    run_from_config(config, (system,), tell=lambda text: print(text, file=sys.stderr))
    scores = json.loads((whole.out / system / "model/scores.json").read_text(encoding="utf-8"))["systems"]
    return table(scores), scores[system]


def run_row(experiment: str, system: str, options: RowOptions) -> tuple[str, Scores]:
    """Run one row, or resume it where it stopped.

    Writes to ``data-bin/EXPERIMENT`` and ``runs/EXPERIMENT/SYSTEM`` in the working directory.

    Args:
        experiment: ``ted_en-de``, ``news_en-de``, ``europarl_en-de``, ``pdc_zh-en`` or ``ted_en-de_whole``; or
            ``tvsub_zh-en`` or ``help_en-de``, see :func:`run_system`.
        system: ``lasformer``, or a system of ``configs/systems.yaml``.
        options: how to run the row.

    Returns:
        the table for a terminal, and the scores.
    """
    if (description := described(experiment)) is not None:
        return run_system(experiment, description, system, options)
    config = shared("configs") / f"{experiment}.yaml"
    corpus, pair = [*experiment.split("_"), ""][:2]
    if not config.is_file() or corpus not in CORPORA:
        raise InputError(f"{experiment}: there is no row of that name in configs/")
    if system not in (known := systems_of(config)):
        raise InputError(f"{system}: {experiment} has {', '.join(known)} (configs/systems.yaml)")
    if options.precision not in PRECISIONS:
        raise InputError(f"--precision {options.precision}: expected one of {', '.join(PRECISIONS)}")
    if options.gpus < 0:
        raise InputError(f"--gpus {options.gpus}: expected a number of GPUs, 0 for none")
    recipe, place = CORPORA[corpus], Path("data-bin") / experiment
    source, target = pair.split("-")
    raw, folder = place / "raw", Path("runs") / experiment / system
    for line in build(corpus, options.files, raw, options.trust):
        print(line, file=sys.stderr)
    preparation = PrepareConfig(
        *(source, target, (str(raw / "train"),), (str(raw / "dev"),), (str(raw / "test"),), place / "data"),
        tokenizer=recipe.tokenizer,
        bpe=recipe.bpe,
        size=options.size,
        limit=options.limit or int(read_config(config).task.max_source_positions),
        separator="",  # as in the paper
        drop_empty=True,
        workers=options.workers,
    )
    print(summary(preparation, prepare(preparation)), file=sys.stderr)
    run = Experiment(
        name=system,
        training=ConfiguredTraining(config, (*known[system], *options.training(system))),
        data=place / "data",
        folder=folder,
        generation=options.generation(),
        averaged=options.average,
    )
    settings = [options.max_update, options.gpus, options.precision, options.overrides]
    progress = Progress(folder, key_of(*settings))
    progress.open(f"{folder}: contains a run with other settings; remove it")
    run.run(progress, tell=True)
    annotations = None
    if recipe.annotations is not None:
        candidates, tokens = recipe.annotations
        annotations = options.files / candidates, options.files / tokens
    scores = run.score(read_documents(raw / f"test.{target}"), annotations)
    lines = [table({system: scores})] + ([tcp.line(system, scores["tcp"])] if annotations else [])
    return "\n".join(lines), scores
