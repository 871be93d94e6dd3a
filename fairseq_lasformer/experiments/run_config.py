"""Runs from raw documents to models and their report, described by one configuration file: ``lasformer run``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fairseq_lasformer.analysis.report import report
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import known_names, option, options_of, read_section
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.base.shared_options import Beam, jobs, max_tokens
from fairseq_lasformer.base.targets import check_page
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare import summary as prepared
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.evaluation.scores import table
from fairseq_lasformer.experiments.pipeline import Experiment, OptionsTraining
from fairseq_lasformer.experiments.settings import Tell, TrainOptions
from fairseq_lasformer.experiments.train import chosen_options
from fairseq_lasformer.experiments.yaml_file import read_yaml, words
from fairseq_lasformer.plugin.config import PRESETS
from fairseq_lasformer.text.documents import read_documents

SUBWORDS = ("tokenizer", "bpe", "size", "separator", "joined_dictionary")
"""Options of the preparation that are inherited with the subwords."""

# Options in which systems on the same subwords may differ.
_EXAMPLES = ("resolutions", "limit", "max_lines")


@dataclass(frozen=True, kw_only=True)
class _Training(TrainOptions):
    small_corpus: bool | None = option(None)


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(Beam):
    """Options of the translation of a run's test set, as those of ``lasformer generate``."""

    overlap: int = option(3, minimum=0)
    max_tokens: int | None = max_tokens()
    shards: int = option(4, minimum=1)
    jobs: int = jobs("shards translated in parallel")


def _names(cls: type) -> tuple[str, ...]:
    return tuple(one.name for one in options_of(cls) if not one.spec.rest)


_SECTIONS: dict[str, tuple[type, tuple[str, ...]]] = {
    "prepare": (PrepareConfig, (*SUBWORDS, "drop_empty", "clean", "workers", *_EXAMPLES)),
    "training": (_Training, _names(_Training)),
    "translation": (TranslationOptions, _names(TranslationOptions)),
}
_FILES = ("train", "train_sentences", "valid", "test", "mono")
_TOP = ("source", "target", *_FILES, "out", *_SECTIONS, "fairseq", "baseline", "systems", "gpu")
_ON_GPU = (*_SECTIONS, "fairseq", "systems")


@dataclass(frozen=True)
class System:
    """One of several systems on the same corpus with the same subwords."""

    name: str
    start: str  # name of the system from whose weights the training starts; empty for none
    # `resolutions`, `limit` and `max_lines` of its examples, where they differ from the others'
    prepare: Json
    # training, fairseq, translation: as those of `RunConfig`, in addition to them
    training: Json
    fairseq: tuple[str, ...]
    translation: Json


