"""Subcommands that turn checkpoints into others: averages, conversions, smaller models, models to give away."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from fairseq_lasformer.errors import InputError


def run_average(args: argparse.Namespace) -> None:
    from fairseq_lasformer.checkpoints.loading import average
    from fairseq_lasformer.files import check_writable

    check_writable(args.out)
    average(args.checkpoints, args.out, args.ema)
    what = "moving averages" if args.ema else "checkpoints"
    print(f"{args.out}: mean of {len(args.checkpoints)} {what}, kappa of {args.checkpoints[-1]}")


def add_average(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", type=Path)
    parser.add_argument("checkpoints", type=Path, nargs="+", help="checkpoints of one run, the last one at the end")
    parser.add_argument(
        "--ema", action="store_true", help="use the moving averages in the checkpoints (trained with --store-ema)"
    )


def run_convert(args: argparse.Namespace) -> None:
    from fairseq_lasformer.conversion.convert import convert
    from fairseq_lasformer.plugin import register

    register()
    print(convert(args.checkpoint, args.out, (args.encoder_layers_to_keep, args.decoder_layers_to_keep)))


def add_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="checkpoint of an architecture of fairseq's transformer")
    parser.add_argument("out", type=Path, help="checkpoint to write")
    for side in ("encoder", "decoder"):
        parser.add_argument(
            f"--{side}-layers-to-keep", metavar="N,N", help="layers to keep of a model trained with layer drop"
        )


def run_prune(args: argparse.Namespace) -> None:
    from fairseq_lasformer.conversion.prune import prune

    print(prune(args.checkpoint, args.out, args.groups, args.heads, args.data))


def add_prune(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="checkpoint of this package's models")
    parser.add_argument("out", type=Path, help="checkpoint to write")
    parser.add_argument(
        "--groups",
        default="",
        metavar="SIDE.N,...",
        help="groups of layers to keep, from 0, such as decoder.0; a side that is not named keeps all",
    )
    parser.add_argument(
        "--heads",
        default="",
        metavar="MODULE=N,...",
        help="heads to keep in each layer of a module, such as encoder=6,cross=4: those the loss depends on most",
    )
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")


def run_import(args: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")  # of Hydra, about how fairseq uses it
    from fairseq_lasformer.conversion.huggingface.importing import import_model

    print(import_model(args.folder, args.out, (args.source_lang, args.target_lang), args.check))


def add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="folder of the model: config.json, weights, vocabulary")
    parser.add_argument("out", type=Path, help="folder to write: checkpoint, dictionaries and subwords")
    for side in ("source", "target"):
        parser.add_argument(
            f"-{side[0]}",
            f"--{side}-lang",
            metavar="LANG",
            help=f"{side} language, as the model names it, such as de or deu_Latn (default: its own)",
        )
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare its scores with the original's, if transformers is installed (default: yes)",
    )
    parser.epilog = (
        "Example: lasformer import opus-mt-en-de models/en-de && lasformer translate models/en-de letter.docx"
    )


def run_pack(args: argparse.Namespace) -> None:
    from fairseq_lasformer.conversion.pack import pack

    print(pack(args.checkpoint, args.out, args.data))


def add_pack(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a checkpoint or its folder")
    parser.add_argument("out", type=Path, help="folder to write: weights, settings, dictionaries, subwords")
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.epilog = "Example: lasformer pack checkpoints/mine mine && lasformer translate mine letter.docx"


def run_export(args: argparse.Namespace) -> None:
    from fairseq_lasformer.conversion.export import export
    from fairseq_lasformer.conversion.huggingface.exporting import export_like

    if args.like is None:
        print(export(args.checkpoint, args.out, args.data, args.quantization))
    elif args.quantization != "float32":
        raise InputError(f"--quantization {args.quantization}: only for CTranslate2; with --like, leave it out")
    else:
        print(export_like(args.checkpoint, args.out, args.like, args.data))


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, help="a checkpoint at kappa 1, or its folder")
    parser.add_argument("out", type=Path, help="folder to write, for CTranslate2")
    parser.add_argument(
        "--like",
        type=Path,
        metavar="FOLDER",
        help="write a Hugging Face model like the one in this folder, from which it was imported",
    )
    parser.add_argument("--data", type=Path, help="prepared folder (default: the one used in training)")
    parser.add_argument(
        "--quantization",
        choices=("float32", "int8", "int8_float32", "int16", "float16"),
        default="float32",
        help="type of the weights (default: %(default)s)",
    )
