"""``lasformer import``: a folder in Hugging Face's format, converted to one that all our commands accept."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from fairseq import options as fairseqs
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from fairseq_lasformer.apps.models.huggingface.family import Family, Imported
from fairseq_lasformer.apps.models.huggingface.folder import Folder
from fairseq_lasformer.apps.models.huggingface.languages import own_languages
from fairseq_lasformer.apps.models.huggingface.marian import Marian
from fairseq_lasformer.apps.models.huggingface.multilingual import M2M100
from fairseq_lasformer.apps.models.huggingface.proof import check_sizes, compared, possible, refusing
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_copy, check_new_folder, new_folder
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.data.shortlist import hashes
from fairseq_lasformer.plugin import register

FAMILIES: dict[str, Family] = {"m2m_100": M2M100(), "marian": Marian()}
"""By ``model_type`` in ``config.json``."""

REFUSED = {
    "nllb-moe": "ours route mixtures of experts differently; NLLB's dense models can be imported",
    "switch_transformers": "ours route mixtures of experts differently",
    "t5": "its positions are relative",
    "umt5": "its positions are relative",
    "mt5": "its positions are relative",
}
"""Reasons why common models of other types cannot be imported."""


def import_model(
    path: Path, out: Path, languages: tuple[str | None, str | None] = (None, None), check: bool = True
) -> str:
    """Import a model.

    Args:
        path: the model's folder.
        out: folder to write; new or empty.
        languages: source and target language; None for the model's own, if it has one.
        check: compare its scores with the original's, if ``transformers`` is installed.

    Returns:
        a summary for the terminal.
    """
    folder = Folder(path)
    kind = folder.config["model_type"]
    if kind not in FAMILIES:
        why = REFUSED.get(kind, f"known types are {', '.join(FAMILIES)}")
        raise InputError(f"{path}: is a model of type {kind}, which cannot be imported: {why}")
    check_new_folder(out)
    named = [language or its for language, its in zip(languages, own_languages(folder))]
    if None in named:
        raise InputError(f"{path}: does not say which languages it reads and writes; add --source-lang, --target-lang")
    source, target = map(str, named)
    if source == target:
        raise InputError(f"--source-lang, --target-lang: both are {source}")
    for language in (source, target):  # a part of file names, and possibly untrusted
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", language):
            raise InputError(f"{language!r}: not the name of a language")
    with refusing(path):
        check_sizes(folder)
        imported = FAMILIES[kind].convert(folder, (source, target))
        odd = [name for name, weight in imported.weights.items() if not weight.is_floating_point()]
        if odd:
            raise InputError(f"{path}: {odd[0]} are whole numbers, not weights")
    with new_folder(out) as place, refusing(path, place, out):
        sizes = _write(imported, place, out)
        proof = compared(path, place, imported) if check and possible() else "not compared with the original"
    layers = f"{imported.options['encoder_layers']}+{imported.options['decoder_layers']} layers"
    words = " and ".join(dict.fromkeys(f"{n:,}" for n in sizes))
    dim = imported.options["encoder_embed_dim"]
    return f"{out}: {kind}, {layers} of {dim}, {words} words; {proof}\nnext: lasformer translate {out} FILE"


def _write(imported: Imported, place: Path, out: Path) -> list[int]:
    """Write a model into a folder that will become ``out``; return the sizes of its dictionaries."""
    for name, file in imported.files.items():
        if isinstance(file, Path):
            atomic_copy(file, place / name)
        else:
            (place / name).write_bytes(file)
    dictionaries = []
    for language, words in zip((imported.data.source_lang, imported.data.target_lang), imported.words):
        dictionary = Dictionary()
        for word in words:
            dictionary.add_symbol(word, 1)
        path = place / f"dict.{language}.txt"
        dictionary.save(str(path))
        if Dictionary.load(str(path)).symbols != dictionary.symbols:
            raise InputError(f"{language}: the vocabulary has words that fairseq's dictionaries cannot contain")
        dictionaries.append(dictionary)
    imported.data.save(place)
    torch.save(checkpoint(imported, place, out, dictionaries), place / "model.pt")
    return list(map(len, dictionaries))


def checkpoint(imported: Imported, place: Path, data: Path, dictionaries: Sequence[Any]) -> Json:
    """Return the content of a checkpoint of ``lasformer_dense`` with the imported weights.

    Args:
        place, data: folder of the dictionaries, now and later.
    """
    register()
    options = [str(place), "--task", "document_translation", "--arch", "lasformer_dense"]
    options += ["-s", imported.data.source_lang, "-t", imported.data.target_lang]
    parsed = fairseqs.parse_args_and_arch(fairseqs.get_training_parser(), options)
    cfg = OmegaConf.to_container(convert_namespace_to_omegaconf(parsed))
    assert isinstance(cfg, dict)
    limits = {name: value for name, value in imported.options.items() if name.startswith("max_")}
    cfg["model"] |= imported.options
    cfg["task"] |= limits | {"data": str(data.resolve())}
    return {
        "args": None,
        "cfg": cfg,
        "model": imported.weights,
        "optimizer_history": [
            {"num_updates": 0, "criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {"best": None}}
        ],
        "task_state": {"dictionaries": hashes(dictionaries)},
        "extra_state": {},
        "last_optimizer_state": None,
    }
