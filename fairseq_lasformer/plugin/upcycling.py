"""A model that starts from the weights of a dense one: what the dense one lacks is added to its weights."""

from __future__ import annotations

import logging

from torch import Tensor

logger = logging.getLogger(__name__)

_EXPERTS, _GATE = ".moe.experts.w1", ".moe.gate."


def complete(weights: dict[str, Tensor], own: dict[str, Tensor]) -> None:
    """Complete the weights of a dense model, in place, for a model that selects or has mixtures of experts.

    Selectors keep their initial weights, with kappa at 1. Each expert of a mixture that stands in for a dense network
    begins as a copy of it (sparse upcycling, arXiv 2212.05055), without its biases, which experts do not have; gates
    keep their initial weights. Weights that have selectors, or experts, are left as they are.

    Args:
        weights: of the checkpoint.
        own: the model's initial weights.
    """
    selectors = {name: value for name, value in own.items() if ".selector." in name}
    if selectors and not any(name in weights for name in selectors):
        logger.warning("the checkpoint has no selectors; they start from their initialisation, kappa from 1")
        weights.update(selectors)
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