@dataclass(frozen=True)
class RunConfig:
    """A complete run; the sections of its configuration file."""

    # source, target: language codes, which are the suffixes of the raw files
    source: str
    target: str
    # train, valid, test: prefixes of raw files, `PREFIX.SOURCE` and `PREFIX.TARGET`; at most one for `test`
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    out: Path  # output folder
    prepare: Json  # options of `lasformer prepare`, with underscores
    training: Json  # options of `lasformer train`, with underscores
    fairseq: tuple[str, ...]  # further options of fairseq-train, as a list of words
    translation: Json  # `beam`, `overlap`, `max_tokens`, `shards` and `jobs` of `lasformer generate`
    baseline: bool = False  # also train a sentence-level model of the same size with plain attention, and compare
    systems: tuple[System, ...] = ()  # several systems instead of one, each in its own folder
    mono: tuple[str, ...] = ()  # prefixes of documents in one language, see `lasformer prepare`
    train_sentences: tuple[str, ...] = ()  # prefixes of single sentences for training, see `lasformer prepare`

    @classmethod
    def read(cls, path: Path) -> RunConfig:
        """Read a configuration file; what is under ``gpu`` replaces or follows the rest if there is a GPU."""
        given = read_yaml(path)
        known_names(given, f"{path}: ", _TOP)
        everywhere = cls._of(path, {name: value for name, value in given.items() if name != "gpu"})
        if not given.get("gpu"):
            return everywhere
        on_gpu = cls._of(path, _on_gpu(path, given))  # read on every machine, so that errors are found on any
        return on_gpu if torch.cuda.is_available() else everywhere

    @classmethod
    def _of(cls, path: Path, given: Json) -> RunConfig:
        for name in ("source", "target", "train", "out"):
            if name != "train" and not isinstance(given.get(name) or "", str) or given.get(name) is False:
                raise InputError(f"{path}: {name}: expected a word (in quotes if it is a number, yes or no)")
            if not (given.get(name) or name == "train" and given.get("train_sentences")):
                raise InputError(f"{path}: {name} is missing")
        sections = _sections(given, f"{path}: ")
        fairseq = words(path, "fairseq", given.get("fairseq"))
        prefixes = {name: _prefixes(path, name, given.get(name)) for name in _FILES}
        if len(prefixes["test"]) > 1:
            raise InputError(f"{path}: test: expected a single prefix")
        return cls(
            given["source"],
            given["target"],
            prefixes["train"],
            prefixes["valid"],
            prefixes["test"],
            Path(given["out"]),
            sections["prepare"],
            sections["training"],
            fairseq,
            sections["translation"],
            _yes(path, "baseline", given.get("baseline", False)),
            _systems(path, given.get("systems") or {}),
            prefixes["mono"],
            prefixes["train_sentences"],
        )

    def options(self, data: Path, out: Path) -> tuple[TrainOptions, str]:
        """Return the options of the training, and a description of those chosen by the size of the corpus."""
        given = {name: value for name, value in self.training.items() if name != "small_corpus"}
        return chosen_options(data, out, given | {"options": self.fairseq}, self.training.get("small_corpus"))

    def of(self, system: System) -> RunConfig:
        """Return the configuration of one of the systems alone."""
        return replace(
            self,
            out=self.out / system.name,
            training=self.training | system.training,
            fairseq=(*self.fairseq, *system.fairseq),
            translation=self.translation | system.translation,
            systems=(),
        )

    def chosen(self, names: Sequence[str]) -> list[System]:
        """Return the systems with these names, or all of them, each after the one that it starts from."""
        known, chosen = {system.name: system for system in self.systems}, dict[str, System]()
        for name in names or known:
            if name not in known:
                raise InputError(f"--only {name}: the systems are {', '.join(known) or 'none'}")
            line = [known[name]]
            while line[0].start:
                line.insert(0, known[line[0].start])
            chosen |= {system.name: system for system in line}
        return list(chosen.values())


def _sections(given: Json, where: str, examples: bool = False) -> dict[str, Json]:
    """Return the values of all sections.

    Args:
        where: the place of the sections, for messages.
        examples: whether only the examples of a preparation may be chosen.
    """
    sections = {}
    for name, (cls, names) in _SECTIONS.items():
        names = _EXAMPLES if examples and name == "prepare" else names
        sections[name] = read_section(cls, given.get(name), f"{where}{name}", names)
    return sections


def _on_gpu(path: Path, given: Json) -> Json:
    """Return the values of a configuration on a machine with a GPU."""
    special = given["gpu"]
    if not isinstance(special, dict):
        raise InputError(f"{path}: gpu: expected names and values that differ on a GPU")
    known_names(special, f"{path}: gpu.", _ON_GPU)
    if isinstance(systems := special.get("systems"), dict):
        known_names(systems, f"{path}: gpu.systems.", tuple(map(str, given.get("systems") or {})))
    return _merged({name: value for name, value in given.items() if name != "gpu"}, special)


