"""Attentions of a layer, a module each: over selected keys, and those that select nothing."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from fairseq_lasformer.nn import patterns
from fairseq_lasformer.nn.attentions.base import ATTENTIONS, Attention, AttentionOptions, AttentionOutput
from fairseq_lasformer.nn.attentions.selected import SelectedAttention

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def usage() -> str:
    """Return the syntax of every pattern, and of every attention that selects nothing, for messages."""
    return patterns.usage(ATTENTIONS)


__all__ = ["ATTENTIONS", "Attention", "AttentionOptions", "AttentionOutput", "SelectedAttention", "usage"]
