"""The interface of an attention pattern: which keys a group of layers attends to.

A new pattern is one subclass of :class:`Pattern` in a file of this folder; see CONTRIBUTING.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from torch import Tensor, nn

from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.ops import AttentionMask, KeptKeys

if TYPE_CHECKING:
    from fairseq_lasformer.nn.cache import LayerCache
    from fairseq_lasformer.nn.patterns.learned import SparsityRule

PATTERNS: dict[str, type[Pattern]] = {}
"""Every pattern by its name in ``--select-pattern``."""


class PatternOptions(NamedTuple):
    """What a pattern is built from.

    Attributes:
        query_dim, key_dim: widths of the queries' and the keys' hidden states.
        select_dim: width of a learned selector's single head (d_s).
        rule: how kappa adapts.
        gradient: how the translation loss reaches a learned selector.
        backend: what selects in inference, one of :data:`ops.BACKENDS`.
    """

    query_dim: int
    key_dim: int
    select_dim: int
    rule: SparsityRule
    gradient: str = "bounded"
    backend: str = "auto"


class PatternCost(NamedTuple):
    """What a pattern costs at one length.

    Attributes:
        kept: share of the keys that a query attends to, 0 to 1.
        scores: multiply-accumulates of choosing them, for the whole sequence.
        projections: multiply-accumulates of what is projected for that.
    """

    kept: float
    scores: float = 0.0
    projections: float = 0.0


class Pattern(nn.Module):
    """Which keys the queries of one group of one attention module attend to.

    Attributes:
        name: of the pattern in ``--select-pattern NAME[:ARGUMENT]``.
        usage: how it is asked for, such as ``window:SIZE``.
        supervised: whether the full attention teaches it (eq 4-6). adaptive: whether its kappa moves (eq 7).
    """

    name: ClassVar[str]
    usage: ClassVar[str]
    supervised: ClassVar[bool] = False
    adaptive: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        PATTERNS[cls.name] = cls

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> Pattern:
        """The pattern of ``--select-pattern NAME:ARGUMENT``.

        Args:
            argument: what follows the colon; empty where there is none.

        Raises:
            ValueError: the argument makes no sense; the message says what is expected.
        """
        raise NotImplementedError

    def forward(self, query: Tensor, key: Tensor, mask: AttentionMask, as_mask: bool = False) -> Selection:
        """The selection of a full pass.

        Args:
            query: [B, Q, d], the states that the layer's attention gets.
            key: [B, K, d_key]; the very tensor ``query`` in self-attention.
            mask: which keys may be attended to at all.
            as_mask: whether it must be a :class:`~fairseq_lasformer.nn.selection.MaskSelection` (for attention
                dropout); otherwise a pass without gradients takes whatever is fastest.
        """
        raise NotImplementedError

    def step(self, query: Tensor, keys: LayerCache) -> KeptKeys | None:
        """The kept keys of one decoding step; None where every allowed key is kept.

        Args:
            query: [R, d], the states of the newest positions.
            keys: the keys so far, their index, and a place to cache what the pattern projects.
        """
        raise NotImplementedError

    def cost(self, length: int) -> PatternCost:
        """The cost at ``length`` queries and as many keys."""
        raise NotImplementedError
