"""What tokens attend to in a forced translation, and which words belong to which of the source."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_lasformer.formats.projection import Aligned, by_place, units, with_equal_words
from fairseq_lasformer.nn.attention import AttentionOutput
from fairseq_lasformer.nn.selection import MaskSelection
from fairseq_lasformer.ops.reference import attention_scores, masked_softmax


def attention_of(model: Any, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Attention over the selected keys, averaged over the heads and layers of each group.

    Args:
        model: a :class:`LasformerModel` with learned selection, in evaluation mode.
        source, target: int64 [K] and [Q], end of sentence included; the target is force-decoded.

    Returns:
        attention by module and group (``encoder.0``, ``decoder.0``, ``cross.0``, …). Each is a matrix [queries, keys]
        whose rows sum to 1: [K, K] in the encoder, [Q, Q] in the decoder, [Q, K] across. Row i of ``decoder`` and
        ``cross`` belongs to the step that produces target token i, and column j of ``decoder`` to the input of step j:
        token j - 1 (for j = 0, the beginning of the sequence).
    """
    previous = target.roll(1)
    previous[0] = target[-1]
    found: dict[str, list[Tensor]] = {}

    def observe(name: str, output: AttentionOutput) -> None:
        if isinstance(output.selection, MaskSelection) and output.query is not None and output.key is not None:
            scores = attention_scores(output.query, output.key)
            weights = masked_softmax(scores, output.selection.keep_mask[:, None]).mean(1)[0]
            found.setdefault(name, []).append(weights.detach())

    # with gradients enabled, a full pass represents its selection as a mask
    with torch.enable_grad():
        encoded = model.encoder(source[None], observe=observe)
        model.decoder.extract_features(previous[None], encoded, observe=observe)
    return {name: torch.stack(layers).mean(0) for name, layers in found.items()}


def of_module(attention: dict[str, Tensor], module: str) -> Tensor | None:
    """The mean over the groups of ``encoder``, ``decoder`` or ``cross``, float32 on the CPU; None without any."""
    found = [weights for name, weights in attention.items() if name.startswith(module)]
    return torch.stack(found).mean(0).float().cpu() if found else None


def word_alignment(model: Any, source: str, translation: str) -> Aligned:
    """The words of a translation and the words of its source that the model attends to when it writes them.

    Args:
        model: a :class:`DocumentHubInterface`.
        source: a sentence.
        translation: its translation.

    Returns:
        weights by word. By place in the sentence, if the model has no attention that can be read (dense ones).
    """
    codec = model.codec
    pieces = [codec.encode_source(source).split(), codec.encode_target(translation).split()]
    if not all(pieces):
        return by_place(source, translation)
    tokens = [
        dictionary.encode_line(" ".join(words), add_if_not_exist=False).long().to(model.device)
        for dictionary, words in zip((model.src_dict, model.tgt_dict), pieces)
    ]
    crossing = of_module(attention_of(model.models[0], tokens[0], tokens[1]), "cross")
    if crossing is None:
        return by_place(source, translation)
    weights = crossing[:-1, :-1].numpy()
    columns, rows = (_owners(text, words) for text, words in zip((source, translation), pieces))
    found = np.zeros((len(units(translation)), len(units(source))))
    counts = np.bincount(rows, minlength=len(found))
    for i, row in enumerate(rows):
        np.add.at(found[row], columns, weights[i] / counts[row])
    found /= np.maximum(found.sum(1, keepdims=True), 1e-9)
    return Aligned(with_equal_words(source, translation, found))


def _owners(text: str, pieces: list[str]) -> np.ndarray:
    """For each subword of a text, the word (see :func:`units`) that it begins in."""
    words = units(text)
    starts = np.array([start for start, _ in words])
    found, position = [], 0
    for piece in pieces:
        piece = piece.removesuffix("@@").replace("\u2581", "")
        while position < len(text) and text[position].isspace():
            position += 1
        at = text.find(piece, position, position + len(piece) + 8) if piece else position
        at = position if at < 0 else at  # normalised: a quotation mark, say
        found.append(max(0, int(np.searchsorted(starts, at, side="right")) - 1))
        position = min(len(text), at + len(piece))
    return np.array(found)
