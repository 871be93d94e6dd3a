"""``lasformer distil``: a student learns from a teacher's translations of the training text.

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv 1606.07947, 3.2), document by document: the teacher
translates the training documents line by line, and the student is trained on what it wrote, except for the lines that
went wrong (they repeat themselves, or reached their limit), which are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fairseq_lasformer.checkpoints.loading import chosen, identity, load
from fairseq_lasformer.data.documents import join_documents, read_lines, split_documents
from fairseq_lasformer.data.prepare import prepare
from fairseq_lasformer.data.prepare_config import PrepareConfig
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.experiments.run_config import SUBWORDS, RunConfig, run
from fairseq_lasformer.files import atomic_copy, atomic_write, check_writable
from fairseq_lasformer.jobs.generate import generate, summary
from fairseq_lasformer.resume import Progress, key_of


def distil(
    teacher: Path,
    data: Path,
    student: Path,
    *,
    beam: int = 5,
    originals: bool = False,
    word_level: bool = False,
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
    folder = whole.out / "teacher"
    check_writable(folder / "train")
    progress = Progress(folder, key_of("distil"))
    progress.open(f"{folder}: holds something else; choose another folder (out)")
    translated = []
    for i, prefix in enumerate(whole.train):
        made = folder / f"train{i}"

        def translate(prefix: str = prefix, made: Path = made) -> None:
            _translate(whole, checkpoint, data, prefix, made, beam, tell)

        of = key_of(identity(checkpoint), str(data.resolve()), _content(f"{prefix}.{whole.source}"), beam)
        progress.run(f"translate {prefix}", translate, of, tell=True)
        translated.append(str(made))
    words = whole.fairseq
    if word_level:
        words = ("--distil-from", str(checkpoint.resolve()), *words)
    own = replace(whole, train=(*translated, *(whole.train if originals else ())), fairseq=words)
    run(own, tell=tell, reuse=data)


def _translate(
    whole: RunConfig,
    checkpoint: Path,
    data: Path,
    prefix: str,
    made: Path,
    beam: int,
    tell: Callable[[str], object],
) -> None:
    """Writes a training text and the teacher's translation of it, line by line, without the lines that went wrong."""
    import torch

    place = made.with_name(f"{made.name}.data")
    alone = made.with_name(f"{made.name}.source")  # a prefix without target: no reference is needed
    atomic_copy(Path(f"{prefix}.{whole.source}"), alone.with_name(f"{alone.name}.{whole.source}"))
    clean = bool(whole.prepare.get("clean", False))
    config = PrepareConfig(whole.source, whole.target, (), (), (str(alone),), place, reuse=data, clean=clean)
    prepare(config, overwrite=True)
    options = ["--beam", str(beam)] + ([] if torch.cuda.is_available() else ["--cpu"])
    done = generate(place, checkpoint, made.with_name(f"{made.name}.translation"), shards=16, options=options)
    assert done is not None
    sources = split_documents(read_lines(f"{alone}.{whole.source}", clean))
    lines = [[*zip(*pair, strict=True)] for pair in zip(sources, done.documents, strict=True)]
    wrong = {*done.flawed, *((i, j) for i, d in enumerate(lines) for j, line in enumerate(d) if not line[1])}
    kept = [[line for j, line in enumerate(d) if (i, j) not in wrong] for i, d in enumerate(lines)]
    for side, language in enumerate((whole.source, whole.target)):
        text = join_documents([[line[side] for line in document] for document in kept if document])
        atomic_write(made.with_name(f"{made.name}.{language}"), text)
    left_out = f"; {len(wrong)} lines that went wrong are left out" if wrong else ""
    tell(f"{prefix}: {summary(done._replace(flawed=[]), 'lines')}{left_out}")


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from e
