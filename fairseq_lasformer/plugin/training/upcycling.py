"""Upcycling: starting a model from a dense one's weights, to which the missing ones are added."""

import logging
import re
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_lasformer.nn.attentions.selected import LINE_BIAS_ALONE, LINE_BIAS_UNIT
from fairseq_lasformer.nn.rotary import near, unrotated
from fairseq_lasformer.ops import n_pairs

logger = logging.getLogger(__name__)

FREQUENCY = "line_frequency"
_EXPERTS, _GATE, _SELECTOR = ".moe.experts.w1", ".moe.gate.", ".selector.q_proj.weight"


def complete(
    weights: dict[str, Tensor],
    own: dict[str, Tensor],
    widths: Mapping[str, int],
    ends: Mapping[str, tuple[int, ...]],
) -> None:
    """Complete the weights of a dense model, in place, for a model that selects or has mixtures of experts.

    Selectors start as the mean head of their group, see :func:`mean_head`, with kappa at 1. Each expert of a mixture
    that replaces a dense network starts as a copy of it (sparse upcycling, arXiv 2212.05055), without its biases, which
    experts do not have; gates keep their initial weights. Learned positions are stretched to the model's length.
    Existing selectors and experts are left unchanged. In a model with ``--own-lines``, the separator of lines starts as
    the end of sentence, which it is to a line, and heads start to read near lines, and little of the others.

    Args:
        weights: the checkpoint's weights.
        own: the model's initial weights.
        widths: width of an attention head of ``encoder`` and ``decoder`` (D).
        ends: the end of sentence and the separator, if there is one, of ``encoder`` and ``decoder``.
    """
    _lines(weights, own, ends)
    _positions(weights, own)
    _selectors(weights, own, widths)
    _experts(weights, own)


