"""``lasformer export --like``: an imported model, possibly trained further, back in Hugging Face's format.

The mapping of weights is not written down a second time: the import is run on the original's folder with numbers
instead of weights, and every number shows where the weight in its place belongs.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from torch import Tensor

from fairseq_lasformer.conversion.export import check_reads_everything, loaded_for_export
from fairseq_lasformer.conversion.huggingface.folder import SAFE, Folder
from fairseq_lasformer.conversion.huggingface.importing import FAMILIES
from fairseq_lasformer.errors import InputError
from fairseq_lasformer.files import check_new_folder, new_folder


class _Numbered(Folder):
    """A folder whose weights are their own positions among all weights, counted from 1, in float64."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.own = super().weights()

    def weights(self) -> dict[str, Tensor]:
        made, start = {}, 1
        for name, weight in self.own.items():
            stop = start + weight.numel()
            made[name] = torch.arange(start, stop, dtype=torch.float64).view(weight.shape)
            start = stop
        return made


def export_like(checkpoint: Path, out: Path, like: Path, data: Path | None = None) -> str:
    """Write a model in the form of the folder that it was imported from, with its current weights.

    Args:
        checkpoint: a checkpoint, or the folder of one.
        out: folder to write; new or empty.
        like: the folder that was imported; everything except the weights is copied from there.
        data: prepared folder of the checkpoint; None for the one named in the checkpoint.

    Returns:
        a summary for the terminal.

    Raises:
        InputError: the model has something that the original could not have, or ``out`` is not empty.
    """
    from safetensors.torch import save_file

    check_new_folder(out)
    folder = _Numbered(like)
    kind = folder.config["model_type"]
    if kind not in FAMILIES:
        raise InputError(f"{like}: is a model of type {kind}; expected one of {', '.join(FAMILIES)}")
    hub = loaded_for_export(checkpoint, data)
    check_reads_everything(checkpoint, hub.models[0], "a model of Hugging Face's library")
    trained = {n: w.detach().float() for n, w in hub.models[0].state_dict().items()}
    languages = hub.settings.source_lang, hub.settings.target_lang
    places = FAMILIES[kind].convert(folder, languages).weights
    written = _placed(checkpoint, like, folder.own, places, trained)
    with new_folder(out) as place:
        for file in sorted(like.iterdir()):
            if file.is_file() and not file.name.startswith(("model.safetensors", "model-", "pytorch_model")):
                shutil.copyfile(file, place / file.name)
        config = {name: "float32" if name in ("torch_dtype", "dtype") else v for name, v in folder.config.items()}
        (place / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        save_file(written, place / SAFE, metadata={"format": "pt"})
        card = (checkpoint if checkpoint.is_dir() else checkpoint.parent) / "MODEL.md"
        if card.is_file():  # the name under which their pages show it
            shutil.copyfile(card, place / "README.md")
    return f"{out}: {kind}, as {like}, with weights in float32"


def _placed(
    checkpoint: Path, like: Path, own: dict[str, Tensor], places: dict[str, Tensor], trained: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the original's weights with the trained ones in their places."""
    flat = torch.cat([torch.zeros(1), *(weight.float().flatten() for weight in own.values())])
    for name, weight in trained.items():
        if name not in places and ".selector." not in name and not name.endswith((".version", "_float_tensor")):
            raise InputError(f"{checkpoint}: has {name}, which {like} does not have")
        if name in places and places[name].shape != weight.shape:
            sizes = " and ".join("x".join(map(str, t.shape)) for t in (weight, places[name]))
            raise InputError(f"{checkpoint}: {name} and that of {like} differ in size ({sizes})")
    for name, numbers in places.items():
        if name.endswith(".version"):
            continue
        if name not in trained:
            raise InputError(f"{checkpoint}: has no {name}, which {like} has")
        at = numbers.double().flatten()
        known = at > 0  # the others belong to words that the original does not know
        flat[at[known].long()] = trained[name].flatten()[known]
    made, start = {}, 1
    for name, weight in own.items():
        values = flat[start : start + weight.numel()].view(weight.shape)
        made[name] = values.clone() if weight.is_floating_point() else weight.clone()
        start += weight.numel()
    return made
