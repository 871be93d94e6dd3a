"""Attention patterns: the keys that a group of layers attends to. Those of other papers are in ``nn.others``."""

from fairseq_lasformer.nn.patterns import full, learned, positional  # noqa: F401 (each registers its pattern)
from fairseq_lasformer.nn.patterns.base import PATTERNS, Pattern, PatternCost, PatternOptions


def build_pattern(spec: str, options: PatternOptions) -> Pattern:
    """Build the pattern selected by ``--select-pattern``.

    Args:
        spec: ``NAME`` or ``NAME:ARGUMENT``, such as ``learned`` or ``window:20``.
        options: options shared by all patterns.

    Raises:
        ValueError: unknown pattern or invalid argument. Those of other papers are known once ``nn.ways`` is imported.
    """
    name, _, argument = spec.partition(":")
    if name not in PATTERNS:
        raise ValueError(f"expected one of {', '.join(sorted(PATTERNS))}")
    pattern = PATTERNS[name].build(argument, options)
    pattern.backend = options.backend
    return pattern


__all__ = ["PATTERNS", "Pattern", "PatternCost", "PatternOptions", "build_pattern"]
