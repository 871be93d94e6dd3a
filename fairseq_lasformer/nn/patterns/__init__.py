"""Attention patterns: which keys a group of layers attends to. One module per pattern; all are registered by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fairseq_lasformer.nn.patterns.base import PATTERNS, Pattern, PatternCost, PatternOptions

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def usage(others: Mapping[str, Any] | None = None) -> str:
    """Return the syntax of every pattern, and of what else is chosen by name, for messages."""
    return ", ".join(way.usage for _, way in sorted({**PATTERNS, **(others or {})}.items()))


def build_pattern(spec: str, options: PatternOptions) -> Pattern:
    """Build the pattern selected by ``--select-pattern``.

    Args:
        spec: ``NAME`` or ``NAME:ARGUMENT``, such as ``learned`` or ``window:20``.
        options: options shared by all patterns.

    Raises:
        ValueError: unknown pattern or invalid argument.
    """
    name, _, argument = spec.partition(":")
    if name not in PATTERNS:
        raise ValueError(f"expected one of {usage()}")
    pattern = PATTERNS[name].build(argument, options)
    pattern.backend = options.backend
    return pattern


__all__ = ["PATTERNS", "Pattern", "PatternCost", "PatternOptions", "build_pattern", "usage"]
