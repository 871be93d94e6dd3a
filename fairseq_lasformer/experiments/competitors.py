"""Competitors of table 1 of the paper, on one corpus: other ways to attend, all with as many keys per query."""

from collections.abc import Sequence
from typing import NamedTuple

from fairseq_lasformer.plugin.placement import MODULES

KEYS = 80
"""Keys per query: as many as Lasformer keeps of a document of average length on the demo corpus."""


class Competitor(NamedTuple):
    """A way to attend: its label, and its model options."""

    label: str
    pattern: str
    modules: str = ",".join(MODULES)

    @property
    def overrides(self) -> tuple[str, ...]:
        return (
            f"++model.select_pattern='{self.pattern}'",
            f"++model.select_modules='{self.modules}'",
            "++criterion.selection_weight=0",
        )


def competitors(keys: int = KEYS, length: int = 0, modules: Sequence[str] = MODULES) -> list[Competitor]:
    """Return all other ways to attend, with about ``keys`` keys per query.

    Args:
        length: tokens of the texts (default: four times ``keys``).
        modules: where they are used; the rest has full attention. ``linformer`` is never used in the decoder.

    Global tokens, random keys and buckets get a share of ``keys``. Ways without keys have as many rows or features.
    """
    buckets = 2 * max(1, round((length or 4 * keys) / keys))
    numbers = [
        ("full", ""),
        ("window", str(keys)),
        ("sparse_strided", f"stride={max(1, keys * 2 // 5)}"),
        ("sparse_fixed", f"stride={max(3, keys * 4 // 5)},summary=3"),
        ("transformer_xl", f"segment={max(1, keys * 2 // 3)}"),
        ("longformer", f"window={max(1, keys // 2)}"),
        ("etc", f"window={max(1, keys // 2)}"),
        ("bigbird", f"window={max(1, keys * 3 // 4)},global=2,random={max(1, keys // 5)}"),
        ("reformer", f"buckets={buckets},rounds=2"),
        ("performer", f"features={keys}"),
        ("rfa", f"features={max(1, keys // 2)}"),
        ("luna", f"rows={max(1, keys // 2)}"),
    ]
    ways = [
        Competitor(name if name != "full" else "Transformer", f"{name}:{n}".rstrip(":"), ",".join(modules))
        for name, n in numbers
    ]
    linformer = ",".join(m for m in modules if m != "decoder") or "none"
    return [*ways, Competitor("linformer", f"linformer:rows={keys},length={max(2048, length)}", linformer)]
