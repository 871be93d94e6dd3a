"""The lowest kappas for a given loss."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from fairseq_lasformer.apps.models.budget import SHARES, cheapest, kappas_within, write_within_budget
from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.checkpoints.loading import load
from fairseq_lasformer.evaluation.calibration import scored

FEW = (1.0, 0.5, 0.2, 0.1)


def test_the_cheapest_steps_are_taken_first():
    costs = {"a": [0.0, 0.01, 0.02, 0.04], "b": [0.0, 0.05, 0.3, 0.6]}
    assert cheapest(costs, 0.0, FEW) == {"a": 1.0, "b": 1.0}
    assert cheapest(costs, 0.02, FEW) == {"a": 0.2, "b": 1.0}
    assert cheapest(costs, 0.091, FEW) == {"a": 0.1, "b": 0.5}
    assert cheapest(costs, 9.0, FEW) == {"a": 0.1, "b": 0.1}
    # a step that costs nothing, or gains, is free, and an expensive one may be followed by a cheap one
    assert cheapest({"a": [0.0, -0.1, 0.3, 0.3], "b": [0.0, 0.2, 0.2, 0.2]}, 0.2, FEW) == {"a": 0.5, "b": 0.1}


@pytest.mark.parametrize("seed", range(5))
def test_few_choices_are_better(seed):
    """Against all choices of three selectors: never over the budget, and within a tenth of the best mean."""
    torch.manual_seed(seed)
    costs = {name: [0.0, *torch.rand(3).pow(2).cumsum(0).tolist()] for name in "abc"}

    def spent(at):
        return sum(costs[name][i] for name, i in at.items())

    choices = [dict(zip("abc", at)) for at in itertools.product(range(4), repeat=3)]
    for budget in (0.1, 0.5, 1.0):
        best = min(sum(FEW[i] for i in at.values()) for at in choices if spent(at) <= budget)
        found = cheapest(costs, budget, FEW)
        assert spent({name: FEW.index(share) for name, share in found.items()}) <= budget
        assert sum(found.values()) <= best + 0.3 + 1e-9


def test_what_selectors_cost_together_counts():
    """Alone they cost little, together three times as much: the sum of the separate measurements is too low."""

    def bits(kappas):
        each = [0.01 * (1 / share - 1) for share in kappas.values()]
        return 2.0 + sum(each) * (3 if len([e for e in each if e]) > 1 else 1)

    found = kappas_within(bits, ["a", "b"], 0.1)
    assert found.before == 2.0 and found.after == bits(found.kappas) <= 2.1
    assert set(found.kappas.values()) <= set(SHARES) and max(found.kappas.values()) < 1
    dear = kappas_within(lambda kappas: 2.0 + 50 * sum(1 - share for share in kappas.values()), ["a"], 0.1)
    assert dear.kappas == {"a": 1.0} and math.isclose(dear.after, 2.0)


def test_a_checkpoint_within_its_budget(trained_folder, prepared, tmp_path):
    begun, out = trained_folder / "checkpoint_last.pt", tmp_path / "out.pt"
    found = write_within_budget(begun, prepared, out, 0.05, 3)
    before, after = load(begun)["model"], load(out)["model"]
    moved = {name for name in after if not torch.equal(after[name], before[name])}
    assert moved and all(name.endswith("selector.kappa") for name in moved)
    scores = scored(out, prepared, 3)
    assert scores.kappas == pytest.approx(found.kappas) and scores.bits == pytest.approx(found.after, abs=1e-5)
    assert found.after - found.before <= 0.05
    for budget in (0, -1.0, math.inf):
        with pytest.raises(InputError, match="--budget"):
            write_within_budget(begun, prepared, tmp_path / "none.pt", budget, 3)
    assert not (tmp_path / "none.pt").exists()
