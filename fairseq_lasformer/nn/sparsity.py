"""Adaptive sparsity (eq 7 of arXiv 2309.14174): adaptation of kappa to the mass on the kept keys."""

from __future__ import annotations

from typing import NamedTuple

from fairseq_lasformer.ops import KAPPA_ONE


class SparsityRule(NamedTuple):
    """Rule that adapts kappa to the mass on the kept keys (eq 7). All values are fractions, not percentages.

    Attributes:
        threshold: mass above which kappa shrinks (t).
        step: change of kappa per update.
        freeze_above: kappa does not grow while it is above this.
        fixed: value at which kappa is held instead; 0 to adapt it.
    """

    threshold: float = 0.95
    step: float = 0.001
    minimum: float = 0.01
    freeze_above: float = 0.5
    fixed: float = 0.0

    def next(self, kappa: int, mass: float) -> int:
        """Return kappa after an update in which the kept keys had ``mass``; kappa in millionths."""
        if self.fixed:
            return round(self.fixed * KAPPA_ONE)
        step, freeze = round(self.step * KAPPA_ONE), round(self.freeze_above * KAPPA_ONE)
        if mass > self.threshold:
            kappa -= step
        elif kappa <= freeze:
            kappa += step
        return min(KAPPA_ONE, max(round(self.minimum * KAPPA_ONE), kappa))
