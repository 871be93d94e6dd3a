"""Attentions of a layer, a module each: over selected keys, and those that select nothing."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from fairseq_lasformer.nn.attentions.base import ATTENTIONS, Attention, AttentionOptions, AttentionOutput
from fairseq_lasformer.nn.attentions.selected import SelectedAttention
from fairseq_lasformer.nn.patterns import PATTERNS, Pattern

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def usage() -> str:
    """Return the syntax of every pattern, and of every attention that selects nothing, for messages."""
    ways: list[type[Pattern] | type[Attention]] = [*PATTERNS.values(), *ATTENTIONS.values()]
    return ", ".join(way.usage for way in sorted(ways, key=lambda way: way.name))


__all__ = ["ATTENTIONS", "Attention", "AttentionOptions", "AttentionOutput", "SelectedAttention", "usage"]
