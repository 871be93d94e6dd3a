"""Log lines that a person can read: means, and what the report shows of each group; the rest is in TensorBoard."""

import re
from collections.abc import Callable
from typing import Any

from fairseq.logging import progress_bar

from fairseq_lasformer.plugin.log_lines import BY_GROUP, joined
from fairseq_lasformer.plugin.patches import wrap

# kappa_encoder_0, moe_unused_decoder_3; and means that only tell something beside those of their layers
_OF_LAYERS = re.compile(
    r"(kappa|mass|recall|moe_\w+?)_(encoder|decoder|cross)_\d+"
    r"|moe_(importance_cv|load_cv|gate_entropy|received_\w+)"
)


def install() -> None:
    """Leave the figures of layers out of the text of all of fairseq's formats. Repeated calls have no effect."""
    for kind in (progress_bar.JsonProgressBar, progress_bar.SimpleProgressBar, progress_bar.TqdmProgressBar):
        for name in ("log", "print"):
            wrap(kind, name, _shorten)


def _shorten(
    original: Callable[..., Any], self: Any, stats: dict[str, Any], tag: str | None = None, step: int | None = None
) -> None:
    short = type(stats)((key, value) for key, value in stats.items() if not _OF_LAYERS.fullmatch(key))
    short.update({f"{name}_by_group": word for name in BY_GROUP if (word := joined(stats, name))})
    original(self, short, tag=tag, step=step)
