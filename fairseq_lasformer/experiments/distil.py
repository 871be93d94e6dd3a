"""``lasformer distil``: a student learns from a teacher's translations of the training text.

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv 1606.07947, 3.2), document by document: the teacher
translates the training documents line by line, and the student is trained on what it wrote, except for the lines that
went wrong (they repeat themselves, or reached their limit), which are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fairseq_lasformer.checkpoints.loading import chosen, load
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.experiments.run_config import SUBWORDS, RunConfig, run
from fairseq_lasformer.experiments.synthetic import Translated


def distil(
    teacher: Path,
    data: Path,
    student: Path,
    *,
    beam: int = 5,
    originals: bool = False,
    word_level: bool = False,
    jobs: int = 1,
    engine: str = "processes",
    tell: Callable[[str], object] = print,
) -> None:
    """Translates the training text, then prepares, trains, translates and scores as ``lasformer run`` does.

    Everything is written to the student's ``out``: its ``teacher`` folder holds the translated training text. Resumes
    where it stopped.

    Args:
        teacher: checkpoint, or the folder of one.
        data: prepared folder of the teacher, whose subwords and dictionaries the student has, too.
        student: configuration file of ``lasformer run``; its ``train`` names the text to translate, whose target side
            is not needed unless ``originals`` is set.
        beam: of the translation.
        originals: train on the original translations, too.
        word_level: also learn the teacher's likeliest words, see :mod:`plugin.teacher`.
        jobs: translate with so many workers.
        engine: what runs them, see :func:`executors.executor`.
        tell: called with what there is to read.

    Raises:
        InputError: the configuration or a file is wrong, or a stage failed.
    """
    checkpoint = chosen(teacher)
    load(checkpoint)  # one that cannot be used is refused before anything is written
    whole = RunConfig.read(student)
    for name in SUBWORDS:
        if name in whole.prepare:
            raise InputError(f"{student}: prepare.{name}: a student has its teacher's subwords; leave it out")
    clean = bool(whole.prepare.get("clean", False))
    of = Translated(whole.source, whole.target, checkpoint, data, beam, clean, jobs, engine)
    translated = of.write_all(whole.train, whole.out / "teacher", "train", "distil", tell)
    words = whole.fairseq
    if word_level:
        words = ("--distil-from", str(checkpoint.resolve()), *words)
    own = replace(whole, train=(*translated, *(whole.train if originals else ())), fairseq=words)
    run(own, tell=tell, reuse=data)
