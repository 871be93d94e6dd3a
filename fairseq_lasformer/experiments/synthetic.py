"""Training data written by a model: ``lasformer distil`` and ``lasformer back-translate``.

Documents are translated line by line. Lines that went wrong (they repeat themselves, or reached their limit) are left
out and counted.

- Sequence-level knowledge distillation (Kim and Rush 2016, arXiv 1606.07947, 3.2), document by document: a student
  learns from a teacher's translations of the training text.
- Back-translation (Sennrich et al. 2016, arXiv 1511.06709), document by document (Junczys-Dowmunt 2019, arXiv
  1907.06170): pairs from documents in the target language, by a model of the other direction, whose sources are
  machine-translated.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_copy, atomic_write, beside, check_writable
from fairseq_lasformer.base.resume import Progress, key_of
from fairseq_lasformer.checkpoints.loading import chosen, identity, load
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.data.subwords import DataConfig, data_identity
from fairseq_lasformer.experiments.run_config import SUBWORDS, RunConfig, run
from fairseq_lasformer.experiments.settings import Tell
from fairseq_lasformer.jobs.collecting import summary
from fairseq_lasformer.jobs.generate import generate
from fairseq_lasformer.text.documents import join_documents, read_lines, split_documents


class Translated(NamedTuple):
    """Settings for generating training text."""

    # source, target: languages of the model that translates
    source: str
    target: str
    checkpoint: Path  # its checkpoint
    data: Path  # its prepared folder
    beam: int  # beam size of the translation
    clean: bool  # replace control characters in the text with spaces instead of rejecting them
    jobs: int = 1  # number of workers that translate
    engine: str = "processes"  # how they are run, see `executors.executor`

    def write_all(self, prefixes: Sequence[str], folder: Path, name: str, command: str, tell: Tell) -> tuple[str, ...]:
        """Translate texts into a folder, or resume where an earlier call stopped.

        Args:
            name: name of the files, without their number.
            command: command that the folder belongs to.
            tell: called with each message.

        Returns:
            the prefixes of the written files, in the order of ``prefixes``.
        """
        check_writable(folder / name)
        progress = Progress(folder, key_of(command))
        progress.open(f"{folder}: belongs to a different run; choose another folder (out)")
        outputs = [folder / f"{name}{i}" for i in range(len(prefixes))]
        for prefix, place in zip(prefixes, outputs):
            self.write(prefix, place, progress, tell)
        return tuple(map(str, outputs))

    def write(self, prefix: str, made: Path, progress: Progress, tell: Tell) -> None:
        """Write ``MADE.SOURCE`` and ``MADE.TARGET``: ``PREFIX.SOURCE`` and its translation.

        Lines that repeat themselves, reached their limit or are empty are left out on both sides, and counted. A
        killed run resumes with the shard that it was translating.

        Args:
            progress: progress of the whole; the translation is one of its stages.
            tell: called with each message.
        """
        file = f"{prefix}.{self.source}"
        try:
            content = Path(file).read_bytes()
        except OSError as e:
            raise InputError(f"{file}: cannot be read ({e.strerror})") from e
        of = key_of(identity(self.checkpoint), data_identity(self.data), content, self.beam)
        progress.run(f"translate {prefix}", lambda: self._translate(prefix, made, tell), of, tell=True)

    def _translate(self, prefix: str, made: Path, tell: Tell) -> None:
        import torch

        place = beside(made, ".data")
        alone = beside(made, ".source")  # a prefix without target: no reference is needed
        atomic_copy(Path(f"{prefix}.{self.source}"), beside(alone, f".{self.source}"))
        config = PrepareConfig(
            self.source, self.target, (), (), (str(alone),), place, reuse=self.data, clean=self.clean
        )
        prepare(config, overwrite=True)
        options = ["--beam", str(self.beam)] + ([] if torch.cuda.is_available() else ["--cpu"])
        translation = beside(made, ".translation")
        done = generate(place, self.checkpoint, translation, options=options, jobs=self.jobs, engine=self.engine)
        assert done is not None
        sources = split_documents(read_lines(f"{alone}.{self.source}", self.clean))
        lines = [[*zip(*pair, strict=True)] for pair in zip(sources, done.documents, strict=True)]
        wrong = {*done.flawed, *((i, j) for i, d in enumerate(lines) for j, line in enumerate(d) if not line[1])}
        right = [[line for j, line in enumerate(d) if (i, j) not in wrong] for i, d in enumerate(lines)]
        for side, language in enumerate((self.source, self.target)):
            text = join_documents([[line[side] for line in document] for document in right if document])
            atomic_write(beside(made, f".{language}"), text)
        left_out = f"; {len(wrong)} lines that went wrong are left out" if wrong else ""
        tell(f"{prefix}: {summary(done._replace(flawed=[]), 'lines')}{left_out}")


def distil(
    teacher: Path,
    data: Path,
    student: Path,
    *,
    beam: int = 5,
    word_level: bool = False,
    jobs: int = 1,
    engine: str = "processes",
    tell: Tell = print,
) -> None:
    """Translate the training text, then prepare, train, translate and score as ``lasformer run`` does.

    Everything is written to the student's ``out``; the folder ``teacher`` in it contains the translated training text.
    Resumes where it stopped.

    Args:
        teacher: checkpoint, or the folder of one.
        data: prepared folder of the teacher, whose subwords and dictionaries the student also uses.
        student: configuration file of ``lasformer run``; its ``train`` names the text to translate, whose target side
            is not needed.
        beam: beam size of the translation.
        word_level: also learn the teacher's most likely words, see :mod:`plugin.training.teacher`.
        jobs: number of workers that translate.
        engine: how they are run, see :func:`executors.executor`.
        tell: called with each message.
    """
    checkpoint = chosen(teacher)
    load(checkpoint)  # an unusable one is refused before anything is written
    whole = RunConfig.read(student)
    for name in SUBWORDS:
        if name in whole.prepare:
            raise InputError(f"{student}: prepare.{name}: a student uses its teacher's subwords; leave this out")
    clean = bool(whole.prepare.get("clean", False))
    of = Translated(whole.source, whole.target, checkpoint, data, beam, clean, jobs, engine)
    translated = of.write_all(whole.train, whole.out / "teacher", "train", "distil", tell)
    words = whole.fairseq
    if word_level:
        words = ("--distil-from", str(checkpoint.resolve()), *words)
    configured = replace(whole, train=tuple(translated), fairseq=words)
    run(configured, tell=tell, reuse=data)


def back_translate(
    model: Path,
    data: Path,
    config: Path,
    *,
    beam: int = 5,
    jobs: int = 1,
    engine: str = "processes",
    tell: Tell = print,
) -> None:
    """Translate the documents of ``mono``, add them to ``train``, and run the configuration.

    Everything is written to its ``out``; the folder ``back`` in it contains the generated pairs. Resumes where it
    stopped.

    Args:
        model: checkpoint, or the folder of one, from the target language to the source language.
        data: prepared folder of that model.
        config: configuration file of ``lasformer run``; its ``mono`` names documents in the target language.
        beam: beam size of the translation.
        jobs: number of workers that translate.
        engine: how they are run, see :func:`executors.executor`.
        tell: called with each message.
    """
    checkpoint = chosen(model)
    load(checkpoint)  # an unusable one is refused before anything is written
    whole, settings = RunConfig.read(config), DataConfig.load(data)
    if (settings.source_lang, settings.target_lang) != (whole.target, whole.source):
        raise InputError(
            f"{data}: belongs to a model from {settings.source_lang} to {settings.target_lang}; expected one from "
            f"{whole.target} to {whole.source}"
        )
    if not whole.mono:
        raise InputError(f"{config}: mono is missing: prefixes of documents in {whole.target}")
    clean = bool(whole.prepare.get("clean", False))
    of = Translated(whole.target, whole.source, checkpoint, data, beam, clean, jobs, engine)
    prefixes = of.write_all(whole.mono, whole.out / "back", "mono", "back-translate", tell)
    run(replace(whole, train=(*whole.train, *prefixes), mono=()), tell=tell)
