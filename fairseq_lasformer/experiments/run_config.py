"""From raw documents to a model and its report, as one configuration file describes it: ``lasformer run``."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from fairseq_lasformer.analysis.report import report
from fairseq_lasformer.data.documents import read_documents
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare import summary as prepared
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.evaluation.scores import table
from fairseq_lasformer.experiments.pipeline import Experiment, OptionsTraining
from fairseq_lasformer.experiments.settings import TrainOptions
from fairseq_lasformer.experiments.train import chosen_options
from fairseq_lasformer.plugin.config import PRESETS
from fairseq_lasformer.resume import Progress, key_of

_PREPARE = (
    *("tokenizer", "bpe", "size", "resolutions", "limit", "separator", "joined_dictionary", "max_lines"),
    *("drop_empty", "clean", "workers"),
)
_TRAIN = ("small_corpus", *(field.name for field in fields(TrainOptions) if field.name != "options"))
_TRANSLATE = {"beam": 5, "overlap": 3, "max_tokens": None, "shards": 4, "jobs": 1}
_TOP = (
    *("source", "target", "train", "valid", "test", "out", "prepare", "training", "fairseq", "translation"),
    "baseline",
)


@dataclass(frozen=True)
class RunConfig:
    """A whole run; the sections of its configuration file.

    Attributes:
        source, target: language codes, the ends of the names of the raw files.
        train, valid, test: prefixes of raw files, ``PREFIX.SOURCE`` and ``PREFIX.TARGET``; at most one for ``test``.
        out: folder of everything that is made.
        prepare: options of ``lasformer prepare``, with underscores.
        training: options of ``lasformer train``, with underscores.
        fairseq: further options of fairseq-train, as a list of words.
        translation: ``beam``, ``overlap``, ``max_tokens``, ``shards`` and ``jobs`` of ``lasformer generate``.
        baseline: also train a sentence-level model of the same size with plain attention, and compare.
    """

    source: str
    target: str
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    out: Path
    prepare: dict[str, Any]
    training: dict[str, Any]
    fairseq: tuple[str, ...]
    translation: dict[str, Any]
    baseline: bool = False

    @classmethod
    def read(cls, path: Path) -> RunConfig:
        """Reads a configuration file.

        Raises:
            InputError: it cannot be read, or something in it is unknown, missing or of the wrong kind.
        """
        try:
            given = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as e:
            raise InputError(f"{path}: cannot be read ({e.strerror})") from e
        except (yaml.YAMLError, UnicodeDecodeError) as e:
            raise InputError(f"{path}: not YAML ({' '.join(str(e).split())})") from e
        if not isinstance(given, dict):
            raise InputError(f"{path}: expected names and values; see examples/own_data.yaml")
        _known(path, "", given, _TOP)
        for name in ("source", "target", "train", "out"):
            if not given.get(name):
                raise InputError(f"{path}: {name} is missing")
        sections = {}
        for name, known in (("prepare", _PREPARE), ("training", _TRAIN), ("translation", tuple(_TRANSLATE))):
            section = given.get(name) or {}
            if not isinstance(section, dict):
                raise InputError(f"{path}: {name}: expected names and values")
            _known(path, f"{name}.", section, known)
            sections[name] = section
        words = given.get("fairseq") or []
        if not isinstance(words, list):
            raise InputError(f"{path}: fairseq: expected a list of words, such as [--clip-norm, 1.0]")
        prefixes = {name: _prefixes(path, name, given.get(name)) for name in ("train", "valid", "test")}
        if len(prefixes["test"]) > 1:
            raise InputError(f"{path}: test: expected a single prefix")
        return cls(
            str(given["source"]),
            str(given["target"]),
            prefixes["train"],
            prefixes["valid"],
            prefixes["test"],
            Path(str(given["out"])),
            sections["prepare"],
            sections["training"],
            tuple(map(str, words)),
            sections["translation"],
            _yes(path, "baseline", given.get("baseline", False)),
        )

    def options(self, data: Path, out: Path) -> tuple[TrainOptions, str]:
        """The options of the training, and what was chosen by the size of the corpus, in words."""
        given = {name: value for name, value in self.training.items() if name != "small_corpus"}
        return chosen_options(data, out, given | {"options": self.fairseq}, self.training.get("small_corpus"))


def _yes(path: Path, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{path}: {name}: expected true or false")
    return value


def _known(path: Path, where: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"; is {close[0]} meant?" if close else f"; known: {', '.join(known)}"
            raise InputError(f"{path}: {where}{name}: unknown{hint}")


def _prefixes(path: Path, name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise InputError(f"{path}: {name}: expected a prefix of raw files, or a list of them")


def run_from_config(config: Path, tell: Any = print) -> None:
    """Runs what a configuration file describes, or resumes it where it stopped.

    Writes ``OUT/data``, ``OUT/model``, ``OUT/translation``, ``OUT/model/scores.json`` and ``OUT/report.html``.

    Args:
        tell: called with what there is to read.

    Raises:
        InputError: the file is wrong, or a stage failed.
    """
    whole = RunConfig.read(config)
    data, model = whole.out / "data", whole.out / "model"
    preparation = PrepareConfig(whole.source, whole.target, whole.train, whole.valid, whole.test, data, **whole.prepare)
    tell(prepared(preparation, prepare(preparation, overwrite=True)).rpartition("\nnext:")[0])
    options, note = whole.options(data, model)
    if note:
        tell(note)
    _run(whole, data, model, options, whole.out, tell)
    runs = [model]
    if whole.baseline:
        runs.insert(0, _baseline(whole, preparation, options, tell))
    source = Path(f"{whole.test[0]}.{whole.source}") if whole.test else None
    report(runs, whole.out / "report.html", source, title=whole.out.name)
    tell(f"report: {whole.out / 'report.html'}\nnext: lasformer translate {model} FILE")


def _baseline(whole: RunConfig, preparation: PrepareConfig, options: TrainOptions, tell: Any) -> Path:
    """Trains, translates and scores what a document model must beat: sentences alone, plain attention, same size."""
    folder = whole.out / "baseline"
    data, model = folder / "data", folder / "model"
    sentences = replace(preparation, out=data, reuse=whole.out / "data", resolutions="sentences")
    prepare(sentences, overwrite=True)
    dense = options.arch if "dense" in options.arch else options.arch.replace("lasformer", "lasformer_dense", 1)
    if dense not in PRESETS:
        raise InputError(f"baseline: there is no dense model of the size of {options.arch}; leave baseline out")
    _run(whole, data, model, replace(options, arch=dense), folder, lambda text: tell(f"baseline: {text}"))
    return model


def _run(whole: RunConfig, data: Path, model: Path, options: TrainOptions, folder: Path, tell: Any) -> None:
    """Trains a model, and translates and scores the test set, if there is one."""
    import torch

    settings = _TRANSLATE | whole.translation
    generation = ["--beam", str(settings["beam"]), "--overlap", str(settings["overlap"])]
    generation += [] if settings["max_tokens"] is None else ["--max-tokens", str(settings["max_tokens"])]
    generation += [] if torch.cuda.is_available() else ["--cpu"]
    experiment = Experiment(
        name=folder.name,
        training=OptionsTraining(options),
        data=data,
        folder=model,
        generation=tuple(generation),
        best=True,
        shards=settings["shards"],
        jobs=settings["jobs"],
        hypotheses=folder / "translation",
        form="raw",
    )
    progress = Progress(folder, key_of("run"))
    progress.open(f"{folder}: holds something else; choose another folder")
    stages = experiment.stages() if whole.test else experiment.stages()[:1]
    experiment.run(progress, stages, tell=True, say=tell)
    reference = Path(f"{whole.test[0]}.{whole.target}") if whole.test else None
    if reference is not None and reference.exists():
        tell(table({experiment.name: experiment.score(read_documents(reference))}))