def _merged(values: object, special: object) -> Any:
    """Return values with special ones: names are replaced, and words follow, where the last one counts."""
    if isinstance(values, dict) and isinstance(special, dict):
        return values | {name: _merged(values.get(name), value) for name, value in special.items()}
    return [*values, *special] if isinstance(values, list) and isinstance(special, list) else special


def _systems(path: Path, given: object) -> tuple[System, ...]:
    if not isinstance(given, dict):
        raise InputError(f"{path}: systems: expected names, each with the options that differ")
    systems: list[System] = []
    for name, special in given.items():
        where = f"systems.{name}"
        if not str(name).replace("_", "").replace("-", "").isalnum() or name in ("data", "text"):
            raise InputError(f"{path}: {where}: not a name for a folder")
        special = {} if special is None else special
        if not isinstance(special, dict):
            raise InputError(f"{path}: {where}: expected names and values")
        known_names(special, f"{path}: {where}.", ("start", "fairseq", *_SECTIONS))
        start = special.get("start") or ""
        if not isinstance(start, str):
            raise InputError(f"{path}: {where}: start: expected the name of a system")
        if start and start not in map(str, given):
            raise InputError(f"{path}: {where}: start: there is no system {start}")
        sections = _sections(special, f"{path}: {where}.", examples=True)
        fairseq = words(path, f"{where}.fairseq", special.get("fairseq"))
        systems.append(
            System(str(name), start, sections["prepare"], sections["training"], fairseq, sections["translation"])
        )
    starts = {system.name: system.start for system in systems}
    for name in starts:
        before, steps = starts[name], 1
        while before:
            if steps > len(starts):
                raise InputError(f"{path}: systems.{name}: start: it would start from itself")
            before, steps = starts[before], steps + 1
    return tuple(systems)


