"""Common parts of all families of imported models: sizes, names of weights, and order of the vocabulary."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fairseq_lasformer.apps.models.huggingface.folder import Folder
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.records import Json
from fairseq_lasformer.data.subwords import DataConfig

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
"""The first words of fairseq's dictionaries."""

NEVER = -1e4
"""Bias of a word that the original does not know, so that it is never generated."""


@dataclass(frozen=True)
class Imported:
    """An imported model, in our form."""

    options: Json  # options of the model, by their names in fairseq-train
    weights: dict[str, Tensor]  # weights in our names and order of words
    words: tuple[Sequence[str], Sequence[str]]  # words of the two dictionaries, after fairseq's special ones
    rows: tuple[Tensor, Tensor]  # for each word of the two dictionaries, the original's row, int64; see `order`
    start: int  # row of the word that the original's decoder begins with
    data: DataConfig  # settings of the folder
    # the files that encode and decode text, or their contents, by the names that they get
    files: Mapping[str, Path | bytes]


class Family(Protocol):
    """Models of one architecture."""

    def convert(self, folder: Folder, languages: tuple[str, str]) -> Imported:
        """Read a model.

        Args:
            languages: source and target.
        """
        ...


def sizes(folder: Folder) -> Json:
    """Return the options that are in every family's settings."""
    config, values = folder.config, Json()
    for side in ("encoder", "decoder"):
        values[f"{side}_embed_dim"] = folder.number("d_model")
        values[f"{side}_ffn_embed_dim"] = folder.number(f"{side}_ffn_dim")
        values[f"{side}_layers"] = folder.number(f"{side}_layers")
        values[f"{side}_attention_heads"] = folder.number(f"{side}_attention_heads")
    for ours, theirs in (("dropout", "dropout"), ("attention_dropout", "attention_dropout")):
        share = config.get(theirs) or 0.0
        if type(share) not in (int, float) or not 0 <= share < 1:
            raise InputError(f"{folder.path}: {theirs}: expected a probability, not {str(share)[:50]!r}")
        values[ours] = float(share)
    values["activation_fn"] = activation(folder, str(config.get("activation_function")))
    values["no_scale_embedding"] = not config.get("scale_embedding", False)
    return values


ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish", "gelu_new": "gelu_accurate"}


def activation(folder: Folder, name: str) -> str:
    """Return fairseq's name of an activation."""
    if name not in ACTIVATIONS:
        raise InputError(f"{folder.path}: activation_function {name}: expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def check_start(folder: Folder, symbol: int) -> None:
    """Refuse a model whose decoder begins with a different symbol from ours."""
    if folder.number("decoder_start_token_id", symbol) != symbol:
        raise InputError(f"{folder.path}: its decoder begins with a different symbol (decoder_start_token_id)")


def renamed(weights: dict[str, Tensor], rules: Sequence[tuple[str, str]]) -> dict[str, Tensor]:
    """Rename weights by the first rule (regular expression, replacement) that fits; drop them if it is empty."""
    tensors = {}
    for name, weight in weights.items():
        for pattern, replacement in rules:
            if re.fullmatch(pattern, name):
                if replacement:
                    tensors[re.sub(pattern, replacement, name)] = weight
                break
        else:
            raise InputError(f"the model has {name}, which ours cannot have")
    return tensors


def order(vocabulary: Mapping[str, int], n_words: int, special: Mapping[str, int | None]) -> tuple[list[str], Tensor]:
    """Return the words after fairseq's special ones, and for each word of ours the original's row, int64, or -1.

    Args:
        vocabulary: the original's, from words to rows.
        n_words: rows of the original's table.
        special: for each of :data:`SPECIAL`, the original's row, or None.
    """
    by_row = {row: word for word, row in vocabulary.items()}
    if len(by_row) != len(vocabulary) or any(not 0 <= row < n_words for row in by_row):
        raise InputError(f"the vocabulary does not fit the model's table of {n_words} words")
    used = {row for row in special.values() if row is not None}
    rows = [row for row in range(n_words) if row not in used]
    words = [by_row.get(row, f"madeupword{row:06d}") for row in rows]
    first = [-1 if special[name] is None else special[name] for name in SPECIAL]
    return words, torch.tensor([*first, *rows])


def reordered(table: Tensor, rows: Tensor, missing: float = 0.0) -> Tensor:
    """Return a table, [V, …], in a different order of words.

    Args:
        rows: see :func:`order`.
        missing: value of the words that the original does not have.
    """
    rows_in_order = table[rows.clamp(min=0)].clone()
    rows_in_order[rows < 0] = missing
    return rows_in_order
