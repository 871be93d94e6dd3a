"""Further scores of ``lasformer score``: each is a dataclass of its options, in the module of what it measures.

To add one, write such a class and name it among the bases of :class:`cli.scores.Score`; see CONTRIBUTING.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fairseq_lasformer.base.errors import InputError
from fairseq_lasformer.base.options import part
from fairseq_lasformer.base.records import Scores
from fairseq_lasformer.text.documents import Document


class Systems(NamedTuple):
    """Systems to score."""

    hypotheses: Mapping[str, Sequence[Document]]  # documents by system, in the order of the references
    references: Sequence[Document]
    sources: Sequence[Document]  # source documents; empty if they were not named
    tokenize: str = "13a"
    samples: int = 0  # samples of a bootstrap against the first system; 0 for none
    language: str = ""  # language of the translations; empty if it was not named


@dataclass(frozen=True, kw_only=True)
class FurtherScore:
    """A score with its options."""

    @property
    def needs_source(self) -> str:
        """The option that does not work without source documents; empty if none needs them."""
        return ""

    @property
    def asked(self) -> bool:
        """True if its options ask for it."""
        raise NotImplementedError

    def check(self, systems: int) -> None:
        """Refuse options that conflict, before anything is read.

        Args:
            systems: number of systems.
        """

    def evaluate(self, systems: Systems) -> dict[str, Scores]:
        """Return entries of ``scores.json``, by system."""
        raise NotImplementedError

    def text(self, name: str, scores: Scores) -> str:
        """Format the scores of a system for a terminal; empty for nothing."""
        raise NotImplementedError


def further_scores(options: Any, systems: int, with_source: bool) -> list[FurtherScore]:
    """Return the scores that a command's options ask for.

    Args:
        options: an instance of a class whose bases are scores, see :class:`FurtherScore`.
        systems: number of systems.
        with_source: whether source documents are named.
    """
    kinds: list[type[FurtherScore]] = [kind for kind in type(options).__mro__ if FurtherScore in kind.__bases__]
    asked = []
    for score in (part(kind, options) for kind in kinds):
        score.check(systems)
        if score.asked:
            asked.append(score)
            if score.needs_source and not with_source:
                raise InputError(f"{score.needs_source}: also needs the source documents: --source FILE")
    return asked