def _yes(path: Path, name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{path}: {name}: expected true or false")
    return value


def _prefixes(path: Path, name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    raise InputError(f"{path}: {name}: expected a prefix of raw files, or a list of them")


def run_from_config(config: Path, only: Sequence[str] = (), tell: Tell = print) -> None:
    """Run what a configuration file describes, or resume it where it stopped.

    Writes ``OUT/data``, ``OUT/model``, ``OUT/translation``, ``OUT/model/scores.json`` and ``OUT/report.html``; with
    several systems, everything except data and report in a folder per system.

    Args:
        only: names of systems; only these and those that they start from are run.
        tell: called with each message.
    """
    run(RunConfig.read(config), only, tell)


def run(whole: RunConfig, only: Sequence[str] = (), tell: Tell = print, reuse: Path | None = None) -> None:
    """Run a configuration; see :func:`run_from_config`.

    Args:
        reuse: a prepared folder whose subwords and dictionaries are used.
    """
    chosen, data, page = whole.chosen(only), whole.out / "data", whole.out / "report.html"
    if whole.test:
        check_page(page)
    text = whole.out / "text" if chosen else None
    files = whole.source, whole.target, whole.train, whole.valid, whole.test
    preparation = PrepareConfig(
        *files, data, text=text, reuse=reuse, mono=whole.mono, train_sentences=whole.train_sentences, **whole.prepare
    )
    folders = [whole.out / name / "model" for name in ("", "baseline", *(system.name for system in whole.systems))]
    tell(_prepare(preparation, folders))
    if chosen:
        runs = _several(whole, preparation, chosen, tell)
    else:
        options, note = whole.options(data, whole.out / "model")
        if note:
            tell(note)
        runs = [_run(whole, data, options, tell)]
        if whole.baseline:
            runs.insert(0, _baseline(whole, preparation, options, tell))
    if whole.test:
        report(runs, page, Path(f"{whole.test[0]}.{whole.source}"))
        tell(f"report: {page}")
    tell(f"next: lasformer translate {runs[-1]} FILE")


def _prepare(config: PrepareConfig, models: Sequence[Path]) -> str:
    """Prepare data, unless a model in one of these folders was trained on what it would replace; return a summary."""
    trained = next((folder for folder in models if any(folder.glob("*.pt"))), None)
    return prepared(config, prepare(config, overwrite=True, model=trained)).rpartition("\nnext:")[0]


def _several(whole: RunConfig, preparation: PrepareConfig, systems: Sequence[System], tell: Tell) -> list[Path]:
    """Train, translate and score systems, each after the one it starts from; return the folders of their models."""
    checkpoints: dict[str, Path] = {}
    for system in systems:

        def say(text: str, name: str = system.name) -> None:
            tell(f"{name}: {text}")

        alone, data = whole.of(system), preparation.out
        if system.prepare:
            data = whole.out / "-".join(["data", *(f"{k}-{v}" for k, v in sorted(system.prepare.items()))])
            other = _other_examples(preparation, data, system.prepare)
            say(_prepare(other, [alone.out / "model"]))
        options, note = alone.options(data, alone.out / "model")
        if note:
            say(note)
        if system.start:
            begin = ("--finetune-from-model", str(checkpoints[system.start]))
            options = replace(options, options=(*begin, *options.options))
        _run(alone, data, options, say)
        checkpoints[system.name] = _experiment(alone, data, options).checkpoint
    return [whole.out / name / "model" for name in checkpoints]


def _other_examples(preparation: PrepareConfig, out: Path, special: Json) -> PrepareConfig:
    """Return the preparation of the same text in the same subwords, in different examples."""
    inherited: Json = dict.fromkeys(SUBWORDS)
    return replace(preparation, out=out, reuse=preparation.out, **inherited | special)


def _baseline(whole: RunConfig, preparation: PrepareConfig, options: TrainOptions, tell: Tell) -> Path:
    """Train, translate and score what a document model must beat: sentences alone, plain attention, same size."""
    folder = whole.out / "baseline"
    _prepare(_other_examples(preparation, folder / "data", {"resolutions": "sentences"}), [folder / "model"])
    dense = options.arch if "dense" in options.arch else options.arch.replace("lasformer", "lasformer_dense", 1)
    if dense not in PRESETS:
        raise InputError(f"baseline: no dense model has the size of {options.arch}; leave baseline out")
    sentences = replace(whole, out=folder)
    return _run(sentences, folder / "data", replace(options, arch=dense), lambda text: tell(f"baseline: {text}"))


def _experiment(whole: RunConfig, data: Path, options: TrainOptions) -> Experiment:
    """Return the experiment of a system whose folder is ``whole.out``."""
    import torch

    settings = TranslationOptions(**whole.translation)
    generation = ["--beam", str(settings.beam), "--overlap", str(settings.overlap)]
    generation += [] if settings.max_tokens is None else ["--max-tokens", str(settings.max_tokens)]
    generation += [] if torch.cuda.is_available() else ["--cpu"]
    return Experiment(
        name=whole.out.name,
        training=OptionsTraining(options),
        data=data,
        folder=whole.out / "model",
        generation=tuple(generation),
        best=True,
        ema=bool(options.ema_decay),
        shards=settings.shards,
        jobs=settings.jobs,
        hypotheses=whole.out / "translation",
        form="raw",
    )


def _run(whole: RunConfig, data: Path, options: TrainOptions, tell: Tell) -> Path:
    """Train a model, translate and score the test set, if there is one, and return the folder of the model."""
    experiment = _experiment(whole, data, options)
    progress = Progress(whole.out, key_of("run"))
    progress.open(f"{whole.out}: belongs to a different run; choose another folder")
    stages = [stage for stage in experiment.stages() if whole.test or not stage.startswith("translate")]
    experiment.run(progress, stages, tell=True, say=tell)
    reference = Path(f"{whole.test[0]}.{whole.target}") if whole.test else None
    if reference is not None and reference.exists():
        tell(table({experiment.name: experiment.score(read_documents(reference))}))
    return experiment.folder
