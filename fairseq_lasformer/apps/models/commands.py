"""Subcommands that make models of others: imports, conversions, smaller ones, ones that select, ones to give away."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from fairseq_lasformer.apps.models.start_options import StartOptions, UpcycleOptions
from fairseq_lasformer.base.options import NEW, OWN, argument, option, part
from fairseq_lasformer.base.shared_options import Data, Overwrite, language


@dataclass(frozen=True, kw_only=True)
class Upcycle(StartOptions, UpcycleOptions):
    """An upcycling."""

    checkpoint: Path = argument("dense checkpoint, as written by lasformer import or convert")
    data: Path = argument("prepared folder of documents, with the model's subwords (--reuse)")
    out: Path = argument("folder for checkpoints and logs; a killed run resumes there", writes=OWN)


def run_upcycle(args: Upcycle) -> None:
    from fairseq_lasformer.apps.models.upcycling import upcycle

    print(upcycle(args.checkpoint, args.data, args.out, part(StartOptions, args), part(UpcycleOptions, args)))


@dataclass(frozen=True, kw_only=True)
class Convert(Overwrite):
    """A conversion of a model of fairseq's."""

    checkpoint: Path = argument("checkpoint of an architecture of fairseq's transformer")
    out: Path = argument("checkpoint to write", writes=NEW)
    encoder_layers_to_keep: str | None = option(
        None, "layers to keep of a model trained with layer drop", metavar="N,N"
    )
    decoder_layers_to_keep: str | None = option(None, "the same of its decoder", metavar="N,N")


def run_convert(args: Convert) -> None:
    from fairseq_lasformer.apps.models.convert import convert
    from fairseq_lasformer.plugin import register

    register()
    print(convert(args.checkpoint, args.out, (args.encoder_layers_to_keep, args.decoder_layers_to_keep)))


@dataclass(frozen=True, kw_only=True)
class Prune(Data, Overwrite):
    """A model without some of its layers or heads."""

    checkpoint: Path = argument("checkpoint of this package's models")
    out: Path = argument("checkpoint to write", writes=NEW)
    groups: str = option(
        "",
        "groups of layers to keep, from 0, such as decoder.0; a side that is not named keeps all",
        metavar="SIDE.N,...",
    )
    heads: str = option(
        "",
        "heads to keep in each layer of a module, such as encoder=6,cross=4: those the loss depends on most",
        metavar="MODULE=N,...",
    )


def run_prune(args: Prune) -> None:
    from fairseq_lasformer.apps.models.prune import prune

    print(prune(args.checkpoint, args.out, args.groups, args.heads, args.data))


@dataclass(frozen=True, kw_only=True)
class Import:
    """A model of Hugging Face's."""

    folder: Path = argument("folder of the model: config.json, weights, vocabulary")
    out: Path = argument("folder to write: checkpoint, dictionaries and subwords", writes=OWN)
    source_lang: str | None = language(
        "source", ", as the model names it, such as de or deu_Latn (default: its own)", ""
    )
    target_lang: str | None = language("target", ", as the model names it (default: its own)", "")
    check: bool = option(True, "compare its scores with the original's, if transformers is installed (default: yes)")
    epilog = "Example: lasformer import opus-mt-en-de models/en-de && lasformer translate models/en-de letter.docx"


def run_import(args: Import) -> None:
    warnings.simplefilter("ignore")  # of Hydra, about how fairseq uses it
    from fairseq_lasformer.apps.models.huggingface.importing import import_model

    print(import_model(args.folder, args.out, (args.source_lang, args.target_lang), args.check))


@dataclass(frozen=True, kw_only=True)
class Pack(Data):
    """A small model."""

    checkpoint: Path = argument("a checkpoint or its folder")
    out: Path = argument("folder to write: weights, settings, dictionaries, subwords, model.json", writes=OWN)
    about: Path | None = option(
        None, "YAML file with what model.json says besides: licence, data, scores", metavar="FILE"
    )
    measure: Path | None = option(None, "text to translate, to measure speed and memory for model.json", metavar="FILE")
    epilog = "Example: lasformer pack checkpoints/mine mine && lasformer translate mine letter.docx"


def run_pack(args: Pack) -> None:
    from fairseq_lasformer.apps.models.pack import pack

    print(pack(args.checkpoint, args.out, args.data, args.about, args.measure))
