"""Sizes that a checkpoint may ask for: none far beyond those of the weights that it holds.

A model is built from a checkpoint's settings before its weights are loaded into it, so settings that do not fit a small
file could fill the memory.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fairseq_lasformer.base.records import State
from fairseq_lasformer.checkpoints.settings import settings_of

POSITIONS = 1 << 17
"""Largest number of positions: a table of sines has a row for each, without weights."""

WIDTH = 4096
"""Largest width that needs no weight of that size: DeLighT's layers, for one, do not use their feed-forward width."""

COUNT = 1024
"""Largest number of layers, heads or experts that needs no weights as many."""

LINE = 1000
"""Largest number of tokens that a line may have without any in its source, and for each of them."""

FACTOR, SPARE = 64, 50_000_000
"""Bound of the parameters of the layers that the settings describe: so often those of the weights (groups of layers may
share theirs), and so many more."""

_WIDTHS = re.compile(r"((en|de)coder_|moe_)?(ffn_embed|embed|input|output)_dim|select_dim|define_dim")
_COUNTS = re.compile(
    r"(en|de)coder_(layers|attention_heads)|moe_(experts|top_k|groups)|define_(depth|groups|expand)"
    r"|delight_(min|max)_depth|select_(share|window)"
)
_LINES = {"sentence_max_len_a", "sentence_max_len_b"}
_POSITIONS = re.compile(r"max_(source|target)_positions")


def too_large(state: State) -> str:
    """Return which setting of a checkpoint does not fit its weights; empty if all do.

    Args:
        state: a loaded checkpoint, whose weights are tensors.
    """
    weights: list[Tensor] = list(state["model"].values())
    widest = max([WIDTH, *(size for weight in weights for size in weight.shape)])
    for settings in settings_of(state, "task"):
        for name in _LINES & settings.keys():
            value = settings[name]
            if type(value) not in (int, float) or not 0 <= value <= LINE:
                return f"its setting {name} is {str(value)[:20]}, so that a line would not end"
    for settings in settings_of(state, "model"):
        for name, value in settings.items():
            if not isinstance(name, str) or type(value) not in (int, float):
                continue
            for pattern, most in ((_WIDTHS, widest), (_COUNTS, max(COUNT, len(weights))), (_POSITIONS, POSITIONS)):
                if pattern.fullmatch(name) and not 0 <= value <= most:
                    return f"its setting {name} is {str(value)[:20]}, which does not fit its weights"
        if _parameters(settings) > FACTOR * sum(weight.numel() for weight in weights) + SPARE:
            return "its settings describe a model far larger than its weights"
    return ""


def _parameters(settings: Mapping[str, Any]) -> float:
    """Return roughly how many parameters the layers of a Transformer with these settings have."""

    def of(name: str) -> float:
        value = settings.get(name)
        return value if type(value) in (int, float) else 0  # type: ignore[return-value]

    total = 0.0
    for side, attentions in (("encoder", 1), ("decoder", 2)):
        d, inner = of(f"{side}_embed_dim"), max(of(f"{side}_ffn_embed_dim"), of("moe_ffn_embed_dim"))
        inner *= max(1, of("moe_experts"))
        total += of(f"{side}_layers") * (attentions * (4 * d * d + d * of("select_dim")) + 2 * d * inner)
    return total
