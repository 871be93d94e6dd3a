"""``lasformer back-translate``: documents in the target language become pairs, by a model of the other direction.

Sennrich et al. 2016 (arXiv 1511.06709), document by document (Junczys-Dowmunt 2019, arXiv 1907.06170): what the model
reads is its own translation, what it writes is what people wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fairseq_lasformer.checkpoints.loading import chosen, load
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.experiments.run_config import RunConfig, run
from fairseq_lasformer.experiments.synthetic import Translated


def back_translate(
    model: Path,
    data: Path,
    config: Path,
    *,
    beam: int = 5,
    jobs: int = 1,
    engine: str = "processes",
    tell: Callable[[str], object] = print,
) -> None:
    """Translates the documents of ``mono``, adds them to ``train``, and runs the configuration.

    Everything is written to its ``out``: the folder ``back`` holds the made pairs. Resumes where it stopped.

    Args:
        model: checkpoint, or the folder of one, from the target language to the source language.
        data: prepared folder of that model.
        config: configuration file of ``lasformer run``; its ``mono`` names documents in the target language.
        beam: of the translation.
        jobs: translate with so many workers.
        engine: what runs them, see :func:`executors.executor`.
        tell: called with what there is to read.

    Raises:
        InputError: the configuration or a file is wrong, the model has another direction, or a stage failed.
    """
    checkpoint = chosen(model)
    load(checkpoint)  # one that cannot be used is refused before anything is written
    whole, settings = RunConfig.read(config), DataConfig.load(data)
    if (settings.source_lang, settings.target_lang) != (whole.target, whole.source):
        raise InputError(
            f"{data}: is of a model from {settings.source_lang} to {settings.target_lang}; expected one from "
            f"{whole.target} to {whole.source}"
        )
    if not whole.mono:
        raise InputError(f"{config}: mono is missing: prefixes of documents in {whole.target}")
    clean = bool(whole.prepare.get("clean", False))
    of = Translated(whole.target, whole.source, checkpoint, data, beam, clean, jobs, engine)
    made = of.write_all(whole.mono, whole.out / "back", "mono", "back-translate", tell)
    run(replace(whole, train=(*whole.train, *made), mono=()), tell=tell)
