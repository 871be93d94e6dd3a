"""Ways to attend of other papers, a module each: patterns of keys, and attentions that keep none.

All modules of this folder are imported, and each pattern or attention registers itself under its name.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from fairseq_lasformer.nn.attentions import ATTENTIONS
from fairseq_lasformer.nn.patterns import PATTERNS

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def usage() -> str:
    """Return the syntax of every pattern, and of every attention that selects nothing, for messages."""
    ways: dict[str, Any] = {**PATTERNS, **ATTENTIONS}
    return ", ".join(ways[name].usage for name in sorted(ways))
