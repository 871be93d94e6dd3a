"""Dropout that fairseq's ``--retain-dropout`` can keep active in generation."""

from collections.abc import Sequence

from torch import Tensor, nn

from fairseq_lasformer import ops


class Dropout(nn.Module):
    """Dropout with probability ``p``.

    Args:
        p: probability of zeroing an element.
        module_name: name by which ``--retain-dropout-modules`` refers to the module.
    """

    def __init__(self, p: float, module_name: str) -> None:
        super().__init__()
        self.p = p
        self.module_name = module_name
        self.retained = False

    @property
    def active_p(self) -> float:
        """The probability in the current mode: ``p`` in training or if dropout is retained, otherwise 0."""
        return float(self.p) if self.training or self.retained else 0.0

    def forward(self, x: Tensor, added: Tensor | None = None) -> Tensor:
        """Apply dropout to x, then add ``added``, if there is one."""
        p = self.active_p
        if p > 0:
            return ops.dropout(x, p, added)
        return x if added is None else added + x

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: Sequence[str] | None = None, **_: object
    ) -> None:
        """Keep dropout in generation if requested; called by fairseq before generation."""
        self.retained = retain_dropout and (
            retain_dropout_modules is None or self.module_name in retain_dropout_modules
        )
