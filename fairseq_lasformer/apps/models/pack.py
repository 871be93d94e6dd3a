"""``lasformer pack``: a model as a folder to give away, with its weights in 8 bits."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from torch import Tensor

from fairseq_lasformer.apps.models.card import LENPEN, measured, read_about, write_card
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.files import atomic_copy, check_new_folder, check_regular, file_hash, new_folder
from fairseq_lasformer.base.published import CARD
from fairseq_lasformer.checkpoints.loading import EIGHT_BITS, chosen, load, save, tied
from fairseq_lasformer.data.subwords import DataConfig, subword_model
from fairseq_lasformer.documents.hub import data_of
from fairseq_lasformer.ops import reference

if TYPE_CHECKING:
    from omegaconf import DictConfig

PLACES: dict[str, dict[str, Any]] = {
    "common": {"user_dir": None, "tensorboard_logdir": None, "log_file": None},
    "checkpoint": {"save_dir": "checkpoints", "finetune_from_model": None, "restore_file": "checkpoint_last.pt"},
    "task": {"data": ""},
    "model": {"data": "", "save_dir": "checkpoints", "user_dir": None, "finetune_from_model": None},
}
"""Settings that name folders, and what takes their place."""

SMALLEST = 1024
"""Number of weights below which a matrix stays as it is."""


def pack(
    checkpoint: Path, out: Path, data: Path | None = None, about: Path | None = None, measure: Path | None = None
) -> str:
    """Write a folder with all that translation needs: weights, settings, dictionaries and subwords.

    Every row of a matrix is rounded to 8 bits with a scale of its own, as ``--decode-dtype int8`` rounds linear layers,
    so decoding in 8 bits finds the same numbers. What training needs to go on, such as the optimizer's state, is left
    out.

    Args:
        checkpoint: a checkpoint, or its folder.
        out: folder to write; new or empty.
        data: prepared folder; default: the one used in training.
        about: see :func:`card.read_about`; its ``lenpen`` becomes the model's default.
        measure: text to translate, see :func:`card.measured`.

    Returns:
        the size of the folder, and the SHA-256 of its card, in words.
    """
    further = read_about(about)
    if measure is not None:
        check_regular(measure, "; --measure needs a text in the model's source language")
    checkpoint = chosen(checkpoint)
    check_new_folder(out)
    state = load(checkpoint)
    data = data_of(checkpoint) if data is None else data
    settings = DataConfig.load(data)
    weights, scales = in_eight_bits(state["model"])
    if state.get("cfg") is None:
        raise InputError(
            f"{checkpoint}: is of fairseq's oldest format; train or convert it with a current fairseq first"
        )
    rest = {name: state.get(name) for name in ("args", "optimizer_history", "task_state")}
    cfg = _without_places(state["cfg"])
    if LENPEN in further:
        cfg["generation"] = {**(cfg.get("generation") or {}), LENPEN: further[LENPEN]}
    content = {**rest, "cfg": cfg, "model": weights, EIGHT_BITS: scales}
    content |= {"extra_state": {}, "last_optimizer_state": None}
    with new_folder(out) as place:
        save(content, place / "model.pt")
        settings.save(place)
        for language in (settings.source_lang, settings.target_lang):
            atomic_copy(Path(data) / f"dict.{language}.txt", place / f"dict.{language}.txt")
        for language in settings.models_for:
            file = subword_model(data, settings.bpe, language)
            atomic_copy(file, place / file.name)
        if measure is not None:
            further["measured"] = measured(place, measure)
        write_card(place, out.name, settings, further)
    size = sum(path.stat().st_size for path in out.iterdir())
    digest = file_hash(out / CARD)
    return f"{out}: {size / 1e6:.1f} MB; {CARD}: SHA-256 {digest}\nnext: lasformer translate {out} FILE"


def _without_places(cfg: DictConfig) -> dict[str, Any]:
    """Return settings without the folders of the machine that trained the model."""
    settings: Any = OmegaConf.to_container(cfg) if OmegaConf.is_config(cfg) else copy.deepcopy(cfg)
    for group, names in PLACES.items():
        section = settings.get(group)
        values = section if isinstance(section, dict) else vars(section) if section is not None else {}
        for name, instead in names.items():
            if name in values:
                values[name] = instead
    return dict(settings)


def in_eight_bits(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return weights with large matrices in int8, and the scale [R, 1] of the rows of each of those.

    Tied weights are one tensor, which is stored once.
    """
    packed: dict[str, Tensor] = {}
    scales: dict[str, Tensor] = {}
    firsts = tied(weights)
    for name, weight in weights.items():
        if (same := firsts[name]) != name:
            packed[name] = packed[same]
            scales |= {name: scales[same]} if same in scales else {}
        elif weight.dim() == 2 and weight.is_floating_point() and weight.numel() >= SMALLEST:
            packed[name], scales[name] = reference.quantised(weight.float())
        else:
            packed[name] = weight.detach().clone()  # no views: they would be stored with all that they view
    return packed, scales
