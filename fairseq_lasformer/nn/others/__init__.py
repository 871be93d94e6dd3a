"""Ways to attend of other papers, a module each: patterns of keys, and attentions that keep none.

All modules of this folder are imported, and each pattern or attention registers itself under its name.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
