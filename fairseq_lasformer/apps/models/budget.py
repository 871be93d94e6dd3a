"""Lowest kappas of a model for a given loss, measured on a few documents, without training.

The rule of eq 7 (arXiv 2309.14174) follows the share of attention on the kept keys. Modules differ widely in what they
lose by it: a cross-attention that keeps 94% of its attention may lose more than a decoder that keeps 80%. Here, every
kappa is set where it costs the same per key, and all together cost what was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.terminal import progress_bar
from fairseq_lasformer.checkpoints.loading import load, save
from fairseq_lasformer.documents.hub import from_pretrained
from fairseq_lasformer.evaluation.calibration import bits_per_token, calibration

if TYPE_CHECKING:
    from fairseq_lasformer.documents.hub import DocumentHubInterface

SHARES = (1.0, 0.7, 0.5, 0.4, 0.3, 0.25, 0.2, 0.16, 0.13, 0.1, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01)
"""Values of kappa that are tried, in descending order."""


class Budgeted(NamedTuple):
    """Kappas for a budget."""

    kappas: dict[str, float]  # by selector, as shares
    # before, after: bits per token with every kappa at 1, and with these
    before: float
    after: float


def cheapest(costs: Mapping[str, Sequence[float]], budget: float, shares: Sequence[float] = SHARES) -> dict[str, float]:
    """Return the kappas that keep the fewest keys for a sum of costs, by repeatedly taking the cheapest step down.

    Args:
        costs: costs of each selector, in bits per token, at each of ``shares``; steps that gain count as free.
        budget: largest sum.
    """
    monotone = {name: [max(0.0, *values[: i + 1]) for i in range(len(values))] for name, values in costs.items()}
    at = dict.fromkeys(costs, 0)
    while True:
        spent = sum(monotone[name][i] for name, i in at.items())
        steps = []
        for name, i in at.items():
            for to in range(i + 1, len(shares)):  # several values at once: a cheap one may follow a plateau
                cost = monotone[name][to] - monotone[name][i]
                if spent + cost <= budget:
                    steps.append((cost / (shares[i] - shares[to]), -to, name))
        if not steps:
            return {name: shares[i] for name, i in at.items()}
        _, to, name = min(steps)
        at[name] = -to


def kappas_within(bits: Callable[[Mapping[str, float]], float], names: Sequence[str], budget: float) -> Budgeted:
    """Measure what each selector costs alone, and return the kappas that cost no more than the budget together.

    Args:
        bits: returns the bits per token with given kappas; selectors that are not named have 1.
        names: names of all selectors.
        budget: bits per token that may be lost.
    """
    before = bits({})
    with progress_bar(total=len(names) * (len(SHARES) - 1), desc="kappa", unit=" values") as bar:
        costs: dict[str, list[float]] = {}
        for name in names:
            costs[name] = [0.0]
            for share in SHARES[1:]:
                # beyond several times the budget, smaller values are not worth a pass
                hopeless = costs[name][-1] > 3 * budget
                costs[name].append(math.inf if hopeless else bits({name: share}) - before)
                bar.update()
    allowed = budget
    while True:  # selectors that lose the same words cost less together, others more
        choice = cheapest(costs, allowed)
        after = bits(choice)
        if after - before <= budget or allowed < budget / 64:
            return Budgeted(choice, before, after)
        allowed *= 0.8


def write_within_budget(checkpoint: Path, data: Path, out: Path, budget: float, documents: int) -> Budgeted:
    """Write a checkpoint with every kappa as low as a loss of ``budget`` bits per token allows.

    The loss is measured on the longest ``documents`` examples of the validation set.
    """
    if not 0 < budget < math.inf:
        raise InputError(f"--budget {budget}: expected bits per token, such as 0.01")
    hub: DocumentHubInterface = from_pretrained(checkpoint, data=data).eval()
    model = hub.models[0]
    selectors, examples = dict(model.selectors()), list(calibration(hub.task, documents=documents))
    if not selectors:
        raise InputError(f"{checkpoint}: has no selectors")

    def keep(kappas: Mapping[str, float]) -> None:
        for name, selector in selectors.items():
            selector.set_share(kappas.get(name, 1.0))

    def bits(kappas: Mapping[str, float]) -> float:
        keep(kappas)
        return bits_per_token(hub, examples)

    chosen = kappas_within(bits, list(selectors), budget)
    keep(chosen.kappas)
    state, trained = load(checkpoint), model.state_dict()
    state["model"] = {n: trained[n].clone() if n.endswith(".kappa") else value for n, value in state["model"].items()}
    state["last_optimizer_state"] = None
    save(state, out)
    return chosen