def _lines(weights: dict[str, Tensor], own: dict[str, Tensor], ends: Mapping[str, tuple[int, ...]]) -> None:
    biases = [name for name in own if name.endswith(".line_bias")]
    if not biases or all(name in weights for name in biases):
        return
    weights.update({name: torch.full_like(own[name], LINE_BIAS_ALONE / LINE_BIAS_UNIT) for name in biases})
    weights.update({name: value for name, value in own.items() if name.endswith(FREQUENCY)})
    for bias in biases:
        n_heads = len(own[bias])
        for name in (bias.replace("line_bias", f"{side}_proj.bias") for side in "qk"):
            if name in weights:
                weights[name] = weights[name] + near(n_heads, len(weights[name]) // n_heads).to(weights[name])
    _near_selectors(weights, own)
    tables = ("encoder.embed_tokens", "decoder.embed_tokens", "decoder.output_projection")
    for side, words in ends.items():
        for name in (f"{table}.{part}" for table in tables if table.startswith(side) for part in ("weight", "bias")):
            if len(words) > 1 and name in weights:
                weights[name] = weights[name].clone()
                weights[name][words[1]] = weights[name][words[0]]


def _near_selectors(weights: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    """Let selectors of a model without own lines read near lines: what they have learned is not to be rotated."""
    for name in [name for name in weights if re.search(r"\.selector\.[qk]_proj\.weight$", name)]:
        bias = f"{name.removesuffix('weight')}bias"
        if bias in own and bias not in weights:
            weights[name], weights[bias] = unrotated(weights[name], 1), own[bias]


def mean_head(
    query: Tensor, key: Tensor, n_heads: int, select_dim: int, rank: int | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the projections of a selector whose scores are closest to the mean of an attention's heads.

    The mean score is x W y^T with W = W_Q W_K^T / (H sqrt(D)), ignoring biases. The best approximation of W with rank
    d_s is its truncated singular value decomposition U S V^T (Eckart and Young 1936), split evenly between queries and
    keys.

    Args:
        query, key: weights of the attention's projections, [H * D, d] and [H * D, d_key].
        n_heads: H.
        select_dim: width of the selector (d_s).
        rank: number of its dimensions that are used; None for all.

    Returns:
        weights of the selector's projections, [rank, d] and [rank, d_key]; the selector divides scores by sqrt(d_s).
    """
    rank = select_dim if rank is None else rank
    scale = select_dim**0.5 / (n_heads * (query.size(0) // n_heads) ** 0.5)
    left, values, right = torch.linalg.svd(query.float().T @ key.float() * scale, full_matrices=False)
    roots = values[:rank].sqrt()[:, None]
    heads = roots * left.T[:rank], roots * right[:rank]
    missing = (0, 0, 0, rank - roots.size(0))  # for an attention narrower than the selector
    return F.pad(heads[0], missing), F.pad(heads[1], missing)


def stretched(table: Tensor, rows: int, first: int) -> Tensor:
    """Stretch a table of learned positions, [n, d], to more rows, [rows, d], by linear interpolation.

    Args:
        first: row of position 0; earlier rows are kept.
    """
    long = F.interpolate(table[first:].float().T[None], size=rows - first, mode="linear", align_corners=True)
    return torch.cat([table[:first], long[0].T.to(table.dtype)])


def _positions(weights: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    for name in ("encoder.embed_positions.weight", "decoder.embed_positions.weight"):
        table, longer = weights.get(name), own.get(name)
        if table is None or longer is None or len(table) >= len(longer):
            continue
        padding = 1  # as in fairseq's dictionaries; positions are counted from the next row
        weights[name] = stretched(table, len(longer), padding + 1)
        lengths = len(table) - padding - 1, len(longer) - padding - 1
        logger.warning("%s: the %d learned positions are stretched to %d", name, *lengths)


def _selectors(weights: dict[str, Tensor], own: dict[str, Tensor], widths: Mapping[str, int]) -> None:
    selectors = {name: value for name, value in own.items() if ".selector." in name}
    if not selectors or any(name in weights for name in selectors):
        return
    weights.update(selectors)
    begun = 0
    places = sorted(_place(name) for name in selectors if name.endswith(_SELECTOR))
    for side, attention, layer in places:
        later = [other for *same, other in places if same == [side, attention] and other > layer]
        ends = min(later, default=1 + max(place for place, _ in _projections(weights, side, attention)))
        group = [pair for place, pair in _projections(weights, side, attention) if layer <= place < ends]
        stem = f"{side}.layers.{layer}.{attention}.selector"
        query, key = (own[f"{stem}.{name}_proj.weight"] for name in "qk")
        inputs = {(pair[0].size(1), pair[1].size(1)) for pair in group}
        if inputs != {(query.size(1), key.size(1))}:
            continue
        # the heads of all layers of the group teach the selector equally
        queries, keys = (torch.cat(parts) for parts in zip(*group))
        n_heads, rotated = len(queries) // widths[side], 0
        if bool(weights.get(f"{side}.{FREQUENCY}", torch.zeros(1)).any()):  # what distances add is learned again
            rotated = 2 * n_pairs(query.size(0))
            queries, keys = (unrotated(t, n_heads) for t in (queries, keys))
        elif f"{stem}.q_proj.bias" in own:
            weights.update({f"{stem}.{name}_proj.bias": torch.zeros_like(query[:, 0]) for name in "qk"})
        mean = mean_head(queries, keys, n_heads, query.size(0), query.size(0) - rotated)
        for name, weight in zip("qk", mean):
            weights[f"{stem}.{name}_proj.weight"] = F.pad(weight, (0, 0, rotated, 0)).to(query.dtype)
        begun += 1
    how = "start as the mean heads of their groups" if begun == len(places) else "start from their initialisation"
    logger.warning("the checkpoint has no selectors; they %s, with kappa at 1", how)


def _place(name: str) -> tuple[str, str, int]:
    side, _, layer, attention, *_ = name.split(".")
    return side, attention, int(layer)


def _projections(weights: Mapping[str, Tensor], side: str, attention: str) -> list[tuple[int, tuple[Tensor, Tensor]]]:
    """Return the weights of an attention's query and key projections in all layers, each with its layer's index."""
    projections = []
    for name, query in weights.items():
        match = re.fullmatch(rf"{side}\.layers\.(\d+)\.{attention}\.q_proj\.weight", name)
        if match and (key := weights.get(name.replace("q_proj", "k_proj"))) is not None:
            projections.append((int(match[1]), (query, key)))
    return projections


def _experts(weights: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    layers = [name.removesuffix(_EXPERTS) for name in own if name.endswith(_EXPERTS)]
    if not layers or any(f"{layer}{_EXPERTS}" in weights for layer in layers):
        return
    copied = 0
    for layer in layers:
        dense = [weights.get(f"{layer}.fc{i}.weight") for i in (1, 2)]
        for i, weight in enumerate(dense, 1):
            name = f"{layer}.moe.experts.w{i}"
            weights[name] = own[name]
            replaces = f"{layer}.fc{i}.weight" not in own
            if weight is not None and replaces and weight.mT.shape == own[name].shape[1:]:
                weights[name] = weight.mT.expand_as(own[name]).clone()
                copied += 1
            if replaces:
                weights.pop(f"{layer}.fc{i}.weight", None)
                weights.pop(f"{layer}.fc{i}.bias", None)
        added = (f"{layer}{_GATE}", f"{layer}.moe_layer_norm.")
        weights.update({name: value for name, value in own.items() if name.startswith(added)})
    how = "as copies of the dense networks" if copied == 2 * len(layers) else "from their initialisation"
    logger.warning("the checkpoint has no experts; those of %d layers start %s", len(layers), how)
