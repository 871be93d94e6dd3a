"""Interface of attention patterns: the keys that a group of layers attends to. Equations: arXiv 2309.14174.

A new pattern is one subclass of :class:`Pattern` in a module of ``nn.others``; see CONTRIBUTING.md.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from torch import Tensor, nn

from fairseq_lasformer import ops
from fairseq_lasformer.nn.options import Pass
from fairseq_lasformer.nn.selection import Selection
from fairseq_lasformer.nn.sparsity import SparsityRule
from fairseq_lasformer.ops import Choice, KeptKeys, PassShape

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from fairseq_lasformer.nn.decoding.layer_cache import LayerCache

Numbers = TypeVar("Numbers", bound="DataclassInstance")

PATTERNS: dict[str, type[Pattern]] = {}
"""All patterns by their names in ``--select-pattern``."""


class PatternOptions(NamedTuple):
    """Options that a pattern is built from."""

    query_dim: int  # width of the states that queries are projected from
    key_dim: int  # width of the states that keys are projected from
    select_dim: int  # width of a learned selector's single head (d_s)
    rule: SparsityRule
    gradient: str = "bounded"  # how the translation loss reaches a learned selector
    backend: str = "auto"  # backend for inference, one of `ops.BACKENDS`
    live: bool = True  # whether a learned selector also trains the layers whose states it reads
    same_text: bool = True  # whether queries and keys are of the same text: self-attention
    own_lines: bool = False  # whether queries read their own lines besides, and are told how far away others are


class PatternCost(NamedTuple):
    """Cost of a pattern at one length.

    Attributes:
        kept: fraction of the keys that a query attends to, 0 to 1.
        scores: multiply-accumulates of the selection, for the whole sequence.
        projections: multiply-accumulates of its projections.
        each_layer: whether every layer of a group computes scores and projections for itself.
    """

    kept: float
    scores: float = 0.0
    projections: float = 0.0
    each_layer: bool = False


def numbers(kind: type[Numbers], argument: str, example: str) -> Numbers:
    """Parse the numbers of a pattern, ``NAME=N,NAME=N``.

    Args:
        kind: a dataclass of whole numbers; those with defaults may be left out. If a name is a Python keyword, the
            field has it as its metadata ``option``.
        argument: the part after the colon.
        example: a complete pattern, for messages.

    Raises:
        ValueError: a number is unknown, missing, given twice or less than 1.
    """
    values: dict[str, int] = {}
    known = {field.metadata.get("option", field.name): field for field in fields(kind)}
    for part in argument.split(","):
        name, _, value = part.partition("=")
        if name not in known or name in values or not (value.isascii() and value.isdecimal() and int(value)):
            raise ValueError(f"expected {', '.join(known)}, each a number, at least 1, as in {example}")
        values[name] = int(value)
    if missing := [name for name, field in known.items() if field.default is MISSING and name not in values]:
        raise ValueError(f"expected {missing[0]}, a number, at least 1, as in {example}")
    return kind(**{known[name].name: value for name, value in values.items()})


class Pattern(nn.Module):
    """Selects the keys that the queries of one group of one attention module attend to.

    Attributes:
        name: name of the pattern in ``--select-pattern NAME[:ARGUMENT]``.
        usage: its syntax, such as ``window:SIZE``.
        supervised: whether it is supervised by the full attention (eq 4-6).
        adaptive: whether its kappa adapts (eq 7).
        packable: whether the fast decoder supports it: it uses positions alone, or scores keys as the selector does.
        backend: backend for inference, one of :data:`ops.BACKENDS`.
        reproducible: whether passes without gradients sum in an order that depends on the row alone.
    """

    name: ClassVar[str]
    usage: ClassVar[str]
    supervised: ClassVar[bool] = False
    adaptive: ClassVar[bool] = False
    packable: ClassVar[bool] = False
    backend: str = "auto"
    reproducible: bool = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in cls.__dict__:  # otherwise it is a base class
            PATTERNS[cls.name] = cls

    @classmethod
    def build(cls, argument: str, options: PatternOptions) -> Pattern:
        """Build the pattern from ``--select-pattern NAME:ARGUMENT``.

        Args:
            argument: the part after the colon; empty if there is none.
            options: options shared by all patterns.

        Raises:
            ValueError: invalid argument; the message says what is expected.
        """
        raise NotImplementedError

    def forward(self, full: Pass) -> Selection:
        """Return the selection of a full pass."""
        raise NotImplementedError

    def step(self, query: Tensor, keys: LayerCache) -> KeptKeys | None:
        """Return the kept keys of one decoding step; None if every allowed key is kept.

        Args:
            query: [R, d], the states of the newest positions.
            keys: the keys so far and their index; it also caches projections of the pattern.
        """
        raise NotImplementedError

    def step_keys(self, query: Tensor, keys: LayerCache) -> KeptKeys | None:
        """Return :meth:`step` with the keys of each row's own line before all others, if own lines are read."""
        kept = self.step(query, keys)
        if kept is None or keys.own is None:
            return kept
        return ops.own_first(kept, keys.own_slots())

    def chosen(self, full: Pass, share: float) -> Choice:
        """Return the implementation of a full pass over keys that were found without scores.

        Args:
            share: see :class:`PassShape`.
        """
        shape = PassShape(full.query, full.query.size(1), full.key.size(1), share, full.mask, self.backend)
        if self.reproducible and full.fixes_sums:
            shape = shape._replace(teaches=False, dropout=False, reproducible=True)
        return ops.choose(shape, ranges=False)

    @property
    def share(self) -> float | None:
        """kappa as a fraction of the keys, 0 to 1; None if the pattern has none."""
        return None

    def scorers(self) -> tuple[nn.Linear, ...]:
        """Return the projections of queries and keys by which keys are scored; none if only positions matter."""
        return ()

    def cost(self, length: int) -> PatternCost:
        """Return the cost for ``length`` queries and as many keys."""
        raise NotImplementedError
