"""All ways to attend, by their names in ``--select-pattern``; importing this module registers them."""

from typing import Any

from fairseq_lasformer.nn import others  # noqa: F401 (registers those of other papers)
from fairseq_lasformer.nn.attentions import ATTENTIONS
from fairseq_lasformer.nn.patterns import PATTERNS


def usage() -> str:
    """Return the syntax of every pattern, and of every attention that selects nothing, for messages."""
    ways: dict[str, Any] = {**PATTERNS, **ATTENTIONS}
    return ", ".join(ways[name].usage for name in sorted(ways))
