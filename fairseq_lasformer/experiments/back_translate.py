"""``lasformer back-translate``: pairs from documents in the target language, by a model of the other direction.

Back-translation (Sennrich et al. 2016, arXiv 1511.06709) is done document by document (Junczys-Dowmunt 2019, arXiv
1907.06170). In the resulting pairs, the source is machine-translated and the target was written by people.
"""

from dataclasses import replace
from pathlib import Path

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import chosen, load
from fairseq_lasformer.data.subwords import DataConfig
from fairseq_lasformer.experiments.run_config import RunConfig, run
from fairseq_lasformer.experiments.settings import Tell
from fairseq_lasformer.experiments.synthetic import Translated


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
