"""Attention of tokens in a forced translation, and the alignment of its words with those of the source."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_lasformer.formats.projection import AlignedWords, by_place, with_equal_words
from fairseq_lasformer.nn.attentions import AttentionOutput
from fairseq_lasformer.ops.reference import attention_scores, line_bias, masked_softmax
from fairseq_lasformer.text.units import units

if TYPE_CHECKING:
    from fairseq.models import BaseFairseqModel

Words = Callable[[str], Sequence[tuple[int, int]]]
"""Start and end of each word of a text."""


def attention_of(model: BaseFairseqModel, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Return the attention over the selected keys, averaged over the heads and layers of each group.

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
    by_module: dict[str, list[Tensor]] = {}

    def observe(name: str, output: AttentionOutput) -> None:
        if output.query is not None and output.key is not None:
            selection: Any = output.selection  # of a form that knows its keys
            kept, mask = selection.kept(every=True), selection.mask
            allowed = mask.full(1, *kept.shape[1:], kept.device)
            scores = attention_scores(output.query, output.key) + line_bias(output.bias, mask, allowed)
            weights = masked_softmax(scores, kept[:, None]).mean(1)[0]
            by_module.setdefault(name, []).append(weights.detach())

    # with gradients enabled, a full pass records which keys it selected
    with torch.enable_grad():
        encoded = model.encoder(source[None], observe=observe)
        model.decoder.extract_features(previous[None], encoded, observe=observe)
    return {name: torch.stack(layers).mean(0) for name, layers in by_module.items()}


class WordAttention(NamedTuple):
    """Attention between the words of a document and those of its translation."""

    # source, target: line, and index in the line, of every word
    source: list[tuple[int, int]]
    target: list[tuple[int, int]]
    # by module and group, as `attention_of` names them, float32 [words that attend, words attended to]: the mean over
    # the attending word's subwords, the sum over the attended word's. Attention to tokens between the words
    # (separators, the beginning, the end) is left out: rows sum to at most 1. In the decoder, words attend to earlier
    # words of the translation.
    modules: dict[str, np.ndarray]

    def mean(self, module: str) -> np.ndarray | None:
        """Average the groups of ``encoder``, ``decoder`` or ``cross``; None without any."""
        chosen = [weights for name, weights in self.modules.items() if name.startswith(module)]
        return np.mean(chosen, 0) if chosen else None


def document_attention(
    model: BaseFairseqModel, source: Sequence[str], target: Sequence[str], words: Words = units
) -> WordAttention:
    """Return the attention of the words of a document and of its translation, which is force-decoded.

    Args:
        model: a :class:`DocumentHubInterface`; without learned selection, no module is returned.
        source, target: lines of the document and of its translation; all must fit into one example.
        words: start and end of each word of a line.
    """
    codec = model.codec
    sides = []
    both = ((source, codec.encode_source, model.src_dict), (target, codec.encode_target, model.tgt_dict))
    for side, (lines, encode, dictionary) in enumerate(both):
        encoded = [encode(line) for line in lines]
        places: list[tuple[int, int]] = []
        owners = [-1] if codec.tags[side] else []
        for number, (line, tokens) in enumerate(zip(lines, encoded)):
            if number and codec.separator:
                owners.append(-1)
            spans = words(line)
            owners += [len(places) + i if spans else -1 for i in owners_of(line, tokens.split(), spans)]
            places += [(number, i) for i in range(len(spans))]
        index = dictionary.encode_line(codec.join(encoded, side), add_if_not_exist=False).long()
        sides.append((index.to(model.device), places, np.array([*owners, -1])))
    (tokens, sources, columns), (translated, targets, rows) = sides
    ends = {"source": (columns, len(sources)), "target": (rows, len(targets))}
    # column j of the decoder's attention is the input of step j: the token before
    ends["before"] = (np.roll(rows, 1), len(targets))
    between = {"encoder": ("source", "source"), "decoder": ("target", "before"), "cross": ("target", "source")}
    by_module = {}
    for name, weights in attention_of(model.models[0], tokens, translated).items():
        first, second = (ends[side] for side in between[name.partition(".")[0]])
        by_module[name] = _by_word(weights.float().cpu().numpy(), *first, *second)
    return WordAttention(sources, targets, by_module)


def _by_word(weights: np.ndarray, rows: np.ndarray, n_rows: int, columns: np.ndarray, n_columns: int) -> np.ndarray:
    """Average over the rows and sum over the columns that belong to the same word; -1 belongs to none."""
    merged = np.zeros((n_rows + 1, n_columns + 1), np.float32)  # the last row and column belong to no word
    np.add.at(merged, (rows[:, None], columns[None]), weights)
    counts = np.bincount(rows[rows >= 0], minlength=n_rows)
    return merged[:-1, :-1] / np.maximum(counts, 1).astype(np.float32)[:, None]


def word_alignment(model: BaseFairseqModel, source: str, translation: str) -> AlignedWords:
    """Align the words of a translation with the source words that the model attends to when it writes them.

    Args:
        model: a :class:`DocumentHubInterface`.

    Returns:
        weights by word; by position in the sentence, if the model has no attention that can be read (dense models).
    """
    cross = document_attention(model, [source], [translation]).mean("cross")
    if cross is None or not cross.size:
        return by_place(source, translation)
    return AlignedWords(with_equal_words(source, translation, cross / np.maximum(cross.sum(1, keepdims=True), 1e-9)))


def owners_of(text: str, pieces: Sequence[str], words: Sequence[tuple[int, int]]) -> list[int]:
    """Return, for each subword of a text, the number of the word that it begins in."""
    starts = [start for start, _ in words]
    owners, position = [], 0
    for piece in pieces:
        piece = piece.removesuffix("@@").replace("\u2581", "")
        while position < len(text) and text[position].isspace():
            position += 1
        at = text.find(piece, position, position + len(piece) + 8) if piece else position
        at = position if at < 0 else at  # normalised: a quotation mark, say
        owners.append(max(0, bisect.bisect_right(starts, at) - 1))
        position = min(len(text), at + len(piece))
    return owners
