"""``lasformer distil``: a student learns from a teacher's translations of the training text.

This is sequence-level knowledge distillation (Kim and Rush 2016, arXiv 1606.07947, 3.2), document by document. The
teacher translates the training documents line by line, and the student is trained on its output. Lines that went wrong
(they repeat themselves, or reached their limit) are left out and counted.
"""

from dataclasses import replace
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import chosen, load
from fairseq_lasformer.experiments.run_config import SUBWORDS, RunConfig, run
from fairseq_lasformer.experiments.settings import Tell
from fairseq_lasformer.experiments.synthetic import Translated


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
