"""Lasformer for fairseq: document-level translation with learned sparse attention (arXiv 2309.14174).

Importing this package has no side effects and requires neither torch nor fairseq. ``fairseq-train --user-dir
fairseq_lasformer`` and fairseq's other tools register the plugin automatically (see ``tasks/``); your own programs call
:func:`fairseq_lasformer.plugin.register`.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairseq_lasformer.version import __version__

if sys.version_info >= (3, 14):  # fairseq_lasformer.pth imports this package in every program, and forgets it again
    from fairseq_lasformer.base import annotations

    annotations.install()

if TYPE_CHECKING:
    from fairseq_lasformer import ops
    from fairseq_lasformer.documents.hub import from_pretrained
    from fairseq_lasformer.nn.attentions import SelectedAttention
    from fairseq_lasformer.nn.patterns.learned import Selector
    from fairseq_lasformer.plugin.model import LasformerModel

__all__ = ["LasformerModel", "SelectedAttention", "Selector", "__version__", "from_pretrained", "ops"]

_PLACES = {
    "LasformerModel": "plugin.model",
    "SelectedAttention": "nn.attentions",
    "Selector": "nn.patterns.learned",
    "from_pretrained": "documents.hub",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_PLACES.get(name, name)}")
    return getattr(module, name) if name in _PLACES else module


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
